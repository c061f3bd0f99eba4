"""One poll for all descriptors of the agent, and what is read from them and written to them without blocking.

The agent has its own loop: asyncio takes longer to load than all of the agent, and the agent forks, so it has no
threads.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import select
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from hvd_elastic_ext.core.json_text import to_text

# --- one poll --------------------------------------------------------------------------------------------


Act = Callable[[], object]


class EventLoop(Protocol):
    """The methods of the loop that parts of the agent use."""

    def now(self) -> float: ...
    def watch(self, descriptor: int, act: Act, *, output: bool = False) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def write(self, descriptor: int, act: Act | None) -> None: ...


_READ: Final = select.POLLIN
_WRITE: Final = select.POLLOUT


class DescriptorLoop:
    """Calls what is registered for each ready descriptor. Output can be held back."""

    def __init__(self) -> None:
        # Not epoll, which does not accept regular files: standard input or output may be one. Nor a selector of the
        # standard library, which adds its own code to each event: a new world of three asks a hundred requests.
        self._poll = select.poll()
        self._polled: dict[int, int] = {}
        """By descriptor, the events that are polled for."""
        self._reads: dict[int, Act] = {}
        self._writes: dict[int, Act] = {}
        self._outputs: set[int] = set()
        self._held_back = False

    def watch(self, descriptor: int, act: Act, *, output: bool = False) -> None:
        """Call ``act`` whenever ``descriptor`` can be read, or is at its end."""
        self._reads[descriptor] = act
        if output:
            self._outputs.add(descriptor)
        self._update(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Call no function for ``descriptor`` any more."""
        self._reads.pop(descriptor, None)
        self._writes.pop(descriptor, None)
        self._outputs.discard(descriptor)
        self._update(descriptor)

    def write(self, descriptor: int, act: Act | None) -> None:
        """Call ``act`` whenever ``descriptor`` can be written; None ends this."""
        if act is None:
            self._writes.pop(descriptor, None)
        else:
            self._writes[descriptor] = act
        self._update(descriptor)

    def hold_back(self, wanted: bool) -> None:
        """Stop or continue to read output."""
        if wanted == self._held_back:
            return
        self._held_back = wanted
        for descriptor in self._outputs:
            self._update(descriptor)

    def look(self, timeout: float | None) -> None:
        """Wait until there is something to do, for at most ``timeout`` seconds, and do it."""
        found = self._poll.poll(None if timeout is None else math.ceil(1000 * timeout))
        ready = [
            (descriptor, flags, self._writes.get(descriptor), self._reads.get(descriptor))
            for descriptor, flags in found
        ]
        for descriptor, flags, write, read in ready:
            # An earlier one may have closed any descriptor. Nothing is lost: the next poll reports what is still ready.
            if write is not None and flags & ~_READ and self._writes.get(descriptor) is write:
                write()
            if read is not None and flags & ~_WRITE and self._reads.get(descriptor) is read:
                read()

    def _update(self, descriptor: int) -> None:
        reads = descriptor in self._reads and not (self._held_back and descriptor in self._outputs)
        events = (_READ if reads else 0) | (_WRITE if descriptor in self._writes else 0)
        if self._polled.get(descriptor, 0) == events:
            return
        if events:
            self._poll.register(descriptor, events)
            self._polled[descriptor] = events
        else:
            self._poll.unregister(descriptor)
            del self._polled[descriptor]


# --- lines, events and signals on descriptors ------------------------------------------------------------


CHUNK: Final = 65536
"""Bytes read at once."""
FULL: Final = 1 << 20
"""Bytes that may wait for the launcher. Above this, output of training processes stays in its pipes."""
_SAFE: Final = select.PIPE_BUF
"""Bytes that a pipe or socket accepts without blocking when poll reports that it can be written."""


class Lines:
    """Makes lines from the pieces that arrive. A line longer than ``limit`` bytes becomes None."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Return the lines that ``data`` completes, without their line ends."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            line, skipped = bytes(self._rest) + end, self._skipping
            self._rest.clear()
            self._skipping = False
            yield None if skipped or len(line) > self._limit else line
        self._rest += rest
        if len(self._rest) > self._limit:
            self._rest.clear()
            self._skipping = True


class Outbox:
    """Queue of lines for ``descriptor``, in order. If the reader is gone, all are dropped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._waiting: collections.deque[memoryview] = collections.deque()
        self.size = 0
        """Bytes that wait to be written."""
        self._broken = False

    def put(self, event: str, **fields: object) -> None:
        """Add an event as one line of JSON. Bytes that are not UTF-8 are kept, as lone surrogates."""
        self.add(to_text({"event": event, **fields}).encode("ascii") + b"\n")

    def add(self, line: bytes) -> None:
        """Add one line."""
        if not self._broken:
            self._waiting.append(memoryview(line))
            self.size += len(line)

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._waiting

    @property
    def full(self) -> bool:
        """Whether more than ``FULL`` bytes wait to be written."""
        return self.size > FULL

    def write(self) -> None:
        """Write a piece. Call it when poll reports that this is possible; then it does not block."""
        if not self._waiting:
            return
        first = self._waiting.popleft()
        try:
            written = os.write(self.descriptor, first[:_SAFE])
        except BlockingIOError:  # the descriptor was inherited as non-blocking
            written = 0
        except OSError:
            self._drop_all()
            return
        self.size -= written
        if written < len(first):
            self._waiting.appendleft(first[written:])

    def _drop_all(self) -> None:
        self._broken = True
        self._waiting.clear()
        self.size = 0


def read_available(connection: socket.socket) -> bytes | None:
    """The bytes that have arrived; empty at the end of the connection, None if nothing has arrived."""
    try:
        return connection.recv(CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def warn(problem: str) -> None:
    """Write one line to standard error, unless it would block: the launcher gets it as an event, too."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if any(flags & select.POLLOUT for _, flags in poll.poll(0)):
            os.write(2, f"hvd-elastic agent: {problem}\n".encode(errors="replace")[:_SAFE])


def signals_as_bytes(numbers: Iterable[int]) -> int:
    """Turn signals into bytes on the returned descriptor."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reader


@contextlib.contextmanager
def memory_file(name: str, content: Mapping[str, object]) -> Iterator[int]:
    """Return a descriptor from which another process reads ``content`` as JSON. A full pipe would block the loop."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        unwritten = memoryview(to_text(content).encode("ascii"))
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor above standard error that is not in ``kept``."""
    wanted = set(kept)
    names = os.listdir("/proc/self/fd")  # noqa: PTH208 - pathlib takes long to load
    for descriptor in map(int, names):
        if descriptor > 2 and descriptor not in wanted:
            with contextlib.suppress(OSError):  # the listing's own, which is closed already
                os.close(descriptor)


def redirect_to_null() -> None:
    """Point the standard streams at /dev/null, so that this process does not keep them open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)

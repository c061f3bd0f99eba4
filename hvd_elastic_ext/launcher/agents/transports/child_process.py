"""A child process in an asyncio loop: one line in, lines out, an exit code. It may outlive the launcher.

asyncio kills its own subprocesses when their transport or the loop is closed, and needs a watcher of children that
differs between versions. A child of this module is an agent that must outlive its launcher, or an ssh to one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Final

from hvd_elastic_ext.core.messages.slot_protocol import STDIN
from hvd_elastic_ext.core.secrets import OBSERVE_TOKEN
from hvd_elastic_ext.io import process_tree

MAX_LINE_BYTES: Final = 4096
"""A line of more bytes is passed on in pieces."""
MAX_INPUT_BYTES: Final = 1 << 20
"""Most bytes of the line on a child's standard input."""
KILLED_S: Final = 5.0
"""Longest wait for the end of a child that has been killed."""
_CHUNK: Final = 64 << 10
_EXIT_CHECK_S: Final = 0.1


class Lines:
    """Joins received pieces to lines, and splits lines that are too long."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete now, without their ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        whole = [piece.decode("utf-8", "replace").rstrip("\r") for line in lines for piece in _pieces(line)]
        *pieces, self._rest = _pieces(rest)
        return whole + [piece.decode("utf-8", "replace") for piece in pieces]

    def end(self) -> list[str]:
        """Return the rest, once nothing follows."""
        return self.feed(b"\n") if self._rest else []


class Child:
    """Start ``command`` in a session of its own, with ``line`` on its standard input, which then stays open.

    ``on_line(stream, text)`` is called for each line of "stdout" and "stderr", without its end, in the loop.
    ``stdin``: a descriptor that it inherits, and finds in the variable :data:`STDIN`.

    Raises ``OSError`` if it cannot be started.
    """

    why = ""
    """A child always has an exit code."""

    def __init__(
        self,
        command: Sequence[str],
        line: bytes,
        *,
        on_line: Callable[[str, str], None],
        stdin: int | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_line = on_line
        # Ctrl-C in a terminal goes to the whole foreground group; which processes end is the driver's decision.
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            start_new_session=True,
            pass_fds=() if stdin is None else (stdin,),
            env=_environment(stdin),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.code: asyncio.Future[int] = self._loop.create_future()
        """The exit code; 128 + N for signal N. All lines have been passed on before."""
        self._stdin = process.stdin
        self._lines = {"stdout": Lines(), "stderr": Lines()}
        self._streams: dict[str, IO[bytes]] = {}
        self._follow("stdout", process.stdout)
        self._follow("stderr", process.stderr)
        self._watch_exit()
        self._unread: deque[memoryview] = deque()
        os.set_blocking(self._stdin.fileno(), False)
        self.write(line)

    def write(self, *pieces: bytes) -> None:
        """Write more to its input. Does nothing once the input is closed."""
        if self._stdin.closed:
            return
        self._unread.extend(map(memoryview, filter(None, pieces)))
        self._write()
        if self._unread:  # more than an empty pipe takes: the rest follows as it is read
            self._loop.add_writer(self._stdin.fileno(), self._write)

    def kill(self) -> None:
        """SIGKILL it and whatever is left of its session's first process group."""
        if not self.code.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def killed(self) -> None:
        """Kill it, and wait for its end, but not for ever: the kernel may block it."""
        self.kill()
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.code), KILLED_S)
        finally:
            self.hand_over()

    def hand_over(self) -> None:
        """It may outlive this process. While this process lives, its end is still reported."""
        process_tree.hand_over(self._process)

    def close(self) -> None:
        """Read no more of its output, and close its input, read or not. The child continues; its end is still
        reported."""
        for stream in list(self._streams):
            self._unfollow(stream)
        self._all_written()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def _write(self) -> None:
        """Write what the pipe has room for."""
        try:
            while self._unread:
                written = os.write(self._stdin.fileno(), self._unread[0])
                self._unread[0] = self._unread[0][written:]
                if not self._unread[0]:
                    self._unread.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:  # it has ended already; its exit code says why
            pass
        self._all_written()

    def _all_written(self) -> None:
        """Stop writing, whether all is written or not."""
        self._unread.clear()
        if not self._stdin.closed:
            self._loop.remove_writer(self._stdin.fileno())

    def _follow(self, stream: str, source: IO[bytes]) -> None:
        os.set_blocking(source.fileno(), False)
        self._streams[stream] = source
        self._loop.add_reader(source.fileno(), self._read, stream)

    def _unfollow(self, stream: str) -> None:
        source = self._streams.pop(stream)
        self._loop.remove_reader(source.fileno())
        source.close()

    def _read(self, stream: str) -> bool:
        """Read a piece; False if there is none now, or the output has ended."""
        try:
            data = os.read(self._streams[stream].fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._unfollow(stream)
            self._pass_on(stream, self._lines[stream].end())
            return False
        self._pass_on(stream, self._lines[stream].feed(data))
        return True

    def _pass_on(self, stream: str, lines: Iterable[str]) -> None:
        for line in lines:
            self._on_line(stream, line)

    def _watch_exit(self) -> None:
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # some kernels, sandboxes and builds of Python do not have it
            self._loop.call_later(_EXIT_CHECK_S, self._look)
        else:
            self._loop.add_reader(descriptor, self._exited, descriptor)

    def _look(self) -> None:
        if (code := self._reaped()) is None:
            self._loop.call_later(_EXIT_CHECK_S, self._look)
        else:
            self._ended(code)

    def _exited(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._ended(self._reaped() or 0)

    def _reaped(self) -> int | None:
        """Its exit code; None if it has not ended. The library asks nothing about a child that is handed over."""
        try:
            pid, status = os.waitpid(self._process.pid, os.WNOHANG)
        except ChildProcessError:  # this process was started with its children's ends ignored: the code is not known
            return 0
        return os.waitstatus_to_exitcode(status) if pid else None

    def _ended(self, code: int) -> None:
        """It has ended. Its last output is in the pipes. Does not wait for other processes that hold the pipes."""
        for stream in list(self._streams):
            while self._read(stream):
                pass
            if stream in self._streams:
                self._unfollow(stream)
                self._pass_on(stream, self._lines[stream].end())
        self.close()
        self._process.returncode = code
        if not self.code.done():
            self.code.set_result(code if code >= 0 else 128 - code)


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES)] or [b""]


def _environment(stdin: int | None) -> dict[str, str]:
    """The launcher's own, which an agent of this machine passes on to processes, without what is for it alone."""
    own = {name: value for name, value in os.environ.items() if name != OBSERVE_TOKEN}
    return own if stdin is None else {**own, STDIN: str(stdin)}

"""Writes text in a thread, for readers that may block: a stopped terminal, a full pipe, a disk that hangs.

Text is put into an :class:`Outlet`, and a thread writes it, in order. What does not fit is dropped, counted and logged.
The thread writes to descriptors, without Python's buffers: if it blocked in one of those, the interpreter could not
end.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TextIO

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.own_files import open_output

log = logging.getLogger(__name__)

MAX_WAITING: Final = 8 << 20
"""Most characters that wait, plus an overhead for each piece."""
STALL_S: Final = 2.0
"""Seconds without progress after which :meth:`Outlet.close` gives up."""
CLOSE_S: Final = 5.0
"""Seconds that :meth:`Outlet.close` waits for a slow reader that makes progress."""

SLOW_S: Final = 5.0
"""Seconds in one write to a disk after which a line says so."""

_EACH: Final = 64
_BATCH: Final = 16 << 10


class Says(NamedTuple):
    """Lines of the log about an outlet, by name, and with the number of lost lines."""

    full: str
    again: str
    slow: str | None = None


READER: Final = Says(
    "%s is not read: output is dropped until there is room again", "%s is read again; %d lines of output were dropped"
)
DISK: Final = Says(
    "%s is not written, because the disk does not answer: lines are lost until there is room again",
    "%s is written again; %d lines are missing in it",
    "%s is not written, because the disk does not answer; the job goes on, and lines wait",
)


class Sink(Protocol):
    """A destination of text. All methods are called in the outlet's thread. The first and last may wait, and raise
    ``OSError``.

    ``joins``: several texts may be written as one. ``retries``: after an error the next text may be written again.
    """

    name: str
    joins: bool
    retries: bool

    def write(self, text: str) -> None: ...

    def missed(self, lines: int, characters: int) -> None:
        """So much is missing before the next text."""

    def close(self) -> None: ...


class Gap(NamedTuple):
    """In the place of text that found no room."""

    lines: int
    characters: int


class Stream:
    """A stream of this process, which stays open; None if the process was started without it."""

    joins = True
    retries = False
    """Its reader does not come back."""

    def __init__(self, stream: TextIO | None) -> None:
        self.name = str(getattr(stream, "name", "a stream"))
        self.descriptor = _descriptor(stream)
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> None:
        """Block until all is written, in the stream's own encoding; without a stream nothing happens."""
        # Letters that a terminal cannot show become escapes, never errors.
        data = text.encode(self._encoding, "backslashreplace")
        if self.descriptor is not None:
            _write_all(self.descriptor, data)
        elif self._stream is not None:
            self._stream.write(data.decode(self._encoding))
            self._stream.flush()

    def missed(self, lines: int, characters: int) -> None:
        """Do nothing: the log says it."""

    def close(self) -> None:
        """Do nothing: other code may still use the stream."""


class Appended:
    """A file to which text is appended. At the first text its folder is made, and it is opened: see
    :func:`hvd_elastic_ext.io.own_files.open_output`. ``option`` names it in errors.

    Where text is missing, a line of the file says how much.
    """

    joins = True
    retries = True

    def __init__(self, path: Path, *, option: str) -> None:
        self.name = str(path)
        self._path, self._option = path, option
        self._opened = -1
        self._missing = Gap(0, 0)
        self._torn = False
        """Whether the file ends within a line that could not be written whole."""

    def write(self, text: str) -> None:
        """Block until all is written, as UTF-8; the file is opened first if it is not open."""
        if self._opened < 0:
            try:
                self._opened = open_output(self._path, option=self._option)
            except UsageError as error:
                raise PermissionError(errno.EPERM, str(error)) from None
        if self._missing.lines:
            text = ("\n" if self._torn else "") + missing_line(*self._missing) + text
        data = text.encode("utf-8", "backslashreplace")
        try:
            _write_all(self._opened, data)
        except OSError:
            self._torn = True
            raise
        self._missing, self._torn = Gap(0, 0), False

    def missed(self, lines: int, characters: int) -> None:
        self._missing = Gap(self._missing.lines + lines, self._missing.characters + characters)

    def close(self) -> None:
        """Close the file if it is open. May be repeated; a later :meth:`write` opens it again."""
        if self._opened >= 0:
            descriptor, self._opened = self._opened, -1
            os.close(descriptor)


def missing_line(lines: int, characters: int) -> str:
    """The line of a file of output in the place of text that could not be written."""
    return f"[hvd-elastic: {lines} lines ({characters} characters) are missing here]\n"


class Outlet:
    """Writes queued text, in order, in a thread of its own, which lives from the first piece to :meth:`close`.

    When ``room`` is full, new text is dropped until half of it is free again.
    A log line reports the beginning; at the end, another one reports the number of lost lines.
    A sink that fails is reported once. It gets no more text, unless it ``retries``. ``says``: the lines.
    """

    def __init__(self, name: str, *, room: int = MAX_WAITING, says: Says = READER) -> None:
        self.name = name
        self._room, self._says = room, says
        self._turn = threading.Condition()
        self._waiting: deque[tuple[Sink, str | Gap]] = deque()
        self._size = self._lines = 0
        """Size of the waiting text and of the text being written."""
        self._lost = 0
        """Number of lines dropped since there was no room; 0 while there is room."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._used: dict[Sink, bool] = {}
        """Used sinks, and whether they still accept text."""
        self._gaps: dict[Sink, Gap] = {}
        """What was dropped since there was no room, by sink."""
        self._failing: set[str] = set()
        """Names of sinks whose last text could not be written."""
        self._writing_since: float | None = None
        self._slow = False

    def put(self, sink: Sink, text: str) -> None:
        """Queue ``text`` for ``sink``. Never waits or raises; after :meth:`close` the text is dropped."""
        with self._turn:
            if self._closing:
                return
            was_full = self._lost > 0
            full = was_full or 0 < self._size > self._room - _cost(text)
            if full:
                self._lost += _lines(text)
                gap = self._gaps.get(sink, Gap(0, 0))
                self._gaps[sink] = Gap(gap.lines + _lines(text), gap.characters + len(text))
            else:
                self._waiting.append((sink, text))
                self._size += _cost(text)
                self._lines += _lines(text)
                self._start()
            begins = full and not was_full
            slow = self._is_slow_now()
            self._turn.notify_all()
        if slow and self._says.slow is not None:
            log.warning(self._says.slow, self.name)
        if begins:
            log.warning(self._says.full, self.name)

    def _is_slow_now(self) -> bool:
        """Whether a write has begun to be slow."""
        since = self._writing_since
        if self._slow or since is None or time.monotonic() - since < SLOW_S:
            return False
        self._slow = True
        return True

    def close(self) -> int:
        """Wait while writing makes progress; return how many lines were lost. May be repeated."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
            until = time.monotonic() + CLOSE_S
            while self._size and time.monotonic() < until and self._makes_progress():
                pass
            done, lost = self._size == 0, self._lost + self._lines
            self._waiting.clear()
            self._lost = self._lines = 0
        if done and self._thread is not None:
            self._thread.join(STALL_S)
        return lost

    def is_empty(self, *, within_s: float) -> bool:
        """Whether all that was put is written, or dropped; waits this long for it."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._size, within_s)

    def _makes_progress(self) -> bool:
        size = self._size
        return self._turn.wait_for(lambda: self._size < size, STALL_S)

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a write may block for ever, and must not keep this process from ending.
            self._thread = threading.Thread(target=self._work, name=f"hvd-elastic to {self.name}", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (batch := self._taken()) is not None:
            sink, texts = batch
            self._write(sink, texts)
            self._written(texts)
        for sink in self._used:
            with contextlib.suppress(OSError):
                sink.close()

    def _taken(self) -> tuple[Sink, list[str]] | None:
        """Return the next text of one sink; None when this is closed and empty."""
        with self._turn:
            while True:
                self._turn.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return None
                sink, text = self._waiting.popleft()
                if isinstance(text, str):
                    break
                sink.missed(*text)
            texts, size = [text], len(text)
            while sink.joins and self._waiting and self._waiting[0][0] is sink and size < _BATCH:
                more = self._waiting[0][1]
                if not isinstance(more, str):
                    break
                self._waiting.popleft()
                texts.append(more)
                size += len(more)
            self._writing_since = time.monotonic()
            return sink, texts

    def _write(self, sink: Sink, texts: list[str]) -> None:
        if not self._used.setdefault(sink, True):
            return
        try:
            sink.write("".join(texts))
        except (OSError, ValueError) as error:
            self._failed(sink, texts, error)
        else:
            if sink.name in self._failing:
                self._failing.discard(sink.name)
                log.warning("%s can be written again", sink.name)

    def _failed(self, sink: Sink, texts: list[str], error: OSError | ValueError) -> None:
        why = (isinstance(error, OSError) and error.strerror) or error
        if not sink.retries:
            self._used[sink] = False
            log.warning("output of workers is dropped from here on: %s: %s", sink.name, why)
            return
        sink.missed(sum(map(_lines, texts)), sum(map(len, texts)))
        if sink.name not in self._failing:
            self._failing.add(sink.name)
            log.warning("%s cannot be written (%s); the job goes on, and lines are lost", sink.name, why)

    def _written(self, texts: list[str]) -> None:
        with self._turn:
            self._size -= sum(map(_cost, texts))
            self._lines -= 0 if self._closing and not self._lines else sum(map(_lines, texts))
            again = self._lost if self._size <= self._room // 2 and not self._closing else 0
            self._lost -= again
            if again:
                self._waiting.extend(self._gaps.items())
                self._gaps.clear()
            self._writing_since, was_slow, self._slow = None, self._slow, False
            self._turn.notify_all()
        if again:
            log.warning(self._says.again, self.name, again)
        elif was_slow and self._says.slow is not None:
            log.warning("%s is written again; nothing is missing", self.name)


def write_message(stream: TextIO | None, text: str) -> None:
    """Write ``text`` to ``stream``, without an endless wait for a reader."""
    outlet = Outlet("a message")
    outlet.put(Stream(stream), text)
    outlet.close()


def discard(stream: TextIO) -> None:
    """Drop the buffered and all later text of ``stream``, which cannot be written, also at exit."""
    descriptor = _descriptor(stream)
    if descriptor is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def open_closed_streams() -> None:
    """Open the null device in place of each standard stream that the caller has closed (``>&-``).

    Otherwise a stream is None, and a file of the job gets its number: processes would write their output into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _lines(text: str) -> int:
    """The number of lines of a text; a part of a line counts as one."""
    return text.count("\n") or 1


def _cost(text: str) -> int:
    return len(text) + _EACH


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):  # the stream is in memory, or closed
        return None


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # the descriptor is non-blocking for others; this thread waits
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT)
            ready.poll()

"""Writes text in a thread, for readers that may block: a stopped terminal, a full pipe, a disk that hangs.

Text is put into an :class:`Outlet`, and a thread writes it, in order. What does not fit is dropped, counted and logged.
The thread writes to descriptors, without Python's buffers: if it blocked in one of those, the interpreter could not
end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, Protocol, TextIO

log = logging.getLogger(__name__)

MAX_WAITING: Final = 8 << 20
"""Most characters that wait, plus an overhead for each piece."""
STALL_S: Final = 2.0
"""Seconds without progress after which :meth:`Outlet.close` gives up."""
CLOSE_S: Final = 5.0
"""Seconds that :meth:`Outlet.close` waits for a slow reader that makes progress."""

_EACH: Final = 64
_BATCH: Final = 16 << 10


class Sink(Protocol):
    """A destination of text. Both methods are called in the outlet's thread, may wait, and raise ``OSError``."""

    name: str

    def write(self, text: str) -> None: ...

    def close(self) -> None: ...


class Stream:
    """A stream of this process, which stays open; None if the process was started without it."""

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

    def close(self) -> None:
        """Do nothing: other code may still use the stream."""


class Appended:
    """A file to which text is appended. At the first text its folder is made, and it is opened."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._opened = -1

    def write(self, text: str) -> None:
        """Block until all is written, as UTF-8; the file is opened first if it is not open."""
        if self._opened < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _write_all(self._opened, text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Close the file if it is open. May be repeated; a later :meth:`write` opens it again."""
        if self._opened >= 0:
            descriptor, self._opened = self._opened, -1
            os.close(descriptor)


class Outlet:
    """Writes queued text, in order, in a thread of its own, which lives from the first piece to :meth:`close`.

    When ``room`` is full, new text is dropped until half of it is free again.
    A log line reports the beginning; at the end, another one reports the number of lost pieces.
    A sink that fails is reported once and gets no more text.
    """

    def __init__(self, name: str, *, room: int = MAX_WAITING) -> None:
        self.name = name
        self._room = room
        self._turn = threading.Condition()
        self._waiting: deque[tuple[Sink, str]] = deque()
        self._size = self._pieces = 0
        """Size of the waiting text and of the text being written."""
        self._lost = 0
        """Number of pieces dropped since there was no room; 0 while there is room."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._used: dict[Sink, bool] = {}
        """Used sinks, and whether they still accept text."""

    def put(self, sink: Sink, text: str) -> None:
        """Queue ``text`` for ``sink``. Never waits or raises; after :meth:`close` the text is dropped."""
        with self._turn:
            if self._closing:
                return
            full = self._lost > 0 or 0 < self._size > self._room - _cost(text)
            if full:
                self._lost += 1
            else:
                self._waiting.append((sink, text))
                self._size += _cost(text)
                self._pieces += 1
                self._start()
            begins = full and self._lost == 1
            self._turn.notify_all()
        if begins:
            log.warning("%s is not read: output is dropped until there is room again", self.name)

    def close(self) -> int:
        """Wait while writing makes progress; return how many pieces were lost. May be repeated."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
            until = time.monotonic() + CLOSE_S
            while self._size and time.monotonic() < until and self._makes_progress():
                pass
            done, lost = self._size == 0, self._lost + self._pieces
            self._waiting.clear()
            self._lost = self._pieces = 0
        if done and self._thread is not None:
            self._thread.join(STALL_S)
        return lost

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
            self._write(sink, "".join(texts))
            self._written(texts)
        for sink in self._used:
            with contextlib.suppress(OSError):
                sink.close()

    def _taken(self) -> tuple[Sink, list[str]] | None:
        """Return the next text of one sink; None when this is closed and empty."""
        with self._turn:
            self._turn.wait_for(lambda: self._waiting or self._closing)
            if not self._waiting:
                return None
            sink, text = self._waiting.popleft()
            texts, size = [text], len(text)
            while self._waiting and self._waiting[0][0] is sink and size < _BATCH:
                texts.append(self._waiting.popleft()[1])
                size += len(texts[-1])
            return sink, texts

    def _write(self, sink: Sink, text: str) -> None:
        if not self._used.setdefault(sink, True):
            return
        try:
            sink.write(text)
        except (OSError, ValueError) as error:
            self._used[sink] = False
            log.warning("output of workers is dropped from here on: %s: %s", sink.name, error)

    def _written(self, texts: list[str]) -> None:
        with self._turn:
            self._size -= sum(map(_cost, texts))
            self._pieces -= 0 if self._closing and not self._pieces else len(texts)
            again = self._lost if self._size <= self._room // 2 and not self._closing else 0
            self._lost -= again
            self._turn.notify_all()
        if again:
            log.warning("%s is read again; %d lines of output were dropped", self.name, again)


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

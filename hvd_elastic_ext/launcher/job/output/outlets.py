"""Joins output of training processes into lines and writes them without blocking."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from hvd_elastic_ext.core.printable import printable
from hvd_elastic_ext.io.output_files import INDEX, Indexer
from hvd_elastic_ext.io.threads.writer_thread import DISK, Appended, Outlet, Stream
from hvd_elastic_ext.io.wait_line import ERASE, in_place

log = logging.getLogger(__name__)

MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is passed on in pieces (bytes)."""

MAX_BAR_BYTES: Final = 1000
"""A longer state of a progress bar waits for the end of its line (bytes): all of it is written again as it grows."""

PIECE: Final = re.compile(rb"\r*[^\r\n]*(?:\r?\n)?")
"""A line, or a state of a progress bar."""

Write = Callable[[str], None]
"""Accepts text without blocking; texts are written in order."""


class Outlets(contextlib.AbstractContextManager["Outlets"]):
    """Where the launcher writes: ``stdout``, ``stderr``, files. One that blocks does not block the others.

    A full disk or a closed pipe never stops training: text that cannot be written is dropped, with one warning.
    """

    def __init__(self, stdout: TextIO | None, stderr: TextIO | None) -> None:
        out, err = Stream(stdout), Stream(stderr)
        self._err = Outlet(err.name)
        # On one terminal, lines of both keep their order.
        self._out = self._err if _same(out.descriptor, err.descriptor) else Outlet(out.name)
        self._files = Outlet("the output of processes", says=DISK)
        err_line = _Line()
        out_line = err_line if self._out is self._err else _Line()
        self.stdout: Write = lambda text: self._out.put(out, out_line.next(text))
        self.stderr: Write = lambda text: self._err.put(err, err_line.next(text))
        self.is_terminal = err.descriptor is not None and in_place(stderr)
        """Whether a status line can be shown."""
        self._has_status = False
        self._err_line = err_line
        self._status: Write = lambda text: self._err.put(err, err_line.status(text))

    def __exit__(self, *_: object) -> None:
        self.close()

    def files(self, folder: Path) -> OutputFiles:
        """The files of processes in ``folder``."""
        return OutputFiles(folder, self._files)

    def status(self, text: str) -> None:
        """Show ``text`` below all lines, in place of the last status; an empty one removes it."""
        if self.is_terminal:
            self._has_status = bool(text)
            self._status(printable(text))

    @property
    def shows_status(self) -> bool:
        """Whether the status is on the terminal, or is again at its next change: no progress bar takes its place."""
        return self._has_status and not self._err_line.has_bar

    def close(self) -> None:
        """Wait until all is written, as long as writing makes progress."""
        for outlet in (self._out, self._files):
            if outlet is not self._err and (lost := outlet.close()):
                log.warning("%s: the last %d lines of output were dropped", outlet.name, lost)
        self._err.close()


class OutputFiles:
    """Files of output in ``folder``, and their index. A thread writes all of them."""

    OPTION: Final = "--output-filename"

    def __init__(self, folder: Path, outlet: Outlet) -> None:
        self._folder, self._outlet = folder, outlet
        self._index = Appended(folder / INDEX, option=self.OPTION)
        self._indexer = Indexer(folder, time.time)
        self._files: dict[str, Appended] = {}
        self._parts: dict[tuple[str, str, int], _Part] = {}
        self._generation = 0

    def put(self, file: str, line: str, *, host: str, slot: int, generation: int) -> None:
        """Append a line of a process to ``file``, a path within the folder."""
        if generation != self._generation:
            self._generation = generation
            self._parts.clear()
        part = self._parts.get((file, host, slot))
        if part is None:
            if file not in self._files:
                self._files[file] = Appended(self._folder / file, option=self.OPTION)
            mark = functools.partial(self._indexer.line, file, host=host, slot=slot, generation=generation)
            part = self._parts[file, host, slot] = _Part(self._files[file], self._index, mark)
        self._outlet.put(part, line)


class _Part:
    """The end of one file, while one process writes it. Its place is looked up in the writer's thread, when all before
    it is written, or known to be missing."""

    joins = True
    retries = True

    def __init__(self, file: Appended, index: Appended, mark: Callable[[], str | None]) -> None:
        self.name = file.name
        self._file, self._index, self._mark = file, index, mark
        self.missed = file.missed

    def __eq__(self, other: object) -> bool:
        """What is missing, and what is closed, is a file: whoever wrote it."""
        return isinstance(other, _Part) and other._file is self._file

    def __hash__(self) -> int:
        return hash(self._file)

    def write(self, text: str) -> None:
        if mark := self._mark():
            try:
                self._index.write(mark)
            except OSError:  # the file is more important
                self._index.missed(1, len(mark))
        self._file.write(text)

    def close(self) -> None:
        self._file.close()
        self._index.close()


class _Line:
    """The last line of a terminal: a progress bar may leave it unfinished, and it may contain the status."""

    def __init__(self) -> None:
        self._bar = False
        self._status = ""

    @property
    def has_bar(self) -> bool:
        """Whether a progress bar is the last line."""
        return self._bar

    def next(self, text: str) -> str:
        """What to write for ``text``: a line of its own, unless it is the next state of a bar."""
        before = ERASE if self._status else "\n" if self._bar and not text.startswith("\r") else ""
        self._bar, self._status = not text.endswith("\n"), ""
        return before + text

    def status(self, text: str) -> str:
        """What to write to show a status. A bar that is drawn stays."""
        if self._bar or text == self._status:
            return ""
        self._status = text
        return ERASE + text


class Log(logging.Handler):
    """Logs without blocking: a reader that stops must not stop the launcher. ``without_waits``: whether lines marked as
    ``wait`` are dropped, because a status line says the same.
    """

    def __init__(self, tap: Write, without_waits: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._tap, self._without_waits = tap, without_waits

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the formatted record, with a line end, to ``tap``: what others said in it cannot drive a terminal."""
        if getattr(record, "wait", False) and self._without_waits():
            return
        try:
            self._tap(printable(self.format(record)) + "\n")
        except (ValueError, TypeError):  # arguments that do not fit their text
            self.handleError(record)


def _same(one: int | None, other: int | None) -> bool:
    """Whether two descriptors lead to the same place."""
    if one is None or other is None:
        return False
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:  # it is closed
        return False


class LineAssembler:
    """Joins the pieces that an agent sends into lines.

    Text after a carriage return does not wait for the end of its line, so progress bars are shown as they come.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._size = 0
        self._bar = False
        """The unfinished line began with a carriage return."""
        self._shown = b""
        """The part of it that was passed on."""

    def feed(self, text: str) -> list[str]:
        """The lines that ``text`` completes, each with its line end; states of a progress bar begin with ``\\r``."""
        # A piece may end inside a character, so they are joined as bytes.
        data = text.encode("utf-8", "surrogateescape")
        if b"\r" not in data and b"\n" not in data:
            return self._more(data)
        *done, rest = PIECE.findall(b"".join([*self._partial, data]))[:-1] or [b""]
        if rest.endswith(b"\n"):
            done, rest = [*done, rest], b""
        if self._shown and done and done[0] == self._shown:
            del done[0]
        shown = [b"\r" * (piece[:1] == b"\r" or piece[-1:] != b"\n") + piece.lstrip(b"\r") for piece in done]
        self._bar = rest.startswith(b"\r")
        if self._bar:  # one return is as good as many, and only one is read again with the next piece
            rest = b"\r" + rest.lstrip(b"\r")
        self._shown = rest if self._bar and 1 < len(rest) <= MAX_BAR_BYTES else b""
        shown += [self._shown] if self._shown else []
        self._partial, self._size = [rest], len(rest)
        return [*map(_decoded, shown), *(self.flush() if self._size > MAX_LINE_BYTES else [])]

    def _more(self, data: bytes) -> list[str]:
        """Take more of the unfinished line. It is read again only while it is a short state of a progress bar."""
        self._partial.append(data)
        self._size += len(data)
        if self._size > MAX_LINE_BYTES:
            return self.flush()
        self._shown = b""
        if self._bar and 1 < self._size <= MAX_BAR_BYTES:
            self._shown = b"".join(self._partial)
            self._partial = [self._shown]
        return [_decoded(self._shown)] if self._shown else []

    def flush(self) -> list[str]:
        """The unfinished line, with a line end."""
        rest = b"".join(self._partial)
        self._partial, self._size, self._bar, self._shown = [], 0, False, b""
        return [_decoded(rest + b"\n")] if rest else []


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace")

"""The output of training processes: joined into lines, written without blocking, to the terminal and to files.

An error of the script that ends several processes with the same text is shown once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TextIO

from hvd_elastic_ext.core import errors
from hvd_elastic_ext.core.printable import printable
from hvd_elastic_ext.io.output_files import INDEX, Indexer, file_of, label
from hvd_elastic_ext.io.threads.writer_thread import DISK, Appended, Outlet, Stream
from hvd_elastic_ext.io.wait_line import ERASE, in_place
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

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


# --- an error is shown once


TRACEBACK_START: Final = "Traceback (most recent call last):"
OWN_ERROR_PREFIX: Final = f"{errors.__name__}."
"""The beginning of the last line of our own errors, which name a mistake and its remedy."""
MAX_HELD_LINES: Final = 100
"""Lines of a traceback that are held back until its last one. Tracebacks of our errors end at the script's own line."""
MAX_HELD_CHARS: Final = 10_000
"""A longer line ends the holding back: what is held has a bound."""


class Repeats:
    """Passes on lines of standard error, without tracebacks of our errors that another process has shown.

    A process that comes to the same error again, as after a restart, shows it again.
    """

    def __init__(self) -> None:
        self._held: dict[ProcessId, list[str]] = {}
        self._shown_by: dict[str, set[Seat]] = {}
        """By traceback, the processes that had it since it was shown."""

    def next(self, life: ProcessId, line: str) -> list[str]:
        """Take a line of a process. Return the lines to show now."""
        if line.startswith(TRACEBACK_START):
            before, self._held[life] = self.rest(life), [line]
            return before
        held = self._held.get(life)
        small = held is not None and len(held) < MAX_HELD_LINES and len(line) < MAX_HELD_CHARS
        if held is not None and small and line.startswith(" "):
            held.append(line)
            return []
        whole = [*self.rest(life), line]
        return [] if line.startswith(OWN_ERROR_PREFIX) and self._repeats(life.seat, "".join(whole)) else whole

    def concerns(self, life: ProcessId, text: str) -> bool:
        """Whether some line of ``text`` may be held back, or end what is held back."""
        return life in self._held or TRACEBACK_START in text or OWN_ERROR_PREFIX in text

    def rest(self, life: ProcessId) -> list[str]:
        """Return the lines held back of a process that has ended."""
        return self._held.pop(life, [])

    def _repeats(self, seat: Seat, text: str) -> bool:
        seats = self._shown_by.setdefault(text, set())
        repeats = bool(seats) and seat not in seats
        if not repeats:
            seats.clear()
        seats.add(seat)
        return repeats


# --- on the terminal


CARRIAGE: Final = "\r"


class Console:
    """Writes output of processes.

    ``rank`` and ``generation`` are called for every piece, because they change; no rank is None. A process that has
    exited has no rank: what is still to be written of it goes to the one that it had."""

    def __init__(
        self,
        outlets: Outlets,
        folder: Path | None,
        *,
        timestamps: bool,
        rank: Callable[[ProcessId], int | None],
        generation: Callable[[], int] = lambda: 0,
    ) -> None:
        self._outlets = outlets
        self._files = None if folder is None else outlets.files(folder)
        self._timestamps = timestamps
        self._rank, self._generation = rank, generation
        self._terminals = {"stdout": outlets.stdout, "stderr": outlets.stderr}
        self._partial: dict[tuple[ProcessId, str], LineAssembler] = {}
        self._last: dict[ProcessId, str] = {}
        """As whom each process wrote last. Its unfinished line is by no other: its host may be lost meanwhile."""
        self._exited: set[ProcessId] = set()
        self._repeats = Repeats()

    def take(self, life: ProcessId, stream: str, text: str) -> None:
        """Take output of a process; ``stream`` is "stdout" or "stderr"."""
        if stream in self._terminals:
            if life not in self._exited:
                self._last[life] = self._now(life)
            lines = self._partial.setdefault((life, stream), LineAssembler()).feed(text)
            self._write(life, stream, lines)

    def exited(self, life: ProcessId) -> None:
        """A process has exited, and is about to lose its rank. More may come of its output and that of its children."""
        self._last[life] = self._now(life)
        self._exited.add(life)

    def ended(self, life: ProcessId) -> None:
        """A process has ended, with all that it started: write its unfinished lines."""
        for stream in self._terminals:
            rest = self._partial.pop((life, stream), None)
            self._write(life, stream, rest.flush() if rest is not None else [])
        if held := self._repeats.rest(life):
            self._show("stderr", label(self._last[life], "stderr"), held)
        self._last.pop(life, None)
        self._exited.discard(life)

    def remark(self, host: str, line: str) -> None:
        """Write a line of an agent or its transport, such as the banner of a host's sshd."""
        self._show("stderr", label(host, "stderr"), [printable(line.rstrip("\n")) + "\n"])

    def close(self) -> None:
        """Write the unfinished lines of all processes, which have ended. The caller closes the outlets."""
        for life in list(self._last):
            self.ended(life)

    def _write(self, life: ProcessId, stream: str, lines: list[str]) -> None:
        """Write lines of one process at once: processes may print millions of short ones."""
        if not lines:
            return
        who, text = self._last[life], "".join(lines)
        shown = lines
        if stream == "stderr" and self._repeats.concerns(life, text):
            shown = [each for line in lines for each in self._repeats.next(life, line)]
        self._show(stream, label(who, stream), shown)
        if self._files is not None:
            seat = life.seat
            self._files.put(file_of(who, stream), text, host=seat.host, slot=seat.slot, generation=self._generation())

    def _now(self, life: ProcessId) -> str:
        rank = self._rank(life)
        return str(life.seat) if rank is None else str(rank)

    def _show(self, stream: str, label: str, lines: Iterable[str]) -> None:
        before = f"{time.asctime()}{label}" if self._timestamps else label  # as horovodrun writes it
        labelled = [
            f"\r{before}{line.removeprefix(CARRIAGE)}" if line.startswith(CARRIAGE) else before + line for line in lines
        ]
        if labelled:
            self._terminals[stream]("".join(labelled))


def seat_of(host: str, slot: object, life: object) -> ProcessId | None:
    """The process that an agent names; None if the fields are invalid."""
    return ProcessId(Seat(host, slot), life) if isinstance(slot, int) and isinstance(life, int) else None

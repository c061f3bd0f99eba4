"""Lines of training processes: put together again from pieces, and sent to where they are seen. Nothing here waits."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

from hvd_elastic_ext.io.writer_thread import Appended, Outlet, Stream

log = logging.getLogger(__name__)

LONGEST_LINE: Final = 1 << 20
"""Bytes after which a line of a worker that does not end is passed on in pieces."""

Tap = Callable[[str], None]
"""Takes text at once, to be written in its order."""


class Outlets:
    """The ways out of the launcher: ``stdout``, ``stderr``, files. One that stands still does not hold up the others.

    A full disk or a reader that went away never stops training: what cannot be
    written any more is dropped, and said once.
    """

    def __init__(self, stdout: TextIO | None, stderr: TextIO | None) -> None:
        out, err = Stream(stdout), Stream(stderr)
        self._err = Outlet(err.name)
        # Lines of both keep their order where they meet again, in a terminal.
        self._out = self._err if _same(out.descriptor, err.descriptor) else Outlet(out.name)
        self._files = Outlet("the files of --output-filename")
        self.stdout: Tap = lambda text: self._out.put(out, text)
        self.stderr: Tap = lambda text: self._err.put(err, text)

    def __enter__(self) -> Outlets:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def file(self, path: Path) -> Tap:
        """One that is appended to; its folder is made."""
        sink = Appended(path)
        return lambda text: self._files.put(sink, text)

    def close(self) -> None:
        """Wait for what there is to be written, as long as that gets on."""
        for outlet in (self._out, self._files):
            if outlet is not self._err and (lost := outlet.close()):
                log.warning("%s: the last %d lines of output were dropped", outlet.name, lost)
        self._err.close()


class Log(logging.Handler):
    """The launcher's own words go out as those of workers do: a reader that stands still must not stop who speaks."""

    def __init__(self, tap: Tap) -> None:
        super().__init__()
        self._tap = tap

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._tap(self.format(record) + "\n")
        except (ValueError, TypeError):  # arguments that do not fit their text
            self.handleError(record)


class Output:
    """Where lines of one stream of one worker go: the ``terminal``, labelled, and if given a ``file`` of its own."""

    def __init__(self, terminal: Tap, file: Tap | None = None, *, timestamps: bool = False) -> None:
        self._terminal = terminal
        self._file = file
        self._timestamps = timestamps

    def write(self, text: str, *, label: str) -> None:
        time_of_day = time.asctime() if self._timestamps else ""  # as horovodrun writes it
        self._terminal(f"{time_of_day}{label}{text}")
        if self._file is not None:
            self._file(text)


def _same(one: int | None, other: int | None) -> bool:
    """Whether two descriptors lead to the same place."""
    if one is None or other is None:
        return False
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:  # it is closed
        return False


class Assembler:
    """Makes whole lines of the pieces in which an agent passes them on."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, text: str) -> list[str]:
        """The lines that ``text`` completes, each with its end."""
        # Pieces may be cut within a letter: as bytes they fit together again.
        data = text.encode("utf-8", "surrogateescape")
        whole, newline, rest = data.rpartition(b"\n")
        done = b"".join([*self._rest, whole, newline]) if newline else b""
        self._rest = [rest] if newline else [*self._rest, rest]
        self._size = len(rest) if newline else self._size + len(rest)
        return _split(done) + (self.flush() if self._size > LONGEST_LINE else [])

    def flush(self) -> list[str]:
        """What there is of a line that did not end, ended."""
        rest = b"".join(self._rest)
        self._rest, self._size = [], 0
        return _split(rest + b"\n") if rest else []


def _split(data: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in io.BytesIO(data)]

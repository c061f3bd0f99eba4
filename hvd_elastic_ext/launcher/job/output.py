"""Joins output of training processes into lines and writes them without blocking."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from hvd_elastic_ext.io.writer_thread import Appended, Outlet, Stream

log = logging.getLogger(__name__)

LONGEST_LINE: Final = 1 << 20
"""A longer line is passed on in pieces (bytes)."""

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
        self._files = Outlet("the files of --output-filename")
        self.stdout: Write = lambda text: self._out.put(out, text)
        self.stderr: Write = lambda text: self._err.put(err, text)

    def __exit__(self, *_: object) -> None:
        self.close()

    def file(self, path: Path) -> Write:
        """Append to ``path``; make its folder."""
        sink = Appended(path)
        return lambda text: self._files.put(sink, text)

    def close(self) -> None:
        """Wait until all is written, as long as writing makes progress."""
        for outlet in (self._out, self._files):
            if outlet is not self._err and (lost := outlet.close()):
                log.warning("%s: the last %d lines of output were dropped", outlet.name, lost)
        self._err.close()


class Log(logging.Handler):
    """Logs without blocking: a reader that stops must not stop the launcher."""

    def __init__(self, tap: Write) -> None:
        super().__init__()
        self._tap = tap

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._tap(self.format(record) + "\n")
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
    """Joins the pieces that an agent sends into lines."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._size = 0

    def feed(self, text: str) -> list[str]:
        """The lines that ``text`` completes, each with its line end."""
        # A piece may end inside a character, so they are joined as bytes.
        data = text.encode("utf-8", "surrogateescape")
        whole, newline, rest = data.rpartition(b"\n")
        done = b"".join([*self._partial, whole, newline]) if newline else b""
        self._partial = [rest] if newline else [*self._partial, rest]
        self._size = len(rest) if newline else self._size + len(rest)
        return _split(done) + (self.flush() if self._size > LONGEST_LINE else [])

    def flush(self) -> list[str]:
        """The unfinished line, with a line end."""
        rest = b"".join(self._partial)
        self._partial, self._size = [], 0
        return _split(rest + b"\n") if rest else []


def _split(data: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in io.BytesIO(data)]

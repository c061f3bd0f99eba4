"""Lines of training processes: put together again from pieces, and written where they are seen."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
from pathlib import Path
from typing import Final, TextIO

log = logging.getLogger(__name__)

LONGEST_LINE: Final = 1 << 20
"""Bytes after which a line of a worker that does not end is passed on in pieces."""


class Output:
    """Where lines of one stream of one worker go: the ``terminal``, labelled, and if given a ``file`` of its own.

    A full disk or a reader that went away never stops training: what cannot be
    written any more is dropped, and said once. Closing closes the file only.
    """

    def __init__(self, terminal: TextIO, file: TextIO | None = None, *, timestamps: bool = False) -> None:
        self._terminal: TextIO | None = terminal
        self._file = self._opened = file
        self._timestamps = timestamps

    def write(self, text: str, *, label: str) -> None:
        time_of_day = time.asctime() if self._timestamps else ""  # as horovodrun writes it
        self._terminal = _written(self._terminal, f"{time_of_day}{label}{text}")
        self._file = _written(self._file, text)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _written(sink: TextIO | None, text: str) -> TextIO | None:
    """Write to ``sink``; it, or None if it takes nothing any more."""
    if sink is None:
        return None
    try:
        sink.write(text)
        sink.flush()
    except OSError as error:
        log.warning("output of workers is dropped from here on: %s: %s", getattr(sink, "name", "?"), error)
        # What is left in the buffer must not fail again when the file is closed.
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sink.fileno())
        return None
    return sink


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

"""Tells on a stream what a command waits for: on a terminal in one line that changes in place, else in lines at the
pace of :mod:`hvd_elastic_ext.core.pace`.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

from hvd_elastic_ext.core.pace import MARKS_S, Lines
from hvd_elastic_ext.core.printable import fitting, one_line

MOST: Final = 2000
"""Most characters of a line."""
ERASE: Final = "\r\x1b[K"
"""Erases the last line of a terminal."""


def in_place(stream: TextIO | None) -> bool:
    """Whether a line on ``stream`` can change in place: it is a terminal, and not a dumb one."""
    with contextlib.suppress(OSError, ValueError):  # it is closed
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return False


class WaitLine:
    """One wait at a time, for any thread. ``first_s``: seconds before its first line. Call :meth:`clear` before another
    line is written.
    """

    def __init__(
        self, stream: TextIO, *, now: Callable[[], float] = time.monotonic, first_s: float = MARKS_S[0]
    ) -> None:
        self._stream, self._now, self._first_s = stream, now, first_s
        self._in_place = in_place(stream)
        self._lock = threading.Lock()
        self._lines: Lines | None = None
        self._shown = ""

    def show(self, text: str) -> None:
        """Tell that the wait goes on, for what ``text`` says: also in words of servers and other programs, which are
        made printable. Call it at each look.
        """
        with self._lock:
            self._show(one_line(text, most=MOST), self._now())

    def _show(self, text: str, now: float) -> None:
        if self._lines is None:
            self._lines = Lines(now, first_s=self._first_s)
        if not self._in_place:
            if self._lines.due(now, text):
                self._write(f"{text}\n")
        elif now >= self._lines.since + self._first_s and text != self._shown:
            self._shown = text
            self._write(f"{ERASE}{fitting(text, shutil.get_terminal_size().columns - 1)}")

    def clear(self) -> None:
        """The wait is over, or another line is to be written: remove it from the terminal."""
        with self._lock:
            if self._shown:
                self._write(ERASE)
            self._shown, self._lines = "", None

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            self._stream.write(text)
            self._stream.flush()

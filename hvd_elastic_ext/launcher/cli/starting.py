"""Tells that the launcher's own modules load, which takes many seconds on a busy machine.

Standard library only: this is loaded before all else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from hvd_elastic_ext.io.wait_line import WaitLine

FIRST_S: Final = 3.0
LOOK_S: Final = 1.0
"""Time between two looks at the clock."""

_over = threading.Event()
_printing = threading.Lock()
_line: WaitLine | None = None


@contextlib.contextmanager
def startup_lines(stream: TextIO, words: Sequence[str]) -> Iterator[None]:
    """Print on ``stream`` that the job is starting, until :func:`stop` or the end of the context. ``words``: its
    command line.
    """
    if not {"-q", "--quiet", "-h", "--help"}.isdisjoint(words):
        yield
        return
    _over.clear()
    thread = threading.Thread(target=_print_lines, args=(stream,), daemon=True, name="starting")
    thread.start()
    try:
        yield
    finally:
        stop()


def stop() -> None:
    """Print no more such lines, and remove the one on a terminal: the job logs what it does from now on."""
    _over.set()
    clear()


def clear() -> None:
    """Remove the line from a terminal, because another one follows."""
    with _printing:
        if _line is not None:
            _line.clear()


def _print_lines(stream: TextIO) -> None:
    global _line
    began = time.monotonic()
    _line = WaitLine(stream, first_s=FIRST_S)
    while True:
        with _printing:
            if _over.is_set():
                return
            lasts_s = time.monotonic() - began
            _line.show(f"hvd-elastic: starting for {lasts_s:.0f} s: loading its modules; then the hosts are read")
        _over.wait(LOOK_S)

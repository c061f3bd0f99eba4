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

_SWITCHES: Final = """
-q --quiet --adopt --resume --send-code --restart-stalled --drain-stragglers --restart-from-scratch --train-on --verbose
-prefix-timestamp --prefix-output-with-timestamp --tcp --disable-cache --gloo --mpi --jsrun -cb --check-build
--hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather
--torus-allreduce --no-torus-allreduce --autotune --no-autotune --timeline-mark-cycles --no-timeline-mark-cycles
--mpi-threads-disable --no-mpi-threads-disable --no-stall-check --stall-check --log-with-timestamp
--log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp --replay -h --help -v --version
"""
SWITCHES: Final = frozenset(_SWITCHES.split())
"""Options of ``run`` without a value. The parser itself is not loaded yet; a test compares them."""
_over = threading.Event()
_printing = threading.Lock()
_line: WaitLine | None = None


@contextlib.contextmanager
def startup_lines(stream: TextIO, words: Sequence[str]) -> Iterator[None]:
    """Print on ``stream`` that the job is starting, until :func:`stop` or the end of the context. ``words``: its
    command line.
    """
    if quiet(words):
        yield
        return
    _over.clear()
    thread = threading.Thread(target=_print_lines, args=(stream,), daemon=True, name="starting")
    thread.start()
    try:
        yield
    finally:
        stop()


def quiet(words: Sequence[str]) -> bool:
    """Whether the launcher's own options ask for silence; those of the program after them do not count. Pure."""
    value = False
    for word in words:
        if value:
            value = False
        elif word == "--" or not word.startswith("-"):
            return False
        elif word in ("-q", "--quiet", "-h", "--help", "-v", "--version"):
            return True
        else:
            value = word not in SWITCHES and "=" not in word
    return False


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

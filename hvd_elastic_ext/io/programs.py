"""Runs a program of the user's with a deadline and bounded output, and ends all that it started if it is stopped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hvd_elastic_ext.io import process_tree

TAIL: Final = 4 << 10
"""Bytes of standard error that are kept: its end."""
_CHUNK: Final = 64 << 10
_LOOK_S: Final = 0.05
"""Longest time until the end of a program whose children hold its pipes is noticed."""
_KILL_S: Final = 5.0
_READS_AFTER_END: Final = 16
"""Reads of a chunk that empty the largest pipe."""


class TooMuchOutput(Exception):
    """The program printed more than it may."""


class Ended(NamedTuple):
    """``code``: negative for a signal. ``output``: of standard output. ``error``: the end of standard error."""

    code: int
    output: bytes
    error: bytes


class Program:
    """One program at a time, in a session of its own. :meth:`run` is for a thread; :meth:`stop` for any other one."""

    def __init__(self, command: Sequence[str] | str, *, most: int = 0) -> None:
        """A string is run by the shell. ``most``: bytes of standard output; 0: it is not read. Else standard error
        goes where this process's goes."""
        self._command, self._most = command, most
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, *, within_s: float, env: Mapping[str, str] | None = None) -> Ended:
        """Run it to its end. What its children print later is not read.

        Raises ``OSError`` if it cannot be started, ``TimeoutError`` if it takes longer, :class:`TooMuchOutput`. In the
        last two cases, and after :meth:`stop`, it is killed with all that it started.
        """
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with self._lock:
            if self._stopped:
                raise TimeoutError
            process = self._running = subprocess.Popen(
                self._command,
                shell=isinstance(self._command, str),
                env=env,
                stdin=null,
                stdout=pipe if self._most else null,
                stderr=None if self._most else pipe,
                bufsize=0,
                start_new_session=True,
            )
        try:
            return self._followed(process, time.monotonic() + within_s)
        except (TimeoutError, TooMuchOutput):
            _kill(process)
            raise
        finally:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            self._running = None

    def stop(self) -> None:
        """Kill it if it runs, and start it no more. May be repeated."""
        with self._lock:
            self._stopped = True
            process = self._running
        if process is not None and process.poll() is None:
            _kill(process)

    def _followed(self, process: subprocess.Popen[bytes], deadline: float) -> Ended:
        source = process.stdout or process.stderr
        assert source is not None
        descriptor, kept = source.fileno(), bytearray()
        os.set_blocking(descriptor, False)
        readable, at_end, after = select.poll(), False, 0
        readable.register(descriptor, select.POLLIN)
        while True:
            ended = process.poll() is not None  # asked before the pipe is read to its end
            after += ended  # what was in the pipe at the end is read; children may go on printing
            left_s = deadline - time.monotonic()
            wait_s = 0.0 if ended else max(0.0, min(left_s, _LOOK_S))
            reads = left_s > 0 and not at_end and after <= _READS_AFTER_END
            if reads and readable.poll(wait_s * 1000):
                at_end = self._take(descriptor, kept)
                if not at_end:
                    continue
            if ended:
                code = process.wait()
                return Ended(code, bytes(kept), b"") if self._most else Ended(code, b"", bytes(kept))
            if left_s <= 0:
                raise TimeoutError
            if at_end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(left_s)

    def _take(self, descriptor: int, kept: bytearray) -> bool:
        """Read a piece. Return whether it was the end."""
        try:
            piece = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        kept += piece
        if self._most and len(kept) > self._most:
            raise TooMuchOutput
        if not self._most:
            del kept[:-TAIL]
        return not piece


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program, its group, and children that left the group."""
    started = process_tree.descendants(process.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process_tree.kill(started, cleaners=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_S)

"""Output of training processes: to the terminal with the rank that each has now, and to files that are appended to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from hvd_elastic_ext.launcher.output import Assembler, Output
from hvd_elastic_ext.launcher.rendezvous import Life, Seat

log = logging.getLogger(__name__)


class Console:
    """``label`` is asked anew for every line, because a process's rank changes during its life; None if it has none."""

    def __init__(self, folder: Path | None, *, timestamps: bool, rank: Callable[[Life], int | None]) -> None:
        self._folder = folder
        self._timestamps = timestamps
        self._rank = rank
        self._terminals = {"stdout": self._output(sys.stdout, None), "stderr": self._output(sys.stderr, None)}
        self._files: dict[tuple[str, str], Output] = {}
        self._rests: dict[tuple[Life, str], Assembler] = {}

    def take(self, life: Life, stream: str, text: str) -> None:
        """Some output of a process; ``stream`` is "stdout" or "stderr"."""
        if stream in self._terminals:
            for line in self._rests.setdefault((life, stream), Assembler()).feed(text):
                self._write(life, stream, line)

    def ended(self, life: Life) -> None:
        """A process has ended, and with it a line that it did not end."""
        for stream in self._terminals:
            rest = self._rests.pop((life, stream), None)
            for line in rest.flush() if rest is not None else ():
                self._write(life, stream, line)

    def remark(self, host: str, line: str) -> None:
        """What an agent says itself, or whoever carries it."""
        self._terminals["stderr"].write(line.rstrip("\n") + "\n", label=f"[{host}]<stderr>:")

    def close(self) -> None:
        for life, _ in list(self._rests):
            self.ended(life)
        for output in self._files.values():
            output.close()
        self._files.clear()

    def _write(self, life: Life, stream: str, line: str) -> None:
        rank = self._rank(life)
        who = str(life.seat) if rank is None else str(rank)
        self._sink(who, stream).write(line, label=f"[{who}]<{stream}>:")

    def _sink(self, who: str, stream: str) -> Output:
        if self._folder is None:
            return self._terminals[stream]
        if (who, stream) not in self._files:
            terminal = sys.stdout if stream == "stdout" else sys.stderr
            self._files[who, stream] = self._output(terminal, _opened(self._folder / f"rank.{who}" / stream))
        return self._files[who, stream]

    def _output(self, terminal: TextIO, file: TextIO | None) -> Output:
        return Output(terminal, file, timestamps=self._timestamps)


def _opened(path: Path) -> TextIO | None:
    """A file to append to; None, said once, where there can be none: the terminal still shows what is written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        log.warning("no output of workers goes to %s: %s", path, error.strerror or error)
        return None


def seat_of(host: str, slot: object, life: object) -> Life | None:
    """The life that an agent speaks of, if it is one."""
    return Life(Seat(host, slot), life) if isinstance(slot, int) and isinstance(life, int) else None

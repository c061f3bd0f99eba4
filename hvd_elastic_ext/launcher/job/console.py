"""Output of training processes: to the terminal with the rank that each has now, and to files that are appended to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hvd_elastic_ext.launcher.job.output import Assembler, Outlets, Output
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat


class Console:
    """``rank`` is asked anew for every line, because a process's rank changes during its life; None if it has none."""

    def __init__(
        self, outlets: Outlets, folder: Path | None, *, timestamps: bool, rank: Callable[[Life], int | None]
    ) -> None:
        self._outlets = outlets
        self._folder = folder
        self._timestamps = timestamps
        self._rank = rank
        self._taps = {"stdout": outlets.stdout, "stderr": outlets.stderr}
        self._terminals = {stream: Output(tap, timestamps=timestamps) for stream, tap in self._taps.items()}
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
        """No process says any more. The outlets are whoever made them's to close."""
        for life, _ in list(self._rests):
            self.ended(life)

    def _write(self, life: Life, stream: str, line: str) -> None:
        rank = self._rank(life)
        who = str(life.seat) if rank is None else str(rank)
        self._sink(who, stream).write(line, label=f"[{who}]<{stream}>:")

    def _sink(self, who: str, stream: str) -> Output:
        if self._folder is None:
            return self._terminals[stream]
        if (who, stream) not in self._files:
            file = self._outlets.file(self._folder / f"rank.{who}" / stream)
            self._files[who, stream] = Output(self._taps[stream], file, timestamps=self._timestamps)
        return self._files[who, stream]


def seat_of(host: str, slot: object, life: object) -> Life | None:
    """The life that an agent speaks of, if it is one."""
    return Life(Seat(host, slot), life) if isinstance(slot, int) and isinstance(life, int) else None

"""Output of training processes: to the terminal with the rank that each has now, and to files that are appended to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hvd_elastic_ext.launcher.job.output import LineAssembler, Outlets, Output
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat


class Console:
    """Writes output of processes. ``rank`` is called for every line, because ranks change; None if there is none."""

    def __init__(
        self, outlets: Outlets, folder: Path | None, *, timestamps: bool, rank: Callable[[Life], int | None]
    ) -> None:
        self._outlets = outlets
        self._folder = folder
        self._timestamps = timestamps
        self._rank = rank
        self._writes = {"stdout": outlets.stdout, "stderr": outlets.stderr}
        self._terminals = {stream: Output(tap, timestamps=timestamps) for stream, tap in self._writes.items()}
        self._files: dict[tuple[str, str], Output] = {}
        self._partial: dict[tuple[Life, str], LineAssembler] = {}

    def take(self, life: Life, stream: str, text: str) -> None:
        """Take output of a process; ``stream`` is "stdout" or "stderr"."""
        if stream in self._terminals:
            for line in self._partial.setdefault((life, stream), LineAssembler()).feed(text):
                self._write(life, stream, line)

    def ended(self, life: Life) -> None:
        """A process has ended: write its unfinished lines."""
        for stream in self._terminals:
            rest = self._partial.pop((life, stream), None)
            for line in rest.flush() if rest is not None else ():
                self._write(life, stream, line)

    def remark(self, host: str, line: str) -> None:
        """Write a line of an agent or its transport."""
        self._terminals["stderr"].write(line.rstrip("\n") + "\n", label=f"[{host}]<stderr>:")

    def close(self) -> None:
        """Write unfinished lines. The caller closes the outlets."""
        for life, _ in list(self._partial):
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
            self._files[who, stream] = Output(self._writes[stream], file, timestamps=self._timestamps)
        return self._files[who, stream]


def seat_of(host: str, slot: object, life: object) -> Life | None:
    """The process that an agent names; None if the fields are invalid."""
    return Life(Seat(host, slot), life) if isinstance(slot, int) and isinstance(life, int) else None

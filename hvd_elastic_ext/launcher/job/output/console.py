"""Output of training processes: to the terminal with the present rank, and appended to files.

Files get every line. The terminal gets an error of the script once if all ranks print it with the same text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.printable import printable
from hvd_elastic_ext.io.output_files import file_of, label
from hvd_elastic_ext.launcher.job.output.outlets import LineAssembler, Outlets
from hvd_elastic_ext.launcher.job.output.repeats import Repeats
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

CARRIAGE: Final = "\r"


class Console:
    """Writes output of processes.

    ``rank`` and ``generation`` are called for every piece, because they change; no rank is None. A process that has
    exited has no rank: what is still to be written of it goes to the one that it had."""

    def __init__(
        self,
        outlets: Outlets,
        folder: Path | None,
        *,
        timestamps: bool,
        rank: Callable[[ProcessId], int | None],
        generation: Callable[[], int] = lambda: 0,
    ) -> None:
        self._outlets = outlets
        self._files = None if folder is None else outlets.files(folder)
        self._timestamps = timestamps
        self._rank, self._generation = rank, generation
        self._terminals = {"stdout": outlets.stdout, "stderr": outlets.stderr}
        self._partial: dict[tuple[ProcessId, str], LineAssembler] = {}
        self._last: dict[ProcessId, str] = {}
        """As whom each process wrote last. Its unfinished line is by no other: its host may be lost meanwhile."""
        self._exited: set[ProcessId] = set()
        self._repeats = Repeats()

    def take(self, life: ProcessId, stream: str, text: str) -> None:
        """Take output of a process; ``stream`` is "stdout" or "stderr"."""
        if stream in self._terminals:
            if life not in self._exited:
                self._last[life] = self._now(life)
            lines = self._partial.setdefault((life, stream), LineAssembler()).feed(text)
            self._write(life, stream, lines)

    def exited(self, life: ProcessId) -> None:
        """A process has exited, and is about to lose its rank. More may come of its output and that of its children."""
        self._last[life] = self._now(life)
        self._exited.add(life)

    def ended(self, life: ProcessId) -> None:
        """A process has ended, with all that it started: write its unfinished lines."""
        for stream in self._terminals:
            rest = self._partial.pop((life, stream), None)
            self._write(life, stream, rest.flush() if rest is not None else [])
        if held := self._repeats.rest(life):
            self._show("stderr", label(self._last[life], "stderr"), held)
        self._last.pop(life, None)
        self._exited.discard(life)

    def remark(self, host: str, line: str) -> None:
        """Write a line of an agent or its transport, such as the banner of a host's sshd."""
        self._show("stderr", label(host, "stderr"), [printable(line.rstrip("\n")) + "\n"])

    def close(self) -> None:
        """Write the unfinished lines of all processes, which have ended. The caller closes the outlets."""
        for life in list(self._last):
            self.ended(life)

    def _write(self, life: ProcessId, stream: str, lines: list[str]) -> None:
        """Write lines of one process at once: processes may print millions of short ones."""
        if not lines:
            return
        who, text = self._last[life], "".join(lines)
        shown = lines
        if stream == "stderr" and self._repeats.concerns(life, text):
            shown = [each for line in lines for each in self._repeats.next(life, line)]
        self._show(stream, label(who, stream), shown)
        if self._files is not None:
            seat = life.seat
            self._files.put(file_of(who, stream), text, host=seat.host, slot=seat.slot, generation=self._generation())

    def _now(self, life: ProcessId) -> str:
        rank = self._rank(life)
        return str(life.seat) if rank is None else str(rank)

    def _show(self, stream: str, label: str, lines: Iterable[str]) -> None:
        before = f"{time.asctime()}{label}" if self._timestamps else label  # as horovodrun writes it
        labelled = [
            f"\r{before}{line.removeprefix(CARRIAGE)}" if line.startswith(CARRIAGE) else before + line for line in lines
        ]
        if labelled:
            self._terminals[stream]("".join(labelled))


def seat_of(host: str, slot: object, life: object) -> ProcessId | None:
    """The process that an agent names; None if the fields are invalid."""
    return ProcessId(Seat(host, slot), life) if isinstance(slot, int) and isinstance(life, int) else None

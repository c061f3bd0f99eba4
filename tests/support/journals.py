"""Makes journals line by line, as a launcher and its workers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.journal import Record, read


class JournalMaker:
    """Collects journal lines at times that a test chooses. ``mono``: the monotonic clock."""

    def __init__(self, *, mono: float = 100.0, wall: float = 1_700_000_000.0) -> None:
        self.mono = mono
        self.wall = wall
        self.step = 0
        self.size = 0
        self.lines: list[str] = []

    def add(self, event: str, *, generation: int = 0, after: float = 0.0, **fields: Any) -> JournalMaker:
        self.mono += after
        line = {"t": self.wall + self.mono, "mono": self.mono, "generation": generation, "event": event, **fields}
        self.lines.append(json.dumps(line))
        return self

    def resized(self, cause: str, size: int, *, after: float = 0.0, **fields: Any) -> JournalMaker:
        self.size = size
        return self.add("resized", after=after, cause=cause, size=size, **fields)

    def steps(self, count: int, *, every: float = 0.1, loss: float = 1.0, generation: int = 0) -> JournalMaker:
        for _ in range(count):
            self.step += 1
            told = {"epoch": 0, "batch": self.step, "loss": loss / self.step}
            self.add(
                "stepped",
                generation=generation,
                after=every,
                step=self.step,
                rank=0,
                size=self.size,
                host="a",
                values=told,
            )
        return self

    def back(self, lost: int, *, rank: int = 0, host: str = "a", after: float = 0.0) -> JournalMaker:
        if rank == 0:
            self.step -= lost
        return self.add("rolled_back", after=after, step=self.step, steps_lost=lost, rank=rank, host=host)

    @property
    def records(self) -> list[Record]:
        return list(read(self.lines))

    def write(self, path: Path) -> Path:
        path.write_text("".join(line + "\n" for line in self.lines))
        return path

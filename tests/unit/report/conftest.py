"""Journals written line by line, as by a launcher and its workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.journal import Record, read


class JournalMaker:
    """Collects journal lines at times that a test chooses; ``at`` is the monotonic clock."""

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
            fields = {"step": self.step, "rank": 0, "size": self.size, "host": "a", "values": told}
            self.add("stepped", generation=generation, after=every, **fields)
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


@pytest.fixture
def journal() -> JournalMaker:
    return JournalMaker()


def whole_job(journal: JournalMaker) -> JournalMaker:
    """A job of two: grow, lose a worker, get its host back, drain one, refuse a list, end."""
    journal.add("started", options={}, versions={})
    journal.add("published", after=0.1, hosts={"a": 1, "b": 1}, added=["a", "b"], removed=[], grown=[], shrunk=[])
    journal.resized("start", 2, after=0.4, generation=1, added=["a", "b"], removed=[], hosts={"a": 1, "b": 1})
    for rank, host in enumerate("ab"):
        journal.add("spawned", generation=1, host=host, slot=0, rank=rank, pid=4000 + rank)
    journal.mono += 2.0
    journal.steps(30)
    journal.add("published", hosts={"a": 1, "b": 1, "c": 1}, added=["c"], removed=[], grown=[], shrunk=[])
    journal.resized("hosts added", 3, after=0.5, generation=2, added=["c"], removed=[])
    journal.mono += 2.0
    journal.steps(30)
    journal.add("exited", generation=2, after=0.01, host="b", slot=0, code=137, cause="killed by signal 9")
    journal.back(4, after=0.05).back(3, rank=2, host="c")
    journal.add("struck", subject="b", cause="killed by signal 9", until=journal.wall + journal.mono + 4)
    journal.resized(
        "worker failed", 2, after=0.05, generation=3, added=[], removed=["b"], failed={"b": "killed by signal 9"}
    )
    journal.steps(30)
    journal.resized("cooldown over", 3, after=0.2, generation=4, added=["b"], removed=[])
    journal.mono += 2.5
    journal.steps(30)
    journal.resized("hosts removed", 2, after=0.2, generation=5, added=[], removed=["c"])
    journal.add("exited", generation=5, after=0.02, host="c", slot=0, code=134, cause="told to leave")
    journal.steps(10)
    journal.add("refused", reason="hosts:1: '???' contains white space; write host:slots, nothing else")
    journal.steps(30)
    return journal.add("finished", after=0.1, code=0, reason="training reported done")


@pytest.fixture
def job(journal: JournalMaker) -> JournalMaker:
    return whole_job(journal)

"""Journals written line by line, as by a launcher and its workers."""

from __future__ import annotations

import pytest

from tests.support.journals import JournalMaker


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

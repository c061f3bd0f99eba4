"""Journal records folded into one value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.demo.observed import Observed, Worker, observe
from hvd_elastic_ext.demo.runner import JournalTail


def record(event: str, **fields: Any) -> Record:
    return Record(0.0, 0.0, 0, event, fields)


def test_steps_are_counted_for_the_world_they_belong_to() -> None:
    seen = observe(
        Observed(),
        [
            record("resized", size=2, cause="start", hosts={"a": 1, "b": 1}),
            record("stepped", step=1, size=2, host="a"),
            record("resized", size=3, cause="hosts added", hosts={"a": 1, "b": 1, "c": 1}),
            record("stepped", step=2, size=2, host="a"),  # written late by the world before
            record("stepped", step=3, size=3, host="a"),
        ],
    )
    assert [world.steps for world in seen.worlds] == [1, 1]
    assert (seen.steps, seen.step) == (3, 3)


def test_a_restarted_worker_replaces_the_one_before() -> None:
    first = record("spawned", host="a", slot=0, rank=1, pid=10)
    second = record("spawned", host="a", slot=0, rank=2, pid=11)
    assert observe(Observed(), [first, second]).workers == (Worker("a", 0, 2, 11),)


def test_a_worker_that_ended_is_forgotten() -> None:
    spawned = record("spawned", host="a", slot=0, rank=1, pid=10)
    assert observe(Observed(), [spawned, record("exited", host="a", slot=0, code=1)]).workers == ()


def test_a_sleeping_job_has_no_worker_and_counts_lost_steps() -> None:
    seen = observe(
        Observed(),
        [
            record("resumed", step=0, path="from an earlier job"),
            record("resized", size=2, cause="start", hosts={"a": 1, "b": 1}),
            record("spawned", host="a", slot=0, rank=0, pid=10),
            record("stepped", step=7, size=2, host="a"),
            record("sealed", step=7),
            record("slept", reason="too few"),
        ],
    )
    assert (seen.world.size, seen.workers, seen.sealed, seen.sleeps) == (0, (), (7,), 1)
    assert observe(seen, [record("resumed", step=7)]).lost == (0, 0)
    assert observe(seen, [record("resumed", step=5)]).lost == (0, 2)


def test_unknown_events_and_invalid_fields_do_no_harm() -> None:
    odd = [record("teleported"), record("spawned", host="a", pid="x"), record("stepped", step="x", values=[1])]
    seen = observe(Observed(), odd)
    assert (seen.workers, seen.step, seen.steps) == ((), 0, 1)


def test_the_journal_is_read_once_by_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "j"
    tail = JournalTail(path)
    assert tail.read() == []
    line = '{"t": 1, "mono": 1, "generation": 0, "event": "%s"}\n'
    path.write_text(line % "one" + (line % "two")[:20])
    assert [r.event for r in tail.read()] == ["one"]
    assert tail.read() == []
    with path.open("a") as file:
        file.write((line % "two")[20:] + "no journal line\n" + line % "three")
    assert [r.event for r in tail.read()] == ["two", "three"]


def test_the_last_important_event_is_told_in_the_words_of_the_table() -> None:
    told = [
        record("started"),
        record("resized", size=2, cause="start"),
        record("stepped", step=7),
        record("exited", host="a", slot=0, code=1, reason="crashed: exit code 1"),
        record("scaled", hosts=3, before=2, leaving=["b", "c"]),
        record("started"),
    ]
    seen = Observed()
    assert [(seen := observe(seen, [each])).last for each in told] == [
        "",
        "start: world of 2",
        "start: world of 2",
        "exited on a: crashed: exit code 1",
        "scaled on b, c: 2 → 3 hosts",
        "started: the launcher was started again",
    ]

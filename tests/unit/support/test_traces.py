"""Traces of a job's processes show which steps were lost, repeated or different."""

from __future__ import annotations

from pathlib import Path

from tests.faults.launcher import traces
from tests.faults.launcher.traces import Traced


def world(at: float, number: int, *processes: str, fingerprint: str = "f") -> list[Traced]:
    """One step of a world."""
    return [Traced(at, len(processes), rank, number, fingerprint, each) for rank, each in enumerate(processes)]


def test_steps_that_are_done_once_in_changing_worlds_are_not_repeated() -> None:
    steps = [*world(1, 1, "a", "b"), *world(2, 2, "a"), *world(3, 3, "a", "c"), *world(4, 4, "c", "d")]
    assert traces.done_again(steps) == []
    assert traces.missing(steps) == []
    assert traces.divided(steps) == []


def test_a_step_of_a_rank_that_was_killed_before_its_report_is_done_once() -> None:
    assert traces.done_again([*world(1, 1, "a", "b")[:1], *world(2, 2, "a")]) == []


def test_a_step_that_a_process_did_twice_is_repeated() -> None:
    steps = [*world(1, 1, "a", "b"), *world(2, 2, "a", "b"), *world(3, 2, "a", "b"), *world(4, 3, "a", "b")]
    assert [(step.count, step.mono) for step in traces.done_again(steps)] == [(2, 3)]


def test_a_step_that_others_did_again_in_another_world_is_repeated() -> None:
    again = traces.done_again([*world(1, 1, "a", "b"), *world(2, 1, "c"), *world(3, 1, "c", "d")])
    assert [step.mono for step in again] == [2, 3]
    assert traces.done_again([*world(1, 1, "a", "b"), *world(2, 1, "c", "d")])[0].process == "c"


def test_a_gap_and_ranks_that_differ_are_found() -> None:
    assert traces.missing([*world(1, 1, "a"), *world(2, 4, "a")]) == [2, 3]
    assert traces.divided([*world(1, 1, "a", fingerprint="f"), *world(1, 1, "b", fingerprint="g")]) == [1]


def test_traces_are_read_in_order_of_time_without_torn_lines(tmp_path: Path) -> None:
    (tmp_path / "h-1").write_text("2.0 2 0 1 aa\n3.0 2 0 2 bb\n4.0 2 0")
    (tmp_path / "h-2").write_text("1.5 2 1 1 aa\n")
    assert [(step.mono, step.process) for step in traces.read(tmp_path)] == [(1.5, "h-2"), (2.0, "h-1"), (3.0, "h-1")]

"""What is counted from the events of the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_elastic_ext.launcher.metrics.tally import Tally


def counted(*events: tuple[str, Mapping[str, Any]]) -> dict[str, dict[tuple[str, ...], float]]:
    tally = Tally(lambda: 1000.0)
    for event, fields in events:
        tally.note(event, fields)
    return {figure.name: dict(figure.samples) for figure in tally.figures()}


def test_worlds_downtime_and_lost_steps_are_split_by_cause() -> None:
    found = counted(
        ("resized", {"cause": "start", "downtime_s": None, "steps_lost": None}),
        ("resized", {"cause": "hosts added", "downtime_s": 0.25, "steps_lost": 0}),
        ("resized", {"cause": "hosts failed", "downtime_s": 2.0, "steps_lost": 3}),
        ("resized", {"cause": "hosts failed", "downtime_s": 1.0, "steps_lost": 4}),
    )
    assert found["worlds"] == {("start",): 1, ("hosts added",): 1, ("hosts failed",): 2}
    assert found["downtime_seconds"] == {("start",): 0, ("hosts added",): 0.25, ("hosts failed",): 3.0}
    assert found["lost_steps"] == {("start",): 0, ("hosts added",): 0, ("hosts failed",): 7}


def test_what_has_not_happened_yet_is_0_so_that_its_first_time_is_an_increase() -> None:
    found = counted()
    assert found["checkpoints"] == found["sleeps"] == found["restarts_from_scratch"] == {(): 0}
    assert "checkpoint_step" not in found


def test_the_newest_checkpoint_is_told_with_its_time() -> None:
    found = counted(
        ("sealed", {"step": 10, "seconds": 1.5, "bytes": 100}), ("sealed", {"step": 20, "seconds": 2.5, "bytes": 200})
    )
    assert found["checkpoint_step"] == {(): 20}
    assert found["checkpoint_timestamp_seconds"] == {(): 1000}
    assert (found["checkpoints"], found["checkpoint_seconds"]) == ({(): 2}, {(): 4})
    assert found["checkpoint_bytes"] == {(): 300}


def test_a_job_is_named_with_its_run() -> None:
    found = counted(("started", {"job": "digits", "run": "r1", "version": "0.1.0", "pid": 7}))
    assert found["job_info"] == {("digits", "r1", "0.1.0"): 1}

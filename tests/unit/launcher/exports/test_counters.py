"""Counters from the events of the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvd_elastic_ext.core.events import RESIZES
from hvd_elastic_ext.launcher.exports.prometheus import Counters
from hvd_elastic_ext.launcher.health.causes import Cause
from tests.support.clock import ManualClock


def counted(*events: tuple[str, Mapping[str, Any]]) -> dict[str, dict[tuple[str, ...], float]]:
    counters = Counters(lambda: 1000.0, lambda: 0.0)
    for event, fields in events:
        counters.note(event, fields)
    return {figure.name: dict(figure.samples) for figure in counters.metrics()}


def test_worlds_downtime_and_lost_steps_are_split_by_cause() -> None:
    found = counted(
        ("resized", {"cause": "start", "downtime_s": None, "steps_lost": None}),
        ("resized", {"cause": "hosts added", "downtime_s": 0.25, "steps_lost": 0}),
        ("resized", {"cause": "worker failed", "downtime_s": 2.0, "steps_lost": 3}),
        ("resized", {"cause": "worker failed", "downtime_s": 1.0, "steps_lost": 4}),
    )
    other = dict.fromkeys([(cause,) for cause in RESIZES], 0)
    assert found["worlds"] == {**other, ("start",): 1, ("hosts added",): 1, ("worker failed",): 2}
    assert found["downtime_seconds"] == {**other, ("hosts added",): 0.25, ("worker failed",): 3.0}
    assert found["lost_steps"] == {**other, ("worker failed",): 7}


def test_what_has_not_happened_yet_is_0_so_that_its_first_time_is_an_increase() -> None:
    found = counted()
    assert found["strikes"] == found["process_exits"] == dict.fromkeys([(str(cause),) for cause in Cause], 0)
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


def test_commits_are_counted_by_their_numbers_as_not_each_is_told() -> None:
    numbers = (5, 6, 9, 7, 8)
    assert counted(*[("committed", {"number": number}) for number in numbers])["commits"] == {(): 1 + 1 + 3 + 1 + 1}


def test_goodput_and_the_time_of_steps_done_again_are_told_from_the_first_step_on() -> None:
    clock = ManualClock(mono=0.0)
    counters = Counters(clock.wall, clock.mono)

    def told() -> dict[str, dict[tuple[str, ...], float]]:
        return {figure.name: dict(figure.samples) for figure in counters.metrics()}

    counters.note("published", {"hosts": {"a": 2}, "departing": []})
    assert "goodput_ratio" not in told()
    for step in (1, 101):
        clock.advance(10.0)
        counters.note("stepped", {"step": step, "size": 2, "rank": 0})
    assert told()["goodput_ratio"] == {(): pytest.approx(10 / 20)}
    counters.note("resized", {"cause": "worker failed", "downtime_s": 0.0, "steps_lost": 50})
    assert told()["redone_seconds"] == {**dict.fromkeys([(cause,) for cause in RESIZES], 0), ("worker failed",): 5}

"""The share of time in which training makes progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvd_elastic_ext.launcher.metrics.goodput import Goodput

Event = tuple[float, str, Mapping[str, Any]]


def stepped(at: float, step: int) -> Event:
    return at, "stepped", {"step": step}


def resized(at: float, cause: str, downtime_s: float | None, steps_lost: int | None = 0) -> Event:
    return at, "resized", {"cause": cause, "downtime_s": downtime_s, "steps_lost": steps_lost}


def after(*events: Event) -> Goodput:
    goodput = Goodput(0.0)
    for at, event, fields in events:
        goodput.note(event, fields, at)
    return goodput


START = resized(9.0, "start", None, None)


def test_the_start_is_no_training_and_nothing_is_said_before_the_first_step() -> None:
    assert after(START).ratio(10.0) is None
    assert after(START, stepped(10.0, 1), stepped(20.0, 101)).ratio(20.0) == pytest.approx(0.5)


def test_a_pause_and_the_steps_that_are_done_again_count_with_the_cause_of_the_new_world() -> None:
    steps = (stepped(10.0, 0), stepped(20.0, 100))
    goodput = after(START, *steps, resized(25.0, "worker failed", 5.0, 20), stepped(25.0, 81), stepped(35.0, 181))
    assert goodput.redone_s == {"start": 0, "worker failed": pytest.approx(2.0)}
    assert goodput.ratio(40.0) == pytest.approx((35 - 10 - 5 - 2) / 40)


def test_the_pause_of_a_resize_makes_no_step_look_slow() -> None:
    steps = (stepped(10.0, 0), stepped(11.0, 10), resized(41.0, "hosts added", 30.0), stepped(41.0, 11))
    more = (stepped(42.0, 21), resized(43.0, "worker failed", 1.0, 10), stepped(43.0, 12))
    assert after(START, *steps, *more).redone_s["worker failed"] == pytest.approx(1.0)


def test_an_outage_counts_while_it_lasts() -> None:
    goodput = after(START, stepped(10.0, 0), stepped(20.0, 100))
    assert goodput.ratio(20.0) == pytest.approx(0.5)
    assert goodput.ratio(100.0) == pytest.approx(0.1)


def test_a_sleep_and_the_start_after_it_are_no_training() -> None:
    first = (stepped(10.0, 0), stepped(20.0, 100), (21.0, "slept", {}))
    second = (resized(79.0, "start", None, None), stepped(80.0, 101), stepped(90.0, 201))
    assert after(START, *first, *second).ratio(100.0) == pytest.approx(0.2)


def test_training_that_starts_from_scratch_has_lost_what_it_had() -> None:
    begun = (stepped(10.0, 0), stepped(20.0, 100), (21.0, "training_restarted", {"steps_lost": 100}))
    goodput = after(START, *begun, resized(29.0, "start", None, None), stepped(30.0, 1), stepped(40.0, 101))
    assert goodput.ratio(40.0) == pytest.approx(0.25)


def test_what_is_not_known_of_a_step_or_a_loss_is_taken_for_nothing() -> None:
    goodput = after(START, (9.0, "stepped", {}), stepped(10.0, 0), stepped(20.0, 100))
    goodput.note("resized", {"cause": "worker failed", "downtime_s": None, "steps_lost": None}, 25.0)
    assert goodput.ratio(40.0) == pytest.approx(0.25)

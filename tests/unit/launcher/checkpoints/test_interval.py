"""How often checkpoints are sealed and commits are done, by their costs and by failures."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.checkpoints.interval import (
    DECAY_FACTOR,
    EVERY_S,
    MAX_LOST_S,
    MAX_S,
    MAX_SAMPLES,
    MAX_SHARE,
    MIN_S,
    TOLERANCE,
    UNMEASURED,
    WRITES,
    Failures,
    Rate,
    SealCost,
    best_interval,
    checkpoint_interval,
    commit_every,
)

COSTS = st.floats(0.0, 1e4)
SECONDS = st.floats(1e-3, 1e5)
RATES = st.floats(1e-9, 10.0).map(Rate)
SEALS = st.builds(SealCost, COSTS, st.floats(0.0, 1e4), st.floats(0.0, 2.0))
HOUR = Rate(1 / 3600.0)
A_BIT: float = 1 + 1e-9
"""More than an error of rounding."""


def kept(interval: float, cost: float, rate: float) -> float:
    """The share of the time that is kept, without the factor that does not depend on the interval."""
    return (interval - cost) / math.expm1(rate * interval)


# --- the best interval


@given(st.floats(1e-4, 100.0), st.floats(1e-6, 0.05), st.floats(0.5, 2.0))
def test_no_other_interval_keeps_more_of_the_time(cost: float, rate: float, other: float) -> None:
    best = best_interval(cost, rate)
    assert best > cost
    assert kept(best, cost, rate) * (1 + 1e-6) >= kept(max(cost, best * other), cost, rate)


def test_with_rare_failures_it_is_youngs_and_a_bit() -> None:
    assert best_interval(1.0, 1e-6) == pytest.approx(math.sqrt(2.0 / 1e-6), rel=1e-3)


@pytest.mark.parametrize("load", [0.001, 0.01, 0.1])
def test_it_is_what_dalys_series_comes_to(load: float) -> None:
    """Daly's interval does not include the time of the copy. Here the interval is from start to start."""
    root = math.sqrt(load / 2.0)
    series = math.sqrt(2.0 * load) * (1.0 + root / 3.0 + root * root / 9.0)
    assert best_interval(load, 1.0) == pytest.approx(series, rel=2e-3)


def test_what_costs_nothing_is_done_always_and_where_nothing_fails_it_is_done_never() -> None:
    assert best_interval(0.0, 0.1) == 0.0
    assert best_interval(1.0, 0.0) == math.inf


@given(st.floats(1e-12, 1e3), st.floats(1.0, 1e3))
def test_it_has_no_jump_from_the_series_to_the_exact_form(load: float, more: float) -> None:
    assert best_interval(load, 1.0) <= best_interval(load * more, 1.0) * A_BIT


# --- the interval of checkpoints


@given(SEALS, RATES, st.floats(1.0, 1e4))
def test_more_failures_never_make_it_longer(seal: SealCost, rate: Rate, more: float) -> None:
    often = checkpoint_interval([seal], Rate(rate.per_s * more))
    assert often.seconds <= checkpoint_interval([seal], rate).seconds * A_BIT


@given(SEALS, RATES, st.floats(1.0, 1e3))
def test_a_dearer_seal_never_makes_it_shorter(seal: SealCost, rate: Rate, more: float) -> None:
    cheap = checkpoint_interval([seal], rate).seconds
    for dear in (
        SealCost(seal.stall_s * more, seal.durable_s, seal.slowed),
        SealCost(seal.stall_s, seal.durable_s * more, seal.slowed),
        SealCost(seal.stall_s, seal.durable_s, seal.slowed * more),
    ):
        assert checkpoint_interval([dear], rate).seconds * A_BIT >= cheap


@given(st.lists(SEALS, min_size=1, max_size=20), RATES)
def test_it_is_within_its_bounds_whatever_was_measured(seals: list[SealCost], rate: Rate) -> None:
    choice = checkpoint_interval(seals, rate)
    slowest = max(seal.durable_s for seal in seals)
    assert MIN_S <= choice.seconds <= max(MAX_S, WRITES * slowest)


@given(SEALS, RATES)
def test_two_seals_never_write_at_the_same_time(seal: SealCost, rate: Rate) -> None:
    assert checkpoint_interval([seal], rate).seconds >= WRITES * seal.durable_s


def test_the_writing_time_decides_only_where_it_is_in_the_way() -> None:
    quick, slow = (checkpoint_interval([SealCost(1.0, durable)], HOUR) for durable in (1.0, 30.0))
    assert quick.seconds == slow.seconds
    assert checkpoint_interval([SealCost(1.0, 120.0)], HOUR).seconds == 240.0


def test_before_anything_is_measured_the_first_seal_comes_soon() -> None:
    assert checkpoint_interval([], HOUR) is UNMEASURED
    first = checkpoint_interval([SealCost(0.4, 3.0)], HOUR, before=UNMEASURED)
    assert first.seconds == pytest.approx(best_interval(0.4, 1 / 3600.0))
    assert "no checkpoint" not in first.reason


def test_a_choice_stands_while_the_best_is_close_to_it_and_is_said_once() -> None:
    first = checkpoint_interval([SealCost(1.0, 3.0)], HOUR)
    near = first.seconds * (TOLERANCE - 0.01)
    assert checkpoint_interval([SealCost(1.0 * (TOLERANCE - 0.01) ** 2, 3.0)], HOUR, before=first) is first
    assert checkpoint_interval([SealCost(1.0 / (TOLERANCE - 0.01) ** 2, 3.0)], HOUR, before=first) is first
    moved = checkpoint_interval([SealCost(1.0 * (TOLERANCE + 0.05) ** 2, 3.0)], HOUR, before=first)
    assert moved.seconds > near


@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=30))
def test_measurements_that_waver_by_a_tenth_change_nothing(wavering: list[float]) -> None:
    first = choice = checkpoint_interval([SealCost(1.0, 10.0)], HOUR)
    for number in range(len(wavering)):
        seals = [SealCost(by, 10.0 * by) for by in wavering[: number + 1]]
        choice = checkpoint_interval(seals, HOUR, before=choice)
    assert choice is first


def test_one_slow_write_is_taken_for_chance_and_storage_that_became_slow_is_not() -> None:
    good, bad = [SealCost(1.0, 10.0)] * MAX_SAMPLES, SealCost(40.0, 600.0)
    first = checkpoint_interval(good, HOUR)
    assert checkpoint_interval([*good, bad], HOUR, before=first) is first
    assert checkpoint_interval([*good, *[bad] * MAX_SAMPLES], HOUR, before=first).seconds == 1200.0


def test_the_reason_says_what_it_goes_by() -> None:
    said = checkpoint_interval([SealCost(0.5, 10.0, slowed=0.05)], Rate(1 / 3600.0, seen=7)).reason
    assert said == (
        "a checkpoint costs 1 s and is durable after 10 s; "
        "a loss of all commits in memory is expected every 1h (7 seen)"
    )
    said = checkpoint_interval([SealCost(0.5, 60.0)], HOUR).reason
    assert said.endswith(
        "s; no loss of all commits in memory yet, one every 1h is assumed; every 60.2 s would be best, and 2 × that "
        "is the least"
    )
    said = checkpoint_interval([SealCost(0.0, 1.0)], Failures().rate()).reason
    assert said.endswith(" is assumed; every 0 s would be best, and 10 s is the least")
    said = checkpoint_interval([SealCost(5000.0, 1.0)], HOUR).reason
    assert said.endswith("; 3.6e+03 s is the most")


# --- commits


STEPS = st.floats(1e-4, 1e3)


@given(SECONDS, STEPS, RATES, st.floats(1.0, 1e3))
def test_more_failures_never_make_commits_fewer(commit: float, step: float, rate: Rate, more: float) -> None:
    often = commit_every([commit], step, Rate(rate.per_s * more))
    assert often.steps <= commit_every([commit], step, rate).steps


@given(SECONDS, STEPS, RATES, st.floats(1.01, 1e3))
def test_dearer_commits_are_never_done_more_often(commit: float, step: float, rate: Rate, more: float) -> None:
    assert commit_every([commit * more], step, rate).steps >= commit_every([commit], step, rate).steps


@given(SECONDS, STEPS, RATES)
def test_what_lies_between_two_commits_is_bounded(commit: float, step: float, rate: Rate) -> None:
    interval = commit_every([commit], step, rate)
    assert interval.steps == 1 or interval.steps * step <= max(MAX_LOST_S, commit / MAX_SHARE) * A_BIT


@given(SECONDS, STEPS)
@example(3.0, 31.0)
def test_where_failures_are_rare_commits_take_little_of_the_time(commit: float, step: float) -> None:
    interval = commit_every([commit], step, Rate(1e-12))
    most = max(MAX_LOST_S, commit / MAX_SHARE)
    between = max(step, most - step)  # whole steps: a part of one is left of the time that may lie between two commits
    assert commit / (interval.steps * step) <= MAX_SHARE * most / between * A_BIT


def test_commits_that_cost_next_to_nothing_are_all_done() -> None:
    assert commit_every([0.002], 0.2, Rate(1e-9)).steps == 1


def test_commits_are_no_rarer_than_for_a_percent_of_the_time() -> None:
    interval = commit_every([0.065], 0.2, Rate(1 / 86400.0, seen=3))
    assert interval.steps == 33
    assert interval.reason == (
        "a commit takes 0.065 s and a step 0.2 s; a failure is expected every 1d (3 seen); so commits take 0.98 % of "
        "the time"
    )


def test_many_failures_are_worth_more_than_a_percent() -> None:
    assert commit_every([0.065], 0.2, Rate(1 / 60.0)).steps == 13


def test_what_was_not_measured_thins_nothing() -> None:
    assert commit_every([], 0.2, HOUR).steps == 1
    assert commit_every([0.1], 0.0, HOUR).steps == 1


def test_an_interval_stays_while_the_best_is_close_to_it() -> None:
    first = commit_every([0.065], 0.2, HOUR)
    assert commit_every([0.060], 0.2, HOUR, before=first) is first
    assert commit_every([0.090], 0.2, HOUR, before=first).steps > first.steps


# --- the estimate of failures


def test_nothing_seen_leaves_what_was_expected() -> None:
    assert Failures().rate().every_s == pytest.approx(EVERY_S)
    assert Failures().rate(units=8).every_s == pytest.approx(EVERY_S / 8)


def test_quiet_hours_make_failures_seem_rarer() -> None:
    quiet = Failures().watched(100 * 3600.0)
    assert quiet.rate().every_s > 100 * 3600.0
    assert Failures().watched(25 * 3600.0, units=4) == quiet


def test_a_clock_that_seems_to_go_back_takes_nothing_away() -> None:
    assert Failures().watched(-5.0) == Failures()


@pytest.mark.parametrize("every_s", [600.0, 3600.0, 28800.0, 7 * 86400.0])
def test_what_happens_evenly_is_found_out_whatever_was_expected(every_s: float) -> None:
    belief = Failures()
    for _ in range(20):
        belief = belief.watched(every_s).failed()
    assert belief.rate().every_s == pytest.approx(every_s, rel=0.3)
    assert belief.seen == 20


def test_a_few_failures_tell_what_an_hour_of_them_would() -> None:
    belief = Failures()
    for _ in range(4):
        belief = belief.watched(600.0).failed()
    assert belief.rate().every_s < EVERY_S / 10


def test_what_was_seen_long_ago_is_forgotten_by_failures_not_by_hours() -> None:
    def drifted(first: float, then: float) -> float:
        belief = Failures()
        for gap in (*[first] * 50, *[then] * 25):
            belief = belief.watched(gap).failed()
        return belief.rate().every_s / then

    assert drifted(100.0, 1000.0) == pytest.approx(drifted(1000.0, 10_000.0), rel=0.05)
    assert 0.5 < drifted(28800.0, 600.0) < 3.0
    assert 0.5 < drifted(600.0, 28800.0) < 1.2


def test_a_belief_outlives_its_launcher() -> None:
    belief = Failures().watched(600.0).failed().watched(700.0).failed()
    assert Failures.of(json.loads(json.dumps(belief.to_json()))) == belief


@pytest.mark.parametrize("told", [None, [], "x", {}, {"count": 1.0}, {"count": -1, "exposure_s": 1, "seen": 1}])
@pytest.mark.parametrize("more", [{}, {"exposure_s": "1"}, {"exposure_s": float("nan")}, {"count": True}])
def test_what_is_no_belief_is_the_prior(told: object, more: dict[str, object]) -> None:
    assert Failures.of({**told, **more} if isinstance(told, dict) else told) == Failures()


@given(st.lists(st.floats(0.0, 1e6), max_size=60))
def test_old_evidence_never_counts_for_more_than_a_few_failures(gaps: list[float]) -> None:
    belief = Failures()
    for gap in gaps:
        belief = belief.watched(gap).failed()
    assert 0.0 < belief.count <= 1.0 / (1.0 - DECAY_FACTOR) + 1e-9
    assert belief.exposure_s > 0.0

"""The simulation that rates intervals between checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases.state import checkpoint_interval
from benchmarks.goodput import Array, Failing, Fixed, Learner, World, auto, grid
from benchmarks.model import Trial
from hvd_elastic_ext.launcher.checkpoints.interval import IntervalInSeconds, Rate, SealCost, best_interval

WORLD = World(seal=SealCost(stall_s=2.0, durable_s=7.0), restart_s=30.0, horizon_s=100_000.0)


def traces(*failures: float) -> list[Array]:
    return [np.array(failures)]


def test_a_failure_costs_what_was_not_durable() -> None:
    fixed = Fixed(WORLD, traces(250.0))
    lived = 100_000.0 - 280.0
    last = lived - math.floor(lived / 100.0) * 2.0
    assert fixed.goodput(100.0) * 100_000.0 == pytest.approx(
        198.0 + last
    )  # the second seal began after 198 s of training
    late = Fixed(WORLD, traces(206.0))  # it takes until 207 to be durable
    lived = 100_000.0 - 236.0
    assert late.goodput(100.0) * 100_000.0 == pytest.approx(100.0 + lived - math.floor(lived / 100.0) * 2.0)


def test_a_failure_within_a_restart_makes_it_longer() -> None:
    lived = 100_000.0 - 40.0
    last = lived - math.floor(lived / 100.0) * 2.0
    assert Fixed(WORLD, traces(5.0, 10.0)).goodput(100.0) * 100_000.0 == pytest.approx(last)


@pytest.mark.parametrize("seconds", [10.0, 47.0, 333.0])
def test_a_learner_that_learns_nothing_keeps_what_a_fixed_interval_keeps(seconds: float) -> None:
    """Two computations of one figure: all lives at once, and checkpoint by checkpoint."""

    def choose(seals: Sequence[SealCost], rate: Rate, *, before: IntervalInSeconds | None = None) -> IntervalInSeconds:
        return before or IntervalInSeconds(seconds, "told")

    found = Failing(900.0).traces(WORLD, 20, seed=1)
    kept = sum(Learner(WORLD, np.random.default_rng(1), choose).run(trace) for trace in found)
    assert kept / (20 * WORLD.horizon_s) == pytest.approx(Fixed(WORLD, found).goodput(seconds), rel=1e-9)


@pytest.mark.parametrize(("restart", "durable"), [(0.0, 2.0), (30.0, 7.0), (400.0, 20.0)])
def test_the_best_fixed_interval_agrees_with_the_formula(restart: float, durable: float) -> None:
    world = World(seal=SealCost(2.0, durable), restart_s=restart, horizon_s=1e6)
    fixed = Fixed(world, Failing(900.0).traces(world, 60, seed=2))
    best = max(fixed.goodput(seconds) for seconds in grid(world))
    assert fixed.goodput(best_interval(2.0, 1 / 900.0)) == pytest.approx(best, rel=2e-3)


def test_traces_are_reproducible_and_have_the_wanted_rate() -> None:
    world = World(horizon_s=1e6)
    one, other = (Failing(1000.0, shape=0.6).traces(world, 20, seed=3) for _ in range(2))
    assert all(np.array_equal(mine, yours) for mine, yours in zip(one, other, strict=True))
    assert sum(map(len, one)) == pytest.approx(20_000, rel=0.1)
    fewer = Failing(1000.0, 100_000.0).traces(world, 20, seed=3)
    early = sum(int(np.sum(trace < 5e5)) for trace in fewer)
    assert early > 5 * (sum(map(len, fewer)) - early) > 0


def test_the_automatic_interval_is_close_to_the_best_fixed_one() -> None:
    """The bar of the benchmark, on fewer jobs."""
    for mean in (600.0, 3600.0):
        found = Failing(mean).traces(World(), 8, seed=4)
        fixed = Fixed(World(), found)
        best = max(fixed.goodput(seconds) for seconds in grid(World(), step=1.1))
        assert auto(World(), found, seed=4) >= 0.97 * best


def test_the_case_fills_all_its_lines(tmp_path: Path) -> None:
    values = checkpoint_interval.measure(Trial("ours", 0, tmp_path, quick=True))
    assert values.keys() == {figure.quantity for figure in checkpoint_interval.CASE.figures}

"""What is known of the speed at each size, from the steps that were seen."""

from __future__ import annotations

import random

import pytest

from hvd_elastic_ext.launcher.scaling.observations import ENOUGH, STEPS, SpeedLog


def noisy(step_s: float, count: int, *, noise: float = 0.1, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [step_s * chance.lognormvariate(0.0, noise) for _ in range(count)]


def test_a_size_is_measured_by_the_median_of_its_steps_and_says_how_sure_that_is() -> None:
    few, many = (SpeedLog().seen(2, noisy(0.5, count)).speeds()[2] for count in (STEPS, ENOUGH))
    assert few.measured
    assert not few.final
    assert many.final
    assert many.step_s == pytest.approx(0.5, rel=0.03)
    assert 0.004 < many.error < few.error < 0.1


def test_noise_that_lasts_for_some_steps_makes_a_median_less_sure() -> None:
    slow = [0.5 * (1.2 if at // 20 % 2 else 1.0) for at in range(ENOUGH)]
    quick = [0.5 * (1.2 if at % 2 else 1.0) for at in range(ENOUGH)]
    errors = [SpeedLog().seen(2, steps).speeds()[2].error for steps in (slow, quick)]
    assert errors[0] > 0.02 > errors[1]


def test_steps_beyond_enough_change_nothing_so_what_is_decided_stays_decided() -> None:
    log = SpeedLog().seen(2, noisy(0.5, ENOUGH))
    assert log.seen(2, noisy(0.55, ENOUGH, seed=2)).speeds() == log.speeds()


def test_a_size_that_is_come_back_to_is_measured_on() -> None:
    log = SpeedLog().seen(2, noisy(0.5, 30)).seen(4, noisy(0.3, 30)).seen(2, noisy(0.5, 30, seed=3))
    assert {size: speed.steps for size, speed in log.speeds().items()} == {2: 60, 4: 30}


def test_steps_that_are_others_than_before_make_all_that_is_known_void() -> None:
    log = SpeedLog().seen(2, [0.5] * ENOUGH, [0.4] * ENOUGH).seen(4, [0.3] * 30, [0.2] * 30)
    changed = log.seen(4, [0.45] * STEPS, [0.4] * STEPS)
    assert {size: (speed.step_s, speed.busy_s) for size, speed in changed.speeds().items()} == {4: (0.45, 0.4)}
    kept = log.seen(4, [0.35] * STEPS)
    assert set(kept.speeds()) == {2, 4}

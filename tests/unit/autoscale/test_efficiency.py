"""Which size the efficiency policy wishes, by table."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.autoscale.curve import GLOBAL, HOST
from hvd_elastic_ext.autoscale.efficiency import Efficiency
from hvd_elastic_ext.autoscale.observations import STEPS, Observations, Speed, Wish


def wish(
    size: int,
    step_s: dict[int, float],
    *,
    least: int = 1,
    most: int = 32,
    share: float = 0.5,
    batch: str = HOST,
    **more: float,
) -> Wish:
    speeds = {n: Speed(seconds, STEPS) for n, seconds in step_s.items()}
    seen = Observations(size, size, speeds, more)
    return Efficiency(share, batch, noise=bool(more)).wish(0.0, seen, least, most)


def test_a_size_is_kept_until_enough_of_its_steps_are_measured() -> None:
    few = Observations(2, 2, {2: Speed(0.1, STEPS - 1)})
    assert Efficiency().wish(0.0, few, 1, 8) == Wish(2, f"{STEPS - 1} of {STEPS} steps measured at 2 hosts")
    assert Efficiency().wish(0.0, Observations(2, 2), 1, 8).size == 2


@pytest.mark.parametrize(
    ("size", "least", "most", "next_size"),
    [(1, 1, 8, 2), (3, 1, 8, 6), (8, 1, 8, 4), (1, 1, 1, 1), (3, 2, 3, 2)],
    ids=["up", "up by its own size", "down where no more are allowed", "the only size", "down to the least"],
)
def test_with_one_size_measured_a_second_one_is_tried(size: int, least: int, most: int, next_size: int) -> None:
    found = wish(size, {size: 0.2}, least=least, most=most)
    assert (found.size, found.trial) == (next_size, next_size != size)


def test_hosts_that_add_their_whole_speed_are_wanted_as_far_as_was_nearly_measured() -> None:
    found = wish(2, {1: 0.2, 2: 0.2})
    assert (found.size, found.trial) == (8, True)
    assert "adds 100%" in found.reason


def test_a_host_that_adds_less_than_its_share_is_given_back() -> None:
    found = wish(4, {1: 1.0, 2: 0.75, 4: 0.625}, batch=GLOBAL)  # half of a step is serial
    assert found.size == 1
    assert "less than 50%" in found.reason
    assert wish(4, {1: 1.0, 2: 0.75, 4: 0.625}, batch=GLOBAL, share=0.1).size == 4


def test_a_gain_within_the_noise_is_no_reason_to_change() -> None:
    steps = {n: 0.2 + 0.0128 * (n - 1) for n in (2, 4, 8)}
    best = wish(8, steps).size
    assert wish(best, steps).size == best
    assert wish(best + 1, {**steps, best + 1: 0.2 + 0.0128 * best}).size == best + 1


def test_noise_in_the_gradient_counts_only_where_it_is_asked_for() -> None:
    steps = {1: 0.2, 2: 0.2, 4: 0.2, 8: 0.2}
    assert wish(8, steps).size == 32
    assert wish(8, steps, noise_scale=4.0).size < 8


def test_the_time_without_waits_tells_how_fast_one_host_is_without_a_trial_of_that() -> None:
    speeds = {n: Speed(0.2 + 0.3 * (n - 1) / n, STEPS, busy_s=0.2) for n in (4, 8)}
    assert Efficiency().wish(0.0, Observations(8, 8, speeds), 1, 32).size == 1

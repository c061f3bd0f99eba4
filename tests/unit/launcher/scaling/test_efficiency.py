"""Which size the efficiency policy wishes, by table."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.scaling.curve import GLOBAL, HOST, fit
from hvd_elastic_ext.launcher.scaling.efficiency import Efficiency
from hvd_elastic_ext.launcher.scaling.observations import ENOUGH, STEPS, Observations, Speed, Wish


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
    [(1, 1, 8, 2), (3, 1, 8, 2), (8, 1, 8, 4), (3, 3, 8, 6), (1, 1, 1, 1), (3, 2, 3, 2)],
    ids=["up where fewer are not possible", "half", "half of all", "up by its own size", "the only size", "the least"],
)
def test_with_one_size_measured_a_second_one_is_tried(size: int, least: int, most: int, next_size: int) -> None:
    found = wish(size, {size: 0.2}, least=least, most=most)
    assert (found.size, found.trial) == (next_size, next_size != size)


def test_hosts_that_add_their_whole_speed_are_wanted_as_far_as_was_nearly_measured() -> None:
    found = wish(2, {1: 0.2, 2: 0.2})
    assert (found.size, found.trial) == (8, True)
    assert "is estimated to add 100%" in found.reason


def test_what_a_host_adds_is_an_estimate_until_the_sizes_of_the_comparison_are_measured() -> None:
    seen = Observations(2, 2, {2: Speed(0.25, STEPS, busy_s=0.12)})  # on a busy machine; 1 host was never measured
    found = Efficiency().wish(0.0, seen, 1, 2)
    assert (found.size, found.trial) == (1, True)
    assert found.reason == "host 2 is estimated to add 0% of one host's own speed, less than 50%"
    measured = wish(2, {1: 0.1, 2: 0.2})
    assert (measured.size, measured.trial) == (1, False)
    assert measured.reason == "host 2 adds 0% of one host's own speed, less than 50%"


def test_a_size_is_not_called_best_if_a_larger_one_is_only_not_allowed() -> None:
    speeds = {1: 1 / 9.7, 2: 1 / 8.4}
    assert wish(1, speeds, most=1).reason == "one host alone; more than 1 host would be better, and is not allowed"
    assert wish(2, {1: 0.1, 2: 0.13, 4: 0.5}, most=2).reason.endswith("; 2 hosts are best")


def test_a_host_that_adds_less_than_its_share_is_given_back() -> None:
    found = wish(4, {1: 1.0, 2: 0.75, 4: 0.625}, batch=GLOBAL)  # half of a step is serial
    assert found.size == 1
    assert "less than 50%" in found.reason
    assert wish(4, {1: 1.0, 2: 0.75, 4: 0.625}, batch=GLOBAL, share=0.1).size == 4


STEP_S = {n: 0.2 + 0.0128 * (n - 1) for n in (4, 6, 7, 12)}
"""Seven hosts are best for these, and six nearly as good."""


def of_noise(size: int, error: float, steps: int, *, at: dict[int, float] = STEP_S) -> Wish:
    known = {n: Speed(step_s, ENOUGH if n != size else steps, error=error) for n, step_s in at.items()}
    return Efficiency().wish(0.0, Observations(size, size, known), 1, 32)


def test_a_gain_within_the_noise_is_waited_for_until_more_steps_would_tell_no_more() -> None:
    assert of_noise(12, 0.001, STEPS).size == 7
    doubtful = of_noise(12, 0.05, STEPS)
    assert (doubtful.size, doubtful.reason) == (
        12,
        f"{STEPS} of {ENOUGH} steps measured at 12 hosts: not sure yet that 7 hosts are better",
    )
    decided = of_noise(12, 0.05, ENOUGH)
    assert (decided.size, decided.trial) == (12, False)
    assert "too little to be seen" in decided.reason


def test_a_difference_that_is_hardly_one_is_no_reason_to_change() -> None:
    assert of_noise(6, 0.0, STEPS).size == 6
    assert of_noise(7, 0.0, STEPS).size == 7


def test_two_sizes_do_not_tell_what_a_step_is_made_of_so_a_third_one_is_tried() -> None:
    steps = {n: 0.2 + 0.0263 * (n - 1) for n in (1, 8)}  # what a ring costs, or what each further host costs
    found = wish(1, steps)
    assert (found.size, found.trial) == (3, True)
    assert wish(3, {**steps, 3: 0.2 + 0.0263 * 2}).size == 3


def test_a_cliff_between_two_sizes_is_looked_for_halfway() -> None:
    steps = {1: 0.2, 2: 0.22, 4: 0.23, 16: 0.8}  # more than eight hosts share a slow link
    found = wish(4, steps)
    assert (found.size, found.trial) == (8, True)
    assert wish(8, {**steps, 8: 0.235}).size == 11
    assert wish(8, {**steps, 8: 0.235, 11: 0.7, 9: 0.65}).size == 8


def in_racks_of_twelve(*sizes: int) -> dict[int, float]:
    """Beyond a rack the link is half as fast: less than what a curve through all sizes smoothes over."""
    return {n: 0.25 + 0.1 * (n - 1) / n * (2.0 if n > 12 else 1.0) for n in sizes}


def test_a_cliff_that_the_curve_of_all_sizes_smoothes_over_is_looked_for_too() -> None:
    found = wish(9, in_racks_of_twelve(1, 8, 9, 16))
    assert (found.size, found.trial) == (12, True)
    assert found.reason == "steps at 16 hosts are longer than predicted from fewer hosts"


def test_a_job_behind_a_cliff_looks_for_what_lies_before_it() -> None:
    at = in_racks_of_twelve(1, 2, 8, 32)  # 32 hosts are worth more than 8, and 12 more than both
    found = of_noise(32, 0.003, ENOUGH, at={**at, 22: in_racks_of_twelve(22)[22]})
    assert (found.size, found.trial) == (13, True)
    assert found.reason == "steps at 22 hosts are longer than predicted from fewer hosts"
    before = of_noise(13, 0.003, ENOUGH, at=in_racks_of_twelve(1, 2, 8, 13, 22, 32))
    assert (before.size, before.trial) == (10, True), "not the way back to 32 at first"
    assert before.otherwise is not None
    assert (before.otherwise.size, before.otherwise.trial) == (32, False)
    assert of_noise(12, 0.003, ENOUGH, at=in_racks_of_twelve(1, 2, 8, 10, 12, 13, 32)).size == 12


@pytest.mark.parametrize("size", [1, 2, 4])
def test_three_sizes_of_which_no_curve_has_the_form_do_not_send_a_job_to_and_fro(size: int) -> None:
    steps = {1: 0.53, 2: 0.136, 4: 0.42}
    assert wish(size, steps, batch=GLOBAL, share=0.13, most=4).size in (2, 3)


def test_where_no_curve_has_the_form_more_hosts_are_tried_while_the_last_ones_have_paid() -> None:
    steps = {1: 1.4, 2: 0.725, 4: 0.275}  # memory is short below three hosts
    found = wish(4, steps, batch=GLOBAL)
    assert (found.size, found.trial, found.reason) == (8, True, "each of the last hosts up to 4 has paid")
    assert wish(4, steps, batch=GLOBAL, most=4).size == 4
    assert wish(4, {1: 0.53, 2: 0.136, 4: 0.134}, batch=GLOBAL).size == 2


def test_a_size_beyond_a_cliff_is_left_for_the_best_one_that_was_measured() -> None:
    steps = {1: 0.2, 2: 0.22, 8: 0.235, 9: 0.486, 11: 0.487, 16: 0.49}
    found = of_noise(11, 0.003, ENOUGH, at=steps)
    assert (found.size, found.trial) == (8, False)
    del steps[9]
    found = of_noise(11, 0.003, ENOUGH, at=steps)
    assert (found.size, found.trial) == (9, True)
    assert found.otherwise is not None
    assert found.otherwise.size == 8


@pytest.mark.parametrize("at", [2, 4])
def test_what_was_measured_counts_where_steps_have_another_form(at: int) -> None:
    curve = fit({n: Speed(0.5 if n > at else 0.2, ENOUGH, error=0.005) for n in (1, 2, 4, 8, 16)}, HOST)
    assert curve.off > 0.1
    assert curve.step_s(at) == pytest.approx(0.2, rel=0.02)
    assert curve.step_s(2 * at) == pytest.approx(0.5, rel=0.02)


def test_noise_in_the_gradient_counts_only_where_it_is_asked_for() -> None:
    steps = {1: 0.2, 2: 0.2, 4: 0.2, 8: 0.2}
    assert wish(8, steps).size == 32
    assert wish(8, steps, noise_scale=4.0).size < 8


def test_the_time_without_waits_tells_how_fast_one_host_is_without_a_trial_of_that() -> None:
    speeds = {n: Speed(0.2 + 0.3 * (n - 1) / n, STEPS, busy_s=0.2) for n in (4, 8)}
    assert Efficiency().wish(0.0, Observations(8, 8, speeds), 1, 32).size == 1

"""Curves of step times from the sizes that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.scaling.curve import GLOBAL, HOST, TERMS, fit
from hvd_elastic_ext.launcher.scaling.observations import STEPS, Speed


def measured(**step_s: float) -> dict[int, Speed]:
    return {int(size[1:]): Speed(seconds, STEPS) for size, seconds in step_s.items()}


def test_one_size_tells_the_most_hopeful_curve_in_which_each_host_adds_its_whole_speed() -> None:
    shared = fit(measured(n4=2.0), GLOBAL)
    assert shared.step_s(4) == pytest.approx(2.0)
    assert shared.rate(8) == pytest.approx(2 * shared.rate(4))
    alone = fit(measured(n4=2.0), HOST)
    assert alone.step_s(32) == pytest.approx(2.0)
    assert alone.rate(8) == pytest.approx(2 * alone.rate(4))


def test_two_sizes_tell_amdahls_law() -> None:
    curve = fit(measured(n1=1.0, n2=0.6), GLOBAL)
    assert curve.weights == pytest.approx((0.2, 0.8, 0.0))
    assert curve.rate(1000) == pytest.approx(5.0, rel=0.01)


def test_three_sizes_tell_what_each_further_host_costs() -> None:
    curve = fit(measured(n1=0.2, n2=0.3, n4=0.45), HOST)
    assert [curve.step_s(n) for n in (1, 2, 4)] == pytest.approx([0.2, 0.3, 0.45])


def test_steps_that_get_faster_with_more_hosts_than_can_be_give_no_negative_part() -> None:
    curve = fit(measured(n1=1.0, n2=0.4, n4=0.15), GLOBAL)
    assert all(weight >= 0 for weight in curve.weights)
    assert curve.step_s(64) > 0


def test_a_gradient_noise_scale_makes_samples_of_large_batches_worth_less() -> None:
    plain, noisy = fit(measured(n1=0.2), HOST), fit(measured(n1=0.2), HOST, noise_scale=4.0)
    assert noisy.rate(1) == pytest.approx(plain.rate(1))
    assert noisy.rate(4) == pytest.approx(plain.rate(4) * 5 / 8)
    assert noisy.rate(1000) < 5 * noisy.rate(1)


@given(
    batch=st.sampled_from((GLOBAL, HOST)),
    weights=st.tuples(*[st.floats(0.001, 10.0)] * 3),
    sizes=st.sets(st.integers(1, 64), min_size=3, max_size=6),
)
def test_a_curve_of_this_form_is_found_again(batch: str, weights: tuple[float, ...], sizes: set[int]) -> None:
    def step_s(n: int) -> float:
        return sum(weight * term(n) for weight, term in zip(weights, TERMS[batch], strict=True))

    curve = fit({n: Speed(step_s(n), STEPS) for n in sizes}, batch)
    assert [curve.step_s(n) for n in sizes] == pytest.approx([step_s(n) for n in sizes], rel=1e-3)


@given(
    batch=st.sampled_from((GLOBAL, HOST)),
    steps=st.dictionaries(st.integers(1, 10_000), st.floats(1e-4, 1e4), min_size=1, max_size=8),
)
def test_any_measurements_give_a_curve_without_negative_times(batch: str, steps: dict[int, float]) -> None:
    curve = fit({n: Speed(seconds, STEPS) for n, seconds in steps.items()}, batch)
    assert all(curve.step_s(n) >= 0 and curve.rate(n) >= 0 for n in (1, 2, 3, 1000))

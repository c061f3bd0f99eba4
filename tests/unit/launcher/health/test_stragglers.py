"""Processes that are slower than the others, for how long, and when one is drained for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.health.liveness import SUSTAINED, Straggler, Watch, stragglers

EVEN = {seat: [1.0] * SUSTAINED for seat in ("a", "b", "c")}


def test_a_process_that_takes_half_as_long_again_for_long_enough_is_named() -> None:
    (found,) = stragglers({**EVEN, "d": [1.6] * SUSTAINED})
    assert (found.seat, found.seconds, found.median) == ("d", 1.6, 1.0)
    assert found.text == "d takes 1.6 s a step, 1.6 × the median"


@pytest.mark.parametrize(
    "times", [[1.4] * SUSTAINED, [9.0] * (SUSTAINED - 1), [*[9.0] * (SUSTAINED - 1), 1.0], [9.0, *[1.0] * SUSTAINED]]
)
def test_slowness_that_is_slight_or_short_is_not_named(times: list[float]) -> None:
    assert stragglers({**EVEN, "d": times}) == []


def test_between_two_there_is_no_telling_who_is_slow() -> None:
    assert stragglers({"a": [1.0] * SUSTAINED, "b": [9.0] * SUSTAINED}) == []


@given(st.dictionaries(st.integers(), st.lists(st.floats(0, 100), min_size=1, max_size=2), max_size=8))
def test_never_are_half_of_them_stragglers(times: dict[int, list[float]]) -> None:
    repeated = {seat: SUSTAINED * each for seat, each in times.items()}
    assert len(stragglers(repeated)) <= len(times) / 2  # type: ignore[arg-type]


def test_each_straggler_is_reported_once_until_it_has_caught_up() -> None:
    slow = [Straggler("d", 2.0, 1.0)]
    watch, said, _ = Watch().look(slow)
    assert said == slow
    watch, said, _ = watch.look(slow)
    assert said == []
    watch, _, _ = watch.look([])
    assert watch.look(slow)[1] == slow


def test_a_straggler_is_drained_only_when_asked_one_at_a_time_and_once() -> None:
    slow = [Straggler("d", 3.0, 1.0), Straggler("e", 2.0, 1.0)]
    assert Watch().look(slow)[2] == []
    watch, _, first = Watch().look(slow, drain=True)
    watch, _, second = watch.look(slow, drain=True)
    watch, _, third = watch.look([], drain=True)
    _, _, fourth = watch.look(slow, drain=True)
    assert [first, second, third, fourth] == [["d"], ["e"], [], []]

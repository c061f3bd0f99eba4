"""Who is slower than the others; which device and local rank a slot has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.devices import device_map
from hvd_elastic_ext.launcher.stragglers import SUSTAINED, Straggler, Watch, stragglers

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


@given(st.dictionaries(st.integers(), st.lists(st.floats(0, 100), max_size=8), max_size=8))
def test_never_are_half_of_them_stragglers(times: dict[int, list[float]]) -> None:
    found = stragglers(times, sustained=3)
    assert len(found) <= len(times) / 2


def test_each_straggler_is_reported_once_until_it_has_caught_up() -> None:
    slow = [Straggler("d", 2.0, 1.0)]
    watch, said, _ = Watch[str]().look(slow)
    assert said == slow
    watch, said, _ = watch.look(slow)
    assert said == []
    watch, _, _ = watch.look([])
    assert watch.look(slow)[1] == slow


def test_a_straggler_is_drained_only_when_asked_one_at_a_time_and_once() -> None:
    slow = [Straggler("d", 3.0, 1.0), Straggler("e", 2.0, 1.0)]
    assert Watch[str]().look(slow)[2] == []
    watch, _, first = Watch[str]().look(slow, drain=True)
    watch, _, second = watch.look(slow, drain=True)
    watch, _, third = watch.look([], drain=True)
    _, _, fourth = watch.look(slow, drain=True)
    assert [first, second, third, fourth] == [["d"], ["e"], [], []]


def test_a_slot_keeps_its_device_and_local_ranks_are_dense() -> None:
    devices = [f"GPU-{n}" for n in range(8)]
    found = device_map(8, {3}, devices)
    assert list(found) == [0, 1, 2, 4, 5, 6, 7]
    assert [seating.local_rank for seating in found.values()] == list(range(7))
    assert all(seating.device == f"GPU-{slot}" for slot, seating in found.items())


def test_a_host_without_devices_gives_local_ranks_only() -> None:
    assert device_map(2, ()) == {0: (0, None), 1: (1, None)}


def test_too_few_devices_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 slots and only 1 devices"):
        device_map(2, (), ["0"])


@given(st.integers(1, 16), st.sets(st.integers(0, 20)))
def test_no_two_slots_share_a_device_or_a_local_rank(slots: int, bad: set[int]) -> None:
    found = device_map(slots, bad, [str(n) for n in range(slots)])
    assert sorted(found) == sorted(set(range(slots)) - bad)
    assert len(set(found.values())) == len(found)
    assert sorted(s.local_rank for s in found.values()) == list(range(len(found)))

"""The device of a slot, the local rank of its process, and the order in which the process sees the host's devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.messages.slot_protocol import DEVICE
from hvd_elastic_ext.launcher.membership.devices import (
    DEVICES,
    VISIBLE,
    StartedWith,
    device_env,
    devices_of,
    local_ranks,
    noted,
    shown,
)

EIGHT = tuple(f"GPU-{number}" for number in range(8))
ALL = {slot: slot for slot in range(8)}


def test_without_one_slot_the_last_one_fills_its_place_and_the_others_keep_theirs() -> None:
    assert local_ranks([0, 2, 3], {}) == {0: 0, 2: 2, 3: 1}


def test_who_lives_keeps_its_local_rank_and_who_comes_takes_one_that_is_free() -> None:
    assert local_ranks([0, 1, 2], {0: 0, 2: 1}) == {0: 0, 1: 2, 2: 1}
    assert local_ranks([0, 2], {2: 2}) == {0: 0, 2: 2}


def test_nothing_is_set_as_long_as_every_slot_has_the_device_of_its_number() -> None:
    facts = {"devices": ",".join(EIGHT)}
    told = device_env({}, facts, slot=3, slots=8, local_ranks=ALL, blocked=())
    assert told == {DEVICE: "GPU-3"}


def test_a_new_process_finds_its_slots_device_at_its_local_rank_and_no_blocked_one() -> None:
    seats = local_ranks([0, 1, 2, 4, 5, 6, 7], {})
    told = device_env({}, {"devices": ",".join(EIGHT)}, slot=7, slots=8, local_ranks=seats, blocked=[3])
    assert seats[7] == 3
    assert told == {DEVICE: "GPU-7", VISIBLE: "GPU-0,GPU-1,GPU-2,GPU-7,GPU-4,GPU-5,GPU-6"}


def test_it_does_so_while_another_process_still_has_a_local_rank_beyond_the_dense_ones() -> None:
    seats = local_ranks([0, 1, 2, 4, 5, 6, 7], {7: 7, 0: 0, 1: 1, 2: 2, 4: 4, 6: 6})
    assert seats == {0: 0, 1: 1, 2: 2, 4: 4, 5: 5, 6: 6, 7: 7}
    assert shown(EIGHT, 5, local_ranks=seats, blocked=[3])[5] == "GPU-5"


def test_devices_that_belong_to_no_slot_come_last() -> None:
    assert shown(EIGHT, 3, local_ranks={0: 0, 2: 2, 3: 1}, blocked=[1])[:3] == ("GPU-0", "GPU-3", "GPU-2")
    assert shown(EIGHT, 3, local_ranks={0: 0, 2: 2, 3: 1}, blocked=[1])[3:] == EIGHT[4:]


@pytest.mark.parametrize(
    ("env", "found", "names"),
    [
        ({}, "0,1", ("0", "1")),
        ({}, None, ()),
        ({VISIBLE: "6,7"}, "0,1,2", ("6", "7")),
        ({VISIBLE: ""}, "0,1,2", ()),
        ({VISIBLE: "-1"}, "0,1,2", ()),
        ({VISIBLE: "0,1,-1,2"}, "", ("0", "1")),
        ({VISIBLE: "NoDevFiles"}, "0", ()),
        ({VISIBLE: "6,7", DEVICES: "MIG-a, MIG-b"}, "0", ("MIG-a", "MIG-b")),
        ({DEVICES: ""}, "0,1", ()),
        ({DEVICES: "0,0,1,1"}, "0,1", ()),
    ],
)
def test_a_users_own_list_of_devices_is_respected(env: dict[str, str], found: str | None, names: tuple[str]) -> None:
    facts = {} if found is None else {"devices": found}
    assert devices_of(env, facts) == names


def test_a_users_own_list_is_mapped_through() -> None:
    env = {VISIBLE: "4,5,6,7"}
    told = device_env(env, {}, slot=3, slots=4, local_ranks={0: 0, 2: 2, 3: 1}, blocked=[1])
    assert told == {DEVICE: "7", VISIBLE: "4,7,6"}


def test_a_list_that_only_we_are_given_is_what_the_process_sees() -> None:
    told = device_env({DEVICES: "x,y"}, {}, slot=1, slots=2, local_ranks={0: 0, 1: 1}, blocked=())
    assert told == {DEVICE: "y", VISIBLE: "x,y"}


@pytest.mark.parametrize("found", ["", "0", "0,1,2"])
def test_a_host_with_fewer_devices_than_slots_is_left_as_it_is(found: str) -> None:
    seats = {0: 0, 2: 2, 3: 1}
    assert device_env({}, {"devices": found}, slot=3, slots=4, local_ranks=seats, blocked=[1]) == {}


@st.composite
def hosts(draw: st.DrawFn) -> tuple[int, list[int], dict[int, int], list[int]]:
    """The slots of a host, those in use, the local ranks of living processes, and the blocked slots."""
    slots = draw(st.integers(1, 12))
    blocked = draw(st.sets(st.integers(0, slots - 1)))
    free = [slot for slot in range(slots) if slot not in blocked]
    used = sorted(draw(st.sets(st.sampled_from(free)))) if free else []
    ranks = draw(st.permutations(range(slots)))
    living = {slot: ranks[slot] for slot in used if draw(st.booleans())}
    return slots, used, living, sorted(blocked)


@given(hosts(), st.integers(0, 3))
def test_whatever_happens_each_new_process_finds_its_own_device_at_its_local_rank(
    host: tuple[int, list[int], dict[int, int], list[int]], spare: int
) -> None:
    slots, used, living, blocked = host
    devices = tuple(f"GPU-{number}" for number in range(slots + spare))
    seats = local_ranks(used, living)
    assert seats.keys() == set(used)
    assert len(set(seats.values())) == len(seats)
    assert living.items() <= seats.items()
    for slot in used:
        if slot in living:
            continue
        assert seats[slot] < len(used), "local ranks of new processes are dense"
        order = shown(devices, slot, local_ranks=seats, blocked=blocked)
        assert order[seats[slot]] == devices[slot]
        assert sorted(order) == sorted(set(devices) - {devices[number] for number in blocked})


@given(hosts())
def test_new_processes_of_a_host_agree_on_where_each_device_is(
    host: tuple[int, list[int], dict[int, int], list[int]],
) -> None:
    """If no living process has a local rank beyond the dense ones, all new processes see the same list."""
    _, used, living, blocked = host
    seats = local_ranks(used, living)
    if any(rank >= len(used) for rank in seats.values()):
        return
    lists = {shown(EIGHT + tuple("abcd"), slot, local_ranks=seats, blocked=blocked) for slot in used}
    assert len(lists) <= 1


@pytest.mark.parametrize(
    ("note", "found"),
    [("0/2", (0, 2)), ("1/1", (1, 1)), ("1", (1, None)), ("1/", None), ("/1", None), ("a/1", None), ("None", None)],
)
def test_a_note_without_a_slot_is_that_of_an_earlier_version_and_says_only_the_local_rank(
    note: str, found: tuple[int, int | None] | None
) -> None:
    assert noted(note) == found


def test_what_is_noted_is_read_again() -> None:
    assert noted(StartedWith(3, 1).note()) == StartedWith(3, 1)

"""Host names, host sets, and what follows from two of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.agent.orders import MAX_SLOT
from hvd_elastic_ext.core.hosts import (
    MAX_SLOTS,
    Host,
    HostChange,
    HostSet,
    follow,
    name_error,
)
from tests.unit.core import strategies as some

BAD_NAMES = {
    "": "is empty",
    "-oProxyCommand=touch": "would be read as an option",
    "a b": "white space",
    "a\tb": "white space",
    "::1": "IPv6",
    "fe80::1": "IPv6",
    "höst": "xn--",
    "a..b": "label ''",
    "a.": "label ''",
    ".a": "label ''",
    "a-": "label 'a-'",
    "a.-b": "label '-b'",
    "a;rm": "label 'a;rm'",
    "$(x)": "not a valid name",
    "a/b": "not a valid name",
    "a@b": "not a valid name",
    "a\0b": "not a valid name",
    "a\n": "white space",
    "x" * 64: "1 to 63",
    "x." * 150: "300 characters; the longest allowed is 253",
}


@given(some.names)
def test_names_of_letters_digits_and_inner_dashes_are_accepted(name):
    assert name_error(name) is None
    assert Host(name, 1).name == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_and_the_reason_given(name):
    problem = name_error(name)
    assert problem is not None
    assert BAD_NAMES[name] in problem
    assert "\n" not in problem
    with pytest.raises(ValueError, match="host name"):
        Host(name, 1)


@given(st.text(max_size=300))
def test_whatever_is_accepted_can_stand_on_a_command_line(text):
    if name_error(text) is None:
        assert text.isascii()
        assert not text.startswith("-")
        assert not set(text) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


BAD_SLOTS = [(0, "at least 1"), (-1, "at least 1"), (True, "whole"), ("2", "whole"), (1.5, "whole"), (1025, "1024")]


@pytest.mark.parametrize(("slots", "why"), BAD_SLOTS)
def test_slots_are_a_whole_number_from_one_to_the_most_that_an_agent_accepts(slots, why):
    with pytest.raises(ValueError, match=why):
        Host("a", slots)
    assert MAX_SLOTS == MAX_SLOT + 1
    assert Host("a", MAX_SLOTS).slots == MAX_SLOTS


def test_a_name_stands_once_in_a_set():
    with pytest.raises(ValueError, match="'a' is listed twice"):
        HostSet((Host("a", 1), Host("a", 2)))


@given(some.host_sets)
def test_a_set_knows_its_hosts_by_name_and_keeps_their_order(hosts):
    assert [hosts.get(name) for name in hosts.names] == list(hosts)
    assert all(name in hosts for name in hosts.names)
    assert hosts.slots == sum(hosts.as_slots().values())
    assert HostSet.of(hosts.as_slots()).as_slots() == hosts.as_slots()


def test_two_lives_of_one_name_are_told_apart_by_a_known_uid_only():
    first, second, unknown = Host("a", 1, uid="1"), Host("a", 1, uid="2"), Host("a", 1)
    assert not first.same_life(second)
    assert first.same_life(unknown)
    assert unknown.same_life(second)
    assert not first.same_life(Host("b", 1, uid="1"))


def test_two_lives_of_one_pod_are_told_apart_where_both_are_known():
    first, second, unknown = Host("a", 1, "u", life="1"), Host("a", 1, "u", life="2"), Host("a", 1, "u")
    assert not first.same_life(second)
    assert first.same_life(unknown)
    assert unknown.same_life(second)
    assert follow(HostSet((first,)), HostSet((second,)))[1] == HostChange(added=("a",), removed=("a",))


@given(some.host_sets)
def test_nothing_lies_between_a_set_and_itself_in_any_order(hosts):
    assert follow(hosts, HostSet(hosts.hosts[::-1])) == (hosts, HostChange())


@given(some.small_sets, some.small_sets)
def test_a_change_names_exactly_what_differs(before, after):
    _, change = follow(before, after)
    assert set(change.removed) - set(change.added) == set(before.names) - set(after.names)
    assert set(change.added) - set(change.removed) == set(after.names) - set(before.names)
    recreated = {h.name for h in before if (now := after.get(h.name)) and not h.same_life(now)}
    assert set(change.added) & set(change.removed) == recreated
    staying = (set(before.names) & set(after.names)) - recreated
    assert set(change.grown) == {n for n in staying if after.get(n).slots > before.get(n).slots}
    assert set(change.shrunk) == {n for n in staying if after.get(n).slots < before.get(n).slots}


@given(some.small_sets, some.small_sets)
def test_veterans_keep_their_order_and_newcomers_follow_in_theirs(before, now):
    ordered, _ = follow(before, now)
    assert set(ordered) == set(now)
    veterans = [name for name in before.names if name in now and before.get(name).same_life(now.get(name))]
    assert list(ordered.names) == veterans + [name for name in now.names if name not in veterans]


def test_a_set_that_is_made_lean_answers_as_before():
    hosts = HostSet.of({"a": 1, "b": 2})
    assert hosts.without_index() is hosts
    assert (hosts.get("b"), "a" in hosts, "c" in hosts) == (Host("b", 2), True, False)
    assert hosts.without_index() == HostSet.of({"a": 1, "b": 2})


def test_a_set_without_some_hosts_of_the_last_one_is_kept_as_it_is():
    hosts = [Host(name, 1) for name in "abcdefg"]
    now = HostSet(tuple(host for host in hosts if host.name not in "cf"))
    kept, change = follow(HostSet(tuple(hosts)), now)
    assert kept is now
    assert change == HostChange(removed=("c", "f"))


@given(some.host_sets, st.data())
def test_a_set_without_some_names_is_the_set_of_the_others(hosts, data):
    names = data.draw(st.sets(st.sampled_from([*hosts.names, "nobody"])))
    fewer, others = hosts.without(names), HostSet(tuple(host for host in hosts if host.name not in names))
    assert (fewer, fewer.slots, dict(fewer.by_name)) == (others, others.slots, dict(others.by_name))
    assert list(fewer.by_name) == list(fewer.names)


@given(some.small_sets, some.small_sets, st.data())
def test_hosts_that_are_the_same_objects_are_followed_as_equal_ones_are(before, more, data):
    kept = data.draw(st.sets(st.sampled_from(before.names))) if before else set()
    now = data.draw(st.permutations([host for host in more if host.name not in kept]))
    at = data.draw(st.integers(0, len(now)))
    same = HostSet((*now[:at], *(host for host in before if host.name in kept), *now[at:]))
    assert follow(before, same) == follow(before, HostSet(tuple(replace(host) for host in same)))

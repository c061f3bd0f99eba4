"""Every n-th call of commit() commits: the same calls on all ranks, whenever each of them hears of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.sync.commit_interval import MAX_INTERVAL, CommitSchedule
from hvd_elastic_ext.worker.sync.host_updates import HostsUpdate
from hvd_elastic_ext.worker.sync.interrupts import Stopping
from tests.support.clock import ManualClock
from tests.unit.worker.lockstep import LockstepComms, in_lockstep

CALLS = 24


@dataclass
class Rank:
    """``told``: by call, what comes in before it. ``named``: calls before which a commit is waited for."""

    told: dict[int, int]
    named: frozenset[int] = frozenset()


def committed(*ranks: Rank, calls: int = CALLS, stop_before: int | None = None) -> list[list[int]]:
    """The calls at which each rank committed; a step goes before each call. The last rank hears that hosts change."""

    def rank_main(comms: LockstepComms) -> list[int]:
        rank, at = ranks[comms.rank()], 0
        schedule = CommitSchedule(named=lambda: at in rank.named)
        stopping = Stopping(comms, ManualClock(), schedule)
        stopping.enter()
        found = []
        for at in range(calls):
            if at in rank.told:
                schedule.asked({"tell": "commit_interval", "every": rank.told[at]})
            if at == stop_before and comms.rank() == comms.size() - 1:
                stopping.inbox.put(HostsUpdate(generation=2, reason="", deadline=None))
            stopping.stepped()
            if schedule.due():
                found.append(at)
                schedule.made(schedule.began())
            if stopping.due():
                return [*found, -1]
        stopping.drop()
        return found

    results, _ = in_lockstep(len(ranks), rank_main)
    return list(results)


HEARD = st.dictionaries(st.integers(0, CALLS), st.integers(1, 9), max_size=4)
RANKS = st.lists(st.builds(Rank, HEARD, st.frozensets(st.integers(0, CALLS), max_size=6)), min_size=1, max_size=4)


@given(RANKS)
@settings(max_examples=60, deadline=None)
def test_all_ranks_commit_at_the_same_calls_whatever_each_of_them_hears_and_when(ranks: list[Rank]) -> None:
    found = committed(*ranks)
    assert found == [found[0]] * len(ranks)


@given(RANKS, st.integers(0, CALLS - 3))
@settings(max_examples=30, deadline=None)
def test_a_change_of_hosts_ends_the_world_at_one_call_whatever_is_wished_beside_it(ranks: list[Rank], at: int) -> None:
    found = committed(*ranks, stop_before=at)
    assert found == [found[0]] * len(ranks)
    assert found[0][-1] == -1


def test_what_one_rank_has_heard_holds_for_all_and_the_calls_between_two_commits_are_counted_alike() -> None:
    found = committed(Rank({}), Rank({4: 5}))
    assert found[0] == found[1] == [0, 1, 2, 3, 4, 5, 10, 15, 20]


def test_of_two_wishes_the_one_with_more_commits_holds() -> None:
    late = committed(Rank({3: 4}), Rank({3: 9}))[0]
    assert late == [0, 1, 2, 3, 4, 8, 12, 16, 20]


def test_more_calls_are_left_out_once_all_have_heard_of_it() -> None:
    found = committed(Rank({0: 2, 9: 6}), Rank({0: 2, 14: 6}))[0]
    assert found == [0, 1, 3, 5, 7, 9, 11, 13, 15, 21]


def test_no_call_is_left_out_while_any_rank_waits_for_a_commit_that_was_named() -> None:
    waits = Rank({0: 8}, named=frozenset(range(9, 14)))
    found = committed(waits, Rank({0: 8}))[0]
    assert found == [0, 1, 9, 11, 12, 13, 14, 15, 23]


def test_a_new_world_begins_with_every_call_and_comes_to_what_was_asked_for_by_itself() -> None:
    status = Status()
    schedule = CommitSchedule(status)
    assert status.every is None
    schedule.asked({"every": 3})
    assert schedule.agreed(schedule.wanted(stop=False)) is False
    assert (status.every, [schedule.due() for _ in range(2)], schedule.left_out) == (3, [False, False], 2)
    schedule.reset()
    assert (status.every, schedule.left_out, schedule.due()) == (1, 0, True)
    assert schedule.wanted(stop=False) > 0


@pytest.mark.parametrize("every", [0, -3, True, "7", None, 1.5])
def test_what_is_not_a_number_of_calls_is_every_call(every: object) -> None:
    schedule = CommitSchedule()
    schedule.asked({"every": every})
    assert schedule.wanted(stop=False) == MAX_INTERVAL


def test_the_largest_number_is_bounded() -> None:
    status = Status()
    schedule = CommitSchedule(status)
    schedule.asked({"every": MAX_INTERVAL * 9})
    schedule.agreed(schedule.wanted(stop=False))
    assert status.every == MAX_INTERVAL


def test_what_a_commit_takes_is_not_a_part_of_the_time_between_two_calls() -> None:
    clock, status = ManualClock(), Status()
    schedule = CommitSchedule(status, now=clock.mono)
    for _ in range(3):
        clock.advance(0.2)
        assert schedule.due()
        began = schedule.began()
        clock.advance(0.07)
        schedule.made(began)
    assert (status.commit_s, status.call_s) == (0.07, 0.2)
    schedule.reset()
    clock.advance(100.0)  # the next world forms
    assert schedule.due()
    assert status.call_s == 0.2

"""The replayed trace, and the kept work of a job."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import replay
from benchmarks.cases.state import spot_trace
from benchmarks.kept_work import Work, work
from benchmarks.steps import Stamp


def played(seed: int = 1) -> list[replay.Event]:
    return replay.events(hosts=4, lasts_s=240.0, notice_s=10.0, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_there_are_as_many_hosts_as_in_the_trace_and_each_comes_and_goes_once(seed: int) -> None:
    there, ever = set(range(4)), set(range(4))
    sizes = []
    for event in played(seed):
        if event.what == "comes":
            assert event.host not in ever
            there.add(event.host)
            ever.add(event.host)
        elif event.what == "gone":
            there.remove(event.host)
        else:
            assert event.host in there
        sizes.append(len(there))
    assert max(sizes) == 4
    assert min(sizes) == 2
    assert len(there) == round(replay.COUNTS[-1][1] / 3)
    assert max(ever) < len(list(spot_trace.names()))


def test_notice_comes_as_long_before_the_end_as_was_asked_unless_the_host_is_younger_and_some_get_none() -> None:
    everything = list(itertools.chain.from_iterable(played(seed) for seed in range(20)))
    assert {event.what for event in everything} == {"comes", "told", "gone"}
    for seed in range(20):
        at = {(event.what, event.host): event.at_s for event in played(seed)}
        for host in range(100):
            if ("told", host) in at:
                notice_s = at["gone", host] - max(at.get(("comes", host), 0.0), at["gone", host] - 10.0)
                assert at["gone", host] - at["told", host] == pytest.approx(notice_s)
    share = sum(event.what == "told" for event in everything) / sum(event.what == "gone" for event in everything)
    assert 0.6 < share < 0.8


def test_no_two_hosts_of_a_trace_have_one_name() -> None:
    names = list(spot_trace.names())
    assert len(set(names)) == len(names)


def steps(*done: tuple[int, int], begun: float = 0.0) -> list[Stamp]:
    """A step per second, as (number, world size), each by all ranks."""
    return [
        Stamp(begun + at, 100 + rank, rank, size, number, "h")
        for at, (number, size) in enumerate(done, start=1)
        for rank in range(size)
    ]


def test_every_step_that_was_done_once_is_kept_with_the_size_of_its_world() -> None:
    assert work(steps((1, 2), (2, 2), (3, 4)), since=0.0, until=9.0) == Work(kept=8, done=8)


def test_repeated_steps_count_as_done_last() -> None:
    done = work(steps((1, 4), (2, 4), (3, 4), (2, 3), (3, 3)), since=0.0, until=9.0)
    assert done == Work(kept=10, done=18)
    assert done.lost == pytest.approx(8 / 18)


def test_steps_rolled_back_at_the_end_are_not_kept() -> None:
    assert work(steps((1, 2), (2, 2), (3, 2), (2, 2)), since=0.0, until=9.0) == Work(kept=4, done=8)


def test_only_work_in_the_period_counts_and_earlier_work_that_it_loses() -> None:
    history = steps((1, 2), (2, 2), (3, 2), (4, 2), (5, 2))
    assert work(history, since=2.5, until=4.5) == Work(kept=4, done=4)
    assert work(steps((1, 2), (2, 2), (3, 2), (2, 1)), since=3.5, until=9.0) == Work(kept=-3, done=1)


def test_a_job_that_did_nothing_has_kept_and_lost_nothing() -> None:
    assert work([], since=0.0, until=9.0) == Work(0, 0)
    assert Work(0, 0).lost == 0.0

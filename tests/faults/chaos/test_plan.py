"""Plans of seeds: the same each time, with every kind of fault."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.faults.chaos.plan import FAULTS_S, MOMENT_S, MOST_PROCESSES, NAMES, Do, plan

SEEDS = range(200)


def test_a_seed_means_the_same_plan_each_time() -> None:
    for seed in SEEDS:
        assert plan(seed, checkpoints=True) == plan(seed, checkpoints=True)
    assert len({str(plan(seed, checkpoints=False)) for seed in SEEDS}) == len(SEEDS)


def test_every_fault_is_in_some_plan() -> None:
    plain = Counter(fault.do for seed in SEEDS for fault in plan(seed, checkpoints=False).faults)
    saved = Counter(fault.do for seed in SEEDS for fault in plan(seed, checkpoints=True).faults)
    assert set(plain) == set(Do) - {Do.KILL_AGENTS}
    assert set(saved) == set(Do)
    kinds = {fault.which for seed in SEEDS for fault in plan(seed, checkpoints=False).faults if fault.do is Do.KILL}
    assert {len(which) for which in kinds} == {0, 1, 2}  # an empty one means all


def test_lists_are_subsets_empty_and_garbage() -> None:
    texts = {fault.text for seed in SEEDS for fault in plan(seed, checkpoints=False).faults if fault.do is Do.LIST}
    assert "" in texts
    assert "one two\n" in texts
    assert "127.0.0.1:1\n" in texts


@pytest.mark.parametrize("checkpoints", [False, True])
def test_plans_have_two_to_four_hosts_many_faults_in_order_and_several_within_a_moment(*, checkpoints: bool) -> None:
    for seed in SEEDS:
        drawn = plan(seed, checkpoints=checkpoints)
        assert 2 <= len(drawn.hosts) <= len(NAMES)
        assert 2 <= sum(host.slots for host in drawn.hosts) <= MOST_PROCESSES
        assert all(host.slots in (1, 2) for host in drawn.hosts)
        times = [fault.at for fault in drawn.faults]
        assert len(times) >= 10
        assert 0 < times[0] <= times[-1] < FAULTS_S + MOMENT_S
        assert any(after - before <= MOMENT_S for before, after in pairwise(times))


def test_a_plan_can_be_read() -> None:
    told = str(plan(1, checkpoints=False)).splitlines()
    assert told[0] == "seed 1, without checkpoints: localhost:1, 127.0.0.1:1, 127.0.0.2:2, at most 3 processes"
    assert "  1.641 s  SIGSTOP to the agent of localhost, for 1.0 s" in told
    assert " 42.212 s  kill -9 of all processes" in told

"""Commits of a later world are newer than those of any world before, also of one that none of its members was in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.parts import torch_parts
from hvd_elastic_ext.worker.state.contents import Inventory
from hvd_elastic_ext.worker.state.journal import Reporter
from hvd_elastic_ext.worker.state.keeper import Keeper
from hvd_elastic_ext.worker.state.settings import Limits
from tests.unit.worker.lockstep import LockstepComms, in_lockstep


def committed_in(comms: Any, world: int) -> Identity:
    """The identity of the first commit of a process in the launcher's world of that number."""
    net, names = nn.Linear(3, 2), torch_parts.ParameterNames()
    owner = SimpleNamespace(model=net, epoch=0)
    part = torch_parts.part_for(net, names)
    assert part is not None
    inventory = Inventory(owner, {"model": part}, names=["epoch"], part_for=torch_parts.part_for)  # type: ignore[arg-type]
    names.models = inventory.models
    keeper = Keeper(
        inventory,
        buffer=CommitBuffer(open_sides(None)),
        comms=comms,
        clock=SystemClock(),
        reporter=Reporter(None, SystemClock(), sample=0.0, host=""),
        limits=Limits(keep_rng=True),
        world=lambda: world,
    )
    keeper.sync()
    with torch.no_grad():
        net.weight.add_(1.0)
    keeper.save()
    return keeper._identity()


def test_a_world_that_begins_behind_another_one_numbers_its_commits_beyond_that_ones() -> None:
    def rank_main(comms: LockstepComms) -> Identity:
        return committed_in(comms, 7)

    (first, second), _ = in_lockstep(2, rank_main)
    assert first.generation == second.generation == 7
    assert first > Identity(first.lineage, first.incarnation, 6, 10_000)


def test_without_a_launcher_worlds_are_counted_by_those_who_are_in_them() -> None:
    (identity,), _ = in_lockstep(1, lambda comms: committed_in(comms, 0))
    assert identity.generation == 1

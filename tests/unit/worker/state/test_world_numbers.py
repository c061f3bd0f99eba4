"""Commits of a later world are newer than those of any world before, also of one that none of its members was in."""

from __future__ import annotations

from typing import Any

import torch

from hvd_elastic_ext.core.commit_record import Identity
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.made_commits import keeper_of


def committed_in(comms: Any, world: int) -> Identity:
    """The identity of the first commit of a process in the launcher's world of that number."""
    keeper, owner, _ = keeper_of(comms, None, world=lambda: world)
    keeper.sync()
    with torch.no_grad():
        owner.model.weight.add_(1.0)
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

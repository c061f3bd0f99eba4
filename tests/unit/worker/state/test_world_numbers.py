"""Commits of a later world are newer than those of any world before, also of one that none of its members was in."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.calls.calls import Calls, End
from hvd_elastic_ext.worker.calls.result import left_by
from hvd_elastic_ext.worker.state import loop
from hvd_elastic_ext.worker.state.settings import WorkerSettings
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


@pytest.mark.parametrize(
    "end", [Identity(5, 2, 1, 40), Identity(5, 1, 9, 40)], ids=["of a later launcher", "of a later generation"]
)
def test_commits_of_a_call_are_newer_than_all_of_the_call_before(end: Identity) -> None:
    """Also with a State of its own, which knows neither the others of the world before nor how often they synced."""

    def rank_main(comms: LockstepComms) -> tuple[Identity, Identity]:
        calls = Calls(os.memfd_create("past"), program="mine")
        calls.begin(rank_main)
        calls.returned(left_by(1, None, step=40, last=end, content=None, keep_rng=False))
        assert calls.end == End(40, end)
        keeper, owner, _ = keeper_of(comms, None, world=lambda: 3, calls=calls, settings=WorkerSettings(incarnation=1))
        calls.begin(rank_main)
        keeper.begin_call()
        first = keeper._identity()
        keeper.sync()
        with torch.no_grad():
            owner.model.weight.add_(1.0)
        keeper.save()
        return first, keeper._identity()

    ((first, second),), _ = in_lockstep(1, rank_main)
    assert end[1:] < first[1:] < second[1:]


class Stopped(Exception):
    """The script raises it in its training function, and catches it outside."""


def test_commits_after_a_call_that_ended_with_an_error_are_newer_than_those_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rank_main(comms: LockstepComms) -> tuple[Identity, Identity, int]:
        calls = Calls(os.memfd_create("past"), program="mine")
        monkeypatch.setattr(loop, "current_calls", lambda: calls)

        def call(steps: int, *, stops: bool) -> Any:
            keeper, owner, _ = keeper_of(comms, None, world=lambda: 3, calls=calls)

            def run() -> Any:
                keeper.sync()
                for _ in range(steps):
                    with torch.no_grad():
                        owner.model.weight.add_(1.0)
                    keeper._steps.done += 1
                    keeper.save()
                ends.append(keeper._identity())
                if stops:
                    raise Stopped
                return keeper._steps.done

            return loop.one_call(rank_main, SimpleNamespace(_keeper=keeper), whole=lambda _: nullcontext(), run=run)

        ends: list[Identity] = []
        with pytest.raises(Stopped):
            call(20, stops=True)
        step = call(1, stops=False)
        return ends[0], ends[1], step

    ((first, second, step),), _ = in_lockstep(1, rank_main)
    assert first[1:] < second[1:]
    assert step == 21

"""Commits of a later world are newer than those of any world before, also of one that none of its members was in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.calls.calls import Calls, End
from hvd_elastic_ext.worker.calls.result import left_by
from hvd_elastic_ext.worker.state import loop
from hvd_elastic_ext.worker.state.keeper import WorkerSettings
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


class Trained:
    """A process that trains States of one optimizer each, in one call after another."""

    def __init__(self, comms: Any) -> None:
        self.calls = Calls(os.memfd_create("past"), program="mine")
        self.lines: list[tuple[str, dict[str, Any]]] = []
        """What its States have written to the journal."""
        self._comms = comms

    def state(self) -> tuple[Any, Any]:
        keeper, owner, _ = keeper_of(
            self._comms, None, world=lambda: 1, calls=self.calls, settings=WorkerSettings(incarnation=1),
            optimizer=True, record=lambda event, **fields: self.lines.append((event, fields)),
        )  # fmt: skip
        return keeper, owner

    @contextmanager
    def call(self, keeper: Any) -> Iterator[None]:
        """A call, as our loop makes it."""
        self.calls.begin(self.call)
        keeper.begin_call()
        keeper.sync()
        yield
        keeper.returned()
        self.calls.returned(keeper.left_by(None))
        keeper.ended()


def steps_of(keeper: Any, owner: Any, count: int) -> list[tuple[Identity, int]]:
    """Train so many steps, each with a commit; the identities and steps of these."""
    made = []
    for _ in range(count):
        owner.model.weight.grad = torch.ones_like(owner.model.weight)
        owner.optimizer.step()
        keeper.save()
        made.append((keeper._identity(), keeper._buffer.record.step))
    return made


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_state_that_is_used_again_after_another_one_counts_on_from_there(ranks: int) -> None:
    def rank_main(comms: LockstepComms) -> tuple[list[tuple[Identity, int]], int, str]:
        process = Trained(comms)
        (first, firsts), (second, seconds) = process.state(), process.state()
        made = []
        for keeper, owner in ((first, firsts), (second, seconds), (first, firsts)):
            with process.call(keeper):
                made += steps_of(keeper, owner, 3)
        with process.call(first):
            made += steps_of(first, firsts, 2)
            firsts.model.weight.grad = torch.ones_like(firsts.model.weight)
            firsts.optimizer.step()
            first.restore(world_lost=False)
            rolled_back = first._steps.done
            return made, rolled_back, first.fingerprint()

    results, _ = in_lockstep(ranks, rank_main)
    made, rolled_back, fingerprint = results[0]
    assert [step for _, step in made] == list(range(1, 12))
    ages = [identity[1:] for identity, _ in made]
    assert ages == sorted(set(ages))
    assert rolled_back == 11
    assert {result[2] for result in results} == {fingerprint}


def test_a_state_counts_on_after_another_ones_call_that_has_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_main(comms: LockstepComms) -> list[tuple[Identity, int]]:
        process, made = Trained(comms), list[tuple[Identity, int]]()
        monkeypatch.setattr(loop, "current_calls", lambda: process.calls)
        (first, firsts), (second, seconds) = process.state(), process.state()

        def diverges() -> None:
            second.sync()
            made.extend(steps_of(second, seconds, 3))
            raise RuntimeError

        with process.call(first):
            made += steps_of(first, firsts, 2)
        with pytest.raises(RuntimeError):
            loop.one_call(diverges, SimpleNamespace(_keeper=second), whole=nullcontext, run=diverges)
        with process.call(first):
            made += steps_of(first, firsts, 2)
        return made

    (made,), _ = in_lockstep(1, rank_main)
    assert [step for _, step in made] == list(range(1, 8))
    ages = [identity[1:] for identity, _ in made]
    assert ages == sorted(set(ages))


def test_each_line_of_a_state_in_the_journal_carries_its_call() -> None:
    def rank_main(comms: LockstepComms) -> Trained:
        process = Trained(comms)
        keeper, owner = process.state()
        for _ in range(2):
            with process.call(keeper):
                steps_of(keeper, owner, 1)
                keeper.restore(world_lost=False)
        return process

    (process,), _ = in_lockstep(1, rank_main)
    of_call = ["synced", "stepped", "committed", "rolled_back"]
    assert [(event, fields["call"]) for event, fields in process.lines] == [
        *((event, 1) for event in of_call), *((event, 2) for event in of_call)
    ]  # fmt: skip


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

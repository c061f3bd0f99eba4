"""A State without an optimizer has steps, too: the calls of ``commit()`` in its training function."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from hvd_elastic_ext.worker.calls.calls import Calls
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.state.mixin import StateMethods
from hvd_elastic_ext.worker.stock import HostsUpdatedInterrupt, stand_ins
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.made_commits import keeper_of


class Made(StateMethods, stand_ins.State):
    """A State of a model and a number, with Horovod's methods. ``lines``: what it has written to the journal."""

    def __init__(self, comms: Any, *, optimizer: bool = False) -> None:
        super().__init__()
        self.status, self.lines = Status(), list[tuple[str, int]]()
        self.calls = Calls(os.memfd_create("past"), program="")
        keeper, self.owner, _ = keeper_of(
            comms, None, calls=self.calls, optimizer=optimizer, status=self.status,
            record=lambda event, *, step, **_: self.lines.append((event, step)),
        )  # fmt: skip
        keeper.seal = self.save
        self.__dict__["_keeper"] = keeper

    def begin(self) -> None:
        """Begin a training call with it."""
        self.calls.begin(self.begin)
        self._keeper.begin_call()
        self._keeper.sync()

    def add_to_weights(self, number: float) -> None:
        with torch.no_grad():
            self.owner.model.weight.add_(number)

    @property
    def committed_step(self) -> int:
        record = self._keeper._buffer.record
        assert record is not None
        return record.step


def trained(comms: LockstepComms, commits: int) -> Made:
    state = Made(comms)
    state.commit()  # before training
    state.begin()
    for _ in range(commits):
        state.add_to_weights(1.0)
        state.commit()
    return state


def test_each_commit_within_a_training_call_is_a_step() -> None:
    (state,), _ = in_lockstep(1, lambda comms: trained(comms, 3))
    assert (state.committed_step, state.status.step, state.status.stepped[0]) == (3, 3, 3)
    assert [step for event, step in state.lines if event == "stepped"] == [1, 2, 3]


def test_what_the_script_does_not_commit_by_commit_is_not_a_step() -> None:
    def rank_main(comms: LockstepComms) -> Made:
        state = trained(comms, 2)
        state.add_to_weights(1.0)
        state.save()
        state.add_to_weights(1.0)
        state.sync()  # which seals the change
        return state

    (state,), _ = in_lockstep(1, rank_main)
    assert state.committed_step == 2


def test_a_commit_that_the_interval_leaves_out_is_a_step_and_a_roll_back_takes_it_back() -> None:
    def rank_main(comms: LockstepComms) -> tuple[int, int, int]:
        state = trained(comms, 1)
        state._keeper.schedule.asked({"tell": "commit_interval", "every": 3})
        state.check_host_updates()
        for _ in range(2):
            state.commit()
        committed, done = state.committed_step, state.status.step
        state.restore()
        return committed, done, state.status.step

    (found,), _ = in_lockstep(1, rank_main)
    assert found == (1, 3, 1)


def test_the_steps_of_a_state_with_an_optimizer_are_those_of_the_optimizer() -> None:
    def rank_main(comms: LockstepComms) -> int:
        state = Made(comms, optimizer=True)
        state.begin()
        state.commit()
        state.owner.model.weight.grad = torch.ones_like(state.owner.model.weight)
        state.owner.optimizer.step()
        state.commit()
        state.commit()
        return state.committed_step

    assert in_lockstep(1, rank_main)[0] == [1]


def test_weights_that_were_changed_on_one_rank_are_still_found_after_a_commit() -> None:
    def rank_main(comms: LockstepComms) -> tuple[str, float]:
        state = trained(comms, 2)
        state.add_to_weights(float(comms.rank()))  # as a script does that loads other weights on a rank
        state.commit()
        state.sync()
        return state.fingerprint(), state.owner.model.weight.sum().item()

    (first, second), _ = in_lockstep(2, rank_main)
    assert first == second


def test_a_request_to_stop_counts_at_the_commit_after_it_on_all_ranks() -> None:
    def rank_main(comms: LockstepComms) -> int:
        state = trained(comms, 1)
        if comms.rank() == 1:
            state.on_hosts_updated(1, 1)
        with pytest.raises(HostsUpdatedInterrupt):
            state.commit()
        return state.committed_step

    assert in_lockstep(2, rank_main)[0] == [2, 2]

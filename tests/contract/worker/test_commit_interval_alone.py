"""A State of which only every n-th commit is made: nothing that a commit was left out for is lost without a failure."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.elastic import ObjectState
from horovod.common.exceptions import HostsUpdatedInterrupt
from torch import nn

import hvd_elastic_ext.torch as elastic
from tests.contract.worker.training import step, trained

pytestmark = pytest.mark.usefixtures("alone")


class Own(ObjectState):
    """A user's State, which counts its saves."""

    saves = 0

    def save(self) -> None:
        self.saves += 1
        super().save()


class Mixed(elastic.ElasticMixin, Own):
    pass


def in_first_world(every: int, **values: Any) -> tuple[nn.Module, torch.optim.Optimizer, elastic.TorchState]:
    """In its first world, past the check at which ranks have agreed on it."""
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    state = elastic.TorchState(model=net, optimizer=optimizer, **values)
    state.sync()
    state._keeper.schedule.asked({"tell": "commit_interval", "every": every})
    state.check_host_updates()
    return net, optimizer, state


def test_every_nth_call_commits_and_a_roll_back_returns_to_it() -> None:
    net, optimizer, state = in_first_world(3, batch=0)
    weights = {}
    for batch in range(1, 9):
        step(net, optimizer)
        state.batch = batch
        weights[batch] = net.weight.detach().clone()
        state.commit()
    state.restore()
    assert state.batch == 6
    assert torch.equal(net.weight, weights[6])


def test_calls_are_counted_anew_after_a_roll_back_by_hand() -> None:
    net, optimizer, state = in_first_world(3, batch=0)
    for batch in (1, 2):
        state.batch = batch
        state.commit()
    state.restore()
    for batch in (10, 11):
        step(net, optimizer)
        state.batch = batch
        state.commit()
    state.restore()
    assert state.batch == 0


def test_a_save_by_hand_is_always_one_and_counts() -> None:
    _, _, state = in_first_world(3, batch=0)
    state.batch = 1
    state.commit()
    state.batch = 2
    state.save()
    for batch in (3, 4):
        state.batch = batch
        state.commit()
    state.restore()
    assert state.batch == 2


@pytest.mark.parametrize("left_out", [1, 2])
def test_whoever_leaves_for_a_change_of_hosts_leaves_with_what_was_not_committed(left_out: int) -> None:
    net, optimizer, state = in_first_world(5, batch=0)
    for batch in range(1, left_out):
        step(net, optimizer)
        state.batch = batch
        state.commit()
    step(net, optimizer)
    state.batch = left_out
    state.on_hosts_updated(1, 1)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    weight = net.weight.detach().clone()
    with torch.no_grad():
        net.weight.zero_()
    state.restore()
    assert state.batch == left_out
    assert torch.equal(net.weight, weight)


def test_a_change_that_torch_does_not_count_is_committed_when_calls_were_left_out() -> None:
    net = nn.Linear(64, 64)
    state = elastic.TorchState(model=net)
    state.sync()
    state._keeper.schedule.asked({"tell": "commit_interval", "every": 5})
    state.check_host_updates()
    last = net.weight.data.view(-1)[-1:]
    last.fill_(41.0)  # through .data: no version counts it, and a sample may miss it
    state.commit()
    state.on_hosts_updated(1, 1)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    last.zero_()
    state.restore()
    assert net.weight.view(-1)[-1] == 41.0


def test_a_users_own_save_is_left_out_with_the_commit() -> None:
    state = Mixed(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, batch=0)
    state.sync()
    state._keeper.schedule.asked({"tell": "commit_interval", "every": 4})
    state.check_host_updates()
    before = state.saves
    for batch in range(1, 9):
        state.batch = batch
        state.commit()
    assert state.saves - before == 2
    state.restore()
    assert state.batch == 8


def test_in_the_next_world_every_call_commits_again_until_all_have_agreed() -> None:
    _, _, state = in_first_world(5, batch=0)
    state.batch = 1
    state.commit()
    state.sync()
    state.batch = 2
    state.commit()
    state.batch = 3
    state.restore()
    assert state.batch == 2

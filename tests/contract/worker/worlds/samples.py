"""Samples of an epoch through a roll-back and a new world."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.contract.guarantees.consumed import BATCH, COUNT, consumed
from tests.contract.worker.user_states import Own
from tests.contract.worker.worlds.mixins import mixed
from tests.contract.worker.worlds.registry import check


class WithSampler(Own):
    """A State of the user's own that keeps a sampler."""

    def __init__(self, model: Any, optimizer: Any, **values: Any) -> None:
        self.sampler = values.pop("sampler")
        super().__init__(model, optimizer, **values)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "sampler": self.sampler.state_dict()}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.sampler.load_state_dict(state["sampler"])


def epoch(State: Any, make: Any) -> dict[str, Any]:
    """What this rank consumed of one epoch."""
    if State is hvd.elastic.TorchState:
        sampler = hvd.elastic.ElasticSampler(range(COUNT))
    else:
        import hvd_elastic_ext.torch as elastic

        sampler = elastic.ElasticSampler(range(COUNT))
    net = nn.Linear(1, 1)
    state = make(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), sampler=sampler, batch=0)
    return {"consumed": consumed(state, lambda: recorded(sampler))}


def recorded(sampler: Any) -> Iterator[list[int]]:
    """The batches that are left for this rank."""
    hand = list(sampler)
    for number, start in enumerate(range(0, len(hand), BATCH)):
        batch = hand[start : start + BATCH]
        sampler.record_batch(number, len(batch))
        yield batch


@check
def samples_of_our_state(State: Any) -> dict[str, Any]:
    return epoch(State, State)


@check
def samples_of_a_mixin_over_torch_state(State: Any) -> dict[str, Any]:
    return epoch(State, mixed(State, hvd.elastic.TorchState))


@check
def samples_of_a_mixin_over_a_users_state(State: Any) -> dict[str, Any]:
    return epoch(State, mixed(State, WithSampler))


@check
def passes_without_set_epoch(State: Any) -> dict[str, Any]:
    """Three loops of a script that never calls ``set_epoch``; a peer is lost in the second and right after it."""
    import hvd_elastic_ext.torch as elastic

    sampler = elastic.ElasticSampler(range(COUNT))
    loader = DataLoader(range(COUNT), batch_size=BATCH, sampler=sampler)
    net = nn.Linear(1, 1)
    state = State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), sampler=sampler, loops=0)
    state.sync()
    own: list[list[int]] = [[], [], []]  # each rank's own: a commit is the same everywhere
    lost, step = [9, 14], 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        while state.loops < len(own):
            for number, indices in enumerate(loader):
                step += 1
                if step in lost:  # before this batch is recorded
                    state.restore()
                    state.on_reset()
                    state.sync()
                    break
                sampler.record_batch(number, len(indices))
                own[state.loops] += indices.tolist()
                state.save()
            else:
                state.loops += 1
    told = [str(each.message) for each in said if "is complete" in str(each.message)]
    return {"passes": own, "steps": step, "told": told}

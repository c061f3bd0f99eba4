"""What comes back from a roll-back or a sync within one process, however it is kept."""

from __future__ import annotations

import random
import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.training import step, trained

pytestmark = pytest.mark.usefixtures("alone")


def test_frozen_and_unused_parameters_and_late_state_roll_back() -> None:
    net = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2), "frozen": nn.Linear(3, 2)})
    net["frozen"].requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.1)
    state = elastic.TorchState(model=net, optimizer=optimizer)
    before = fingerprint([net.state_dict(), optimizer.state_dict()])
    for _ in range(2):
        step(net["used"], optimizer)  # only now does the optimizer make its state
        assert len(optimizer.state) == 2
        state.restore()
        assert fingerprint([net.state_dict(), optimizer.state_dict()]) == before
    step(net["used"], optimizer)
    state.save()
    before = fingerprint([net.state_dict(), optimizer.state_dict()])
    step(net["used"], optimizer)
    state.restore()
    assert fingerprint([net.state_dict(), optimizer.state_dict()]) == before


def test_odd_tensors_among_plain_values_roll_back() -> None:
    def values() -> dict[str, torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,))
        return {
            "sparse": sparse,
            "turned": torch.arange(6.0).view(2, 3).t(),
            "wide": torch.ones(1).expand(4),
            "number": torch.tensor(3),
            "nothing": torch.empty(0, 2),
            "leaf": torch.ones(2, requires_grad=True),
            "parameter": nn.Parameter(torch.ones(2)),
            "complex": torch.tensor([1j]),
            "bits": torch.tensor([True, False]),
        }

    state = elastic.TorchState(values=values())
    for _ in range(2):
        state.values["number"].add_(1)
        state.values["turned"].zero_()
        del state.values["wide"]
        state.restore()
        assert fingerprint(state.values) == fingerprint(values())
    assert state.values["leaf"].requires_grad
    assert isinstance(state.values["parameter"], nn.Parameter)


def test_without_rng_generators_are_left_alone() -> None:
    state = elastic.TorchState(batch=0, rng=False)
    state.save()
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(1).item(), random.random()
    torch.manual_seed(1)
    random.seed(1)
    state.restore()
    state.sync()
    assert (torch.rand(1).item(), random.random()) == expected


def test_generators_repeat_after_a_roll_back_unless_told_otherwise() -> None:
    state = elastic.TorchState(batch=0)
    state.save()
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    for _ in range(2):
        state.restore()
        assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected


def test_a_loaders_generator_stays_the_same_object_and_rolls_back() -> None:
    generator = torch.Generator().manual_seed(3)
    state = elastic.TorchState(generator=generator)
    first = torch.rand(3, generator=generator)
    state.restore()
    assert state.generator is generator
    assert torch.equal(torch.rand(3, generator=generator), first)


def test_a_commit_that_fails_halfway_leaves_the_last_one_whole() -> None:
    class Breaks:
        broken = False
        value = 1

        def state_dict(self) -> dict[str, int]:
            if self.broken:
                raise OSError("the dog ate it")
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.value = state["value"]

    net, part = nn.Linear(1, 1), Breaks()
    state = elastic.TorchState(model=net, part=part, batch=1)
    committed = state.fingerprint()
    net.weight.data.add_(1.0)
    state.batch, part.value, part.broken = 2, 2, True
    with pytest.raises(OSError, match="dog"):
        state.save()
    part.broken = False
    state.restore()
    assert state.fingerprint() == committed


def test_a_roll_back_of_the_users_own_leaves_the_world_alone() -> None:
    """What was heard before a world is lost will be in the next one; without a loss it is still to be acted on."""

    def heard_after(error: Exception) -> bool:
        state = elastic.TorchState(batch=0)
        state.sync()
        state.on_hosts_updated(1.0, 1)
        try:
            raise error
        except type(error):
            state.restore()
        state.on_reset()
        try:
            state.check_host_updates()
        except HostsUpdatedInterrupt:
            return True
        return False

    assert heard_after(ArithmeticError("the loss is not a number"))
    assert not heard_after(HorovodInternalError("a peer was lost"))


def test_a_sync_does_not_empty_an_object_whose_loading_begins_by_emptying_it() -> None:
    class Seen:
        def __init__(self) -> None:
            self.items = [1, 2]

        def state_dict(self) -> dict[str, list[int]]:
            return {"items": self.items}

        def load_state_dict(self, state: dict[str, list[int]]) -> None:
            self.items.clear()
            self.items.extend(state["items"])

    state = elastic.TorchState(seen=Seen())
    state.sync()
    state.restore()
    assert state.seen.items == [1, 2]


class KeepsWhatItLoads(nn.Module):
    """A module whose loading keeps references, as quantisers and queues do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(3))
        self.amax = torch.zeros(2)

    def get_extra_state(self) -> Any:
        return {"amax": self.amax}

    def set_extra_state(self, state: Any) -> None:
        self.amax = state["amax"]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        self.queue = state_dict[prefix + "queue"]
        self.set_extra_state(state_dict[prefix + "_extra_state"])


def test_what_a_model_keeps_of_a_roll_back_is_its_own() -> None:
    net = KeepsWhatItLoads()
    state = elastic.TorchState(model=net)
    for _ in range(3):
        state.restore()
        net.queue += 5
        net.amax += 5
    state.restore()
    kept = (net.queue, net.amax)
    for number in range(3):  # both sides of the memory are used again
        net.queue, net.amax = torch.full((3,), number), torch.full((2,), number)
        state.save()
    assert [tensor.tolist() for tensor in kept] == [[0.0] * 3, [0.0] * 2]


def test_what_an_optimizer_keeps_in_unusual_containers_is_its_own() -> None:
    net, optimizer = trained(torch.optim.SGD)
    history = deque([torch.zeros(2)])
    optimizer.state[net.weight]["history"] = history
    state = elastic.TorchState(model=net, optimizer=optimizer)
    for _ in range(2):
        state.restore()
        optimizer.state[net.weight]["history"][0].add_(7)
    state.restore()
    assert optimizer.state[net.weight]["history"][0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shares_with", ["fast", "weight"])
def test_optimizer_state_that_shares_memory_since_the_commit_rolls_back(shares_with: str) -> None:
    net, optimizer = trained(torch.optim.SGD)
    own = optimizer.state[net.weight]
    own["fast"], own["slow"] = torch.full_like(net.weight, 2.0), torch.full_like(net.weight, 1.0)
    state = elastic.TorchState(model=net, optimizer=optimizer)
    before = fingerprint([net.state_dict(), optimizer.state_dict()])
    for _ in range(2):
        own["slow"] = own["fast"] if shares_with == "fast" else net.weight.data
        state.restore()
        assert fingerprint([net.state_dict(), optimizer.state_dict()]) == before
        own = optimizer.state[net.weight]


def test_a_group_that_was_exchanged_for_one_of_the_same_size_steers_its_old_parameters_again() -> None:
    net = nn.ModuleDict({name: nn.Linear(3, 3) for name in "abc"})
    groups = [{"params": list(net[name].parameters())} for name in "ab"]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    step(nn.Sequential(net["a"], net["b"]), optimizer)
    state = elastic.TorchState(model=net, optimizer=optimizer)
    before = fingerprint(optimizer.state_dict())
    del optimizer.param_groups[1]
    optimizer.add_param_group({"params": list(net["c"].parameters())})
    state.restore()
    assert list(map(id, optimizer.param_groups[1]["params"])) == list(map(id, net["b"].parameters()))
    assert fingerprint(optimizer.state_dict()) == before


def test_a_buffer_that_has_grown_since_the_commit_is_its_old_self_again() -> None:
    net = nn.Module()
    net.register_buffer("seen", torch.arange(2))
    state = elastic.TorchState(model=net)
    net.seen = torch.arange(5)
    state.restore()
    assert net.seen.tolist() == [0, 1]

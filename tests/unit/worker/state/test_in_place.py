"""Roll-backs of parts of which nothing but contents of tensors has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.buffer import Commit, CommitBuffer, Contents
from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, OptimizerPart, ParameterNames, part_for
from hvd_elastic_ext.worker.state.contents import Inventory, Written
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.unit.worker.made_commits import buffer_over, identity


class Job:
    """A State of some objects that is trained, committed and rolled back; ``loaded``: which parts were loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **objects: Any) -> None:
        names = ParameterNames()
        self.of = SimpleNamespace(**objects)
        parts = {name: part for name, value in objects.items() if (part := part_for(value, names)) is not None}
        values = [name for name in objects if name not in parts]
        self.inventory = Inventory(self.of, parts, names=values, part_for=lambda value: part_for(value, names))
        names.models = lambda: self.inventory.values_of(ModelPart)
        self.buffer: CommitBuffer = buffer_over(None)
        self.loaded: list[str] = []
        for kind in (ModelPart, OptimizerPart):
            monkeypatch.setattr(kind, "restore", self._noted(kind.restore, kind.__name__))

    def _noted(self, restore: Any, name: str) -> Any:
        def noted(part: Any, tree: Any) -> None:
            self.loaded.append(name)
            restore(part, tree)

        return noted

    def commit(self) -> Commit:
        written = self.inventory.write()
        self.buffer.take(Contents(written.tree, written.tensors, written.firm), identity(1), step=1)
        last = self.buffer.last()
        assert last is not None
        return last

    def roll_back(self) -> Written:
        """The live state afterwards, as far as the roll-back says it."""
        last = self.buffer.last()
        assert last is not None
        self.loaded.clear()
        with last.copying() as copy_to:
            found = self.inventory.put_back(last.tree, last.layout, views=last.views, copy_to=copy_to)
        return self.inventory.write(found)

    def told(self) -> str:
        return fingerprint(self.inventory.live())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.twin = self.first.weight
        self.frozen = nn.Parameter(torch.rand(4), requires_grad=False)
        self.register_buffer("images", torch.rand(1, 2, 3, 3).contiguous(memory_format=torch.channels_last))

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(self.first(x)) * self.frozen)


def step(job: Job) -> None:
    job.of.optimizer.zero_grad()
    job.of.net(torch.rand(5, 3)).pow(2).sum().backward()
    job.of.optimizer.step()
    job.of.net.frozen.data.add_(1)
    job.of.net.images.mul_(2)
    job.of.batch += 1
    job.of.best.append(torch.rand(2))


OPTIMIZERS = [
    lambda p: torch.optim.Adam(p, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), foreach=False),
]


def trained(monkeypatch: pytest.MonkeyPatch, make: Any = OPTIMIZERS[0]) -> Job:
    torch.manual_seed(1)
    net = Net()
    optimizer = make([p for p in net.parameters() if p.requires_grad])
    job = Job(monkeypatch, net=net, optimizer=optimizer, batch=0, best=[])
    step(job)
    return job


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_what_only_trained_on_is_copied_in_place_and_equal_to_the_commit(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = trained(monkeypatch, make)
    job.commit()
    expected = job.told()
    for _ in range(2):
        kept = [id(tensor) for tensor in job.inventory.write().tensors[:-1]]
        step(job)
        assert job.told() != expected
        found = job.roll_back()
        assert job.told() == expected
        assert job.loaded == []
        live = job.inventory.write()
        assert (found.tree, found.firm, found.versions) == (live.tree, live.firm, live.versions)
        assert list(map(id, found.tensors)) == list(map(id, live.tensors))
        assert list(map(id, live.tensors[: len(kept)]))[: len(kept) - 1] == kept[: len(kept) - 1]


def another_rate_as_a_tensor(job: Job) -> None:
    job.of.optimizer.param_groups[0]["lr"] = torch.tensor(0.5)


def another_place_of_state(job: Job) -> None:
    job.of.optimizer.param_groups[0]["capturable"] = True


def another_group(job: Job) -> None:
    job.of.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def more_state(job: Job) -> None:
    job.of.optimizer.state[job.of.net.first.weight]["more"] = torch.ones(3)


def a_larger_buffer(job: Job) -> None:
    job.of.net._buffers["images"] = torch.rand(2, 2, 3, 3)


def another_form(job: Job) -> None:
    job.of.net._buffers["images"] = torch.rand(1, 2, 3, 3)


def a_frozen_parameter(job: Job) -> None:
    job.of.net.last.bias.requires_grad_(False)


def shared_memory(job: Job) -> None:
    state = job.of.optimizer.state[job.of.net.last.bias]
    state["exp_avg_sq"] = state["exp_avg"].view(-1)


def memory_of_a_parameter(job: Job) -> None:
    job.of.optimizer.state[job.of.net.last.bias]["exp_avg"] = job.of.net.last.bias.data


CHANGES = [
    another_rate_as_a_tensor,
    another_place_of_state,
    another_group,
    more_state,
    a_larger_buffer,
    another_form,
    a_frozen_parameter,
    shared_memory,
    memory_of_a_parameter,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_has_another_form_than_the_commit_is_loaded(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = trained(monkeypatch)
    job.commit()
    expected = job.told()
    step(job)
    change(job)
    job.roll_back()
    assert len(job.loaded) == 1
    assert job.told() == expected


def test_options_that_have_changed_come_back_with_state_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    job = trained(monkeypatch)
    job.of.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.5})
    job.commit()
    expected, state = job.told(), job.of.optimizer.state
    for _ in range(2):
        job.of.optimizer.param_groups[0]["lr"] = 7
        job.of.optimizer.param_groups[1]["more"] = [1, {"param_groups": [2]}]
        step(job)
        found = job.roll_back()
        assert job.loaded == []
        assert job.told() == expected
        assert [group["lr"] for group in job.of.optimizer.param_groups] == [0.001, 0.5]
        assert job.of.optimizer.state is state
        live = job.inventory.write()
        assert (found.tree, found.versions) == (live.tree, live.versions)


def test_a_part_that_is_loaded_leaves_the_others_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    job = trained(monkeypatch)
    job.commit()
    expected = job.told()
    job.of.optimizer.state[job.of.net.first.weight]["more"] = torch.ones(3)
    step(job)
    found = job.roll_back()
    assert job.loaded == ["OptimizerPart"]
    assert job.told() == expected
    assert found.tree == job.inventory.write().tree


def hook(job: Job) -> None:
    job.of.net.first.register_load_state_dict_post_hook(lambda module, keys: None)


def saves_otherwise(job: Job) -> None:
    plain = job.of.net.state_dict
    job.of.net.state_dict = lambda *a, **k: {key: value.detach().clone() for key, value in plain(*a, **k).items()}


def loads_otherwise(job: Job) -> None:
    plain = job.of.optimizer.load_state_dict
    job.of.optimizer.load_state_dict = lambda state: plain(state)


def optimizer_saves_otherwise(job: Job) -> None:
    job.of.optimizer.register_state_dict_post_hook(lambda optimizer, state: None)


@pytest.mark.parametrize("own", [hook, saves_otherwise, loads_otherwise, optimizer_saves_otherwise])
def test_what_the_user_saves_or_loads_otherwise_is_loaded(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = trained(monkeypatch)
    own(job)
    job.commit()
    expected = job.told()
    step(job)
    job.roll_back()
    assert len(job.loaded) == 1
    assert job.told() == expected


def test_a_sparse_buffer_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("few", torch.eye(3).to_sparse())
    job = Job(monkeypatch, net=net)
    job.commit()
    net.few = torch.zeros(3, 3).to_sparse()
    job.roll_back()
    assert job.loaded == ["ModelPart"]


def test_a_model_that_torch_does_not_let_us_write_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(2, 2)
    with torch.inference_mode():
        net.register_buffer("seen", torch.ones(3))
    job = Job(monkeypatch, net=net)
    job.commit()
    with pytest.raises(StateError, match=r"state\.net: .*inference tensor"):
        job.roll_back()


def test_a_crafted_number_of_a_tensor_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, net=nn.Linear(2, 2))
    last = job.commit()
    crafted = last.tree.replace(b'{"$tensor":[0,', b'{"$tensor":[99999999999999,')
    assert crafted != last.tree
    with last.copying() as copy_to, pytest.raises(Exception, match="cannot be read"):
        job.inventory.put_back(crafted, last.layout, views=last.views, copy_to=copy_to)
    assert job.loaded == []

"""One way to build each kind of part, a way to train on, and what a commit of it is."""

from __future__ import annotations

import copy
import importlib
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import Tensor, nn, optim

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.choose import part_of_ours
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from hvd_elastic_ext.worker.parts.user_parts import HandlerPart, SnapshotPart
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.support import tensorflow


@dataclass(frozen=True)
class Case:
    """``change`` trains on; ``build`` makes another one, as a newcomer has it: with other weights."""

    part: Part
    change: Callable[[], object]
    build: Callable[[int], Case]
    parameters: tuple[Tensor, ...] = ()
    """Gradients that are the part's own."""


@dataclass(frozen=True)
class Committed:
    """What a commit holds of a part: its tree, and copies of its tensors."""

    tree: str
    tensors: tuple[Tensor, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Committed) and self._told() == other._told()

    def _told(self) -> Any:
        kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in self.tensors]
        return self.tree, kinds, list(map(fingerprint, self.tensors))


def committed(part: Part) -> Committed:
    tensors: list[Tensor] = []
    tree = write(part.capture(), tensors)
    return Committed(tree, tuple(tensor.detach().clone() for tensor in tensors))


def put_back(part: Part, commit: Committed) -> tuple[Tensor, ...]:
    """As a State does it; the tensors that were lent to the part."""
    lent = tuple(tensor.clone() for tensor in commit.tensors)

    def at(index: int, kind: str) -> Tensor:
        return lent[index] if part.takes_views else commit.tensors[index].clone()

    part.restore(read(commit.tree, at))
    return lent if part.takes_views else ()


class Net(nn.Module):
    """With what makes trouble: buffers, a frozen parameter, an unused one, one that is there twice, another type."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2))
        self.twin = self.first.weight
        self.register_buffer("narrow", torch.randn(3).to(torch.bfloat16))
        self.register_buffer("images", torch.randn(1, 2, 2, 2).contiguous(memory_format=torch.channels_last))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x)) * self.frozen

    def get_extra_state(self) -> Any:
        return {"calls": getattr(self, "calls", 0)}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


def step(net: nn.Module, optimizer: Any) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(torch.linspace(-1, 1, 12).view(4, 3)).pow(2).sum()
        loss.backward()
        return loss

    if isinstance(optimizer, optim.LBFGS):
        return optimizer.step(closure)
    loss = closure()
    optimizer.step()
    return loss


def around(value: Any) -> Part:
    found = part_of_ours(value, ParameterNames())
    assert found is not None
    return found


def model(seed: int) -> Case:
    torch.manual_seed(seed)
    net = Net()
    optimizer = optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)

    def change() -> None:
        step(net, optimizer)
        net.calls = getattr(net, "calls", 0) + 1

    return Case(around(net), change, model, parameters=tuple(net.parameters()))


def optimizer_of(seed: int, make: Callable[[nn.Module], Any]) -> Case:
    torch.manual_seed(seed)
    net = nn.Linear(3, 2)
    optimizer = make(net)
    with torch.no_grad():  # its parameters belong to another part: here they are the same for all
        for parameter in net.parameters():
            parameter.fill_(0.5)

    def change() -> None:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(0.5)
        step(net, optimizer)
        optimizer.param_groups[0]["lr"] *= 0.5

    return Case(around(optimizer), change, partial(optimizer_of, make=make), parameters=tuple(net.parameters()))


def scheduler_of(seed: int, make: Callable[[Any], Any]) -> Case:
    net = nn.Linear(3, 2)
    optimizer = optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    scheduler = make(optimizer)
    takes = (torch.tensor(1.0).item(),) if isinstance(scheduler, optim.lr_scheduler.ReduceLROnPlateau) else ()

    def change() -> None:
        step(net, optimizer)
        scheduler.step(*takes)

    return Case(around(scheduler), change, partial(scheduler_of, make=make))


def sampler(seed: int) -> Case:
    made = ElasticSampler(range(40), shuffle=True, seed=3)
    return Case(around(made), lambda: made.record_batch(0, 4), sampler)


class Own:
    """A user's own: state_dict gives the live list."""

    def __init__(self) -> None:
        self.items: list[Any] = [torch.zeros(2)]

    def state_dict(self) -> dict[str, Any]:
        return {"items": self.items}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.items = state["items"]


def own(seed: int) -> Case:
    made = Own()

    def change() -> None:
        made.items[0].add_(1)
        made.items.append(len(made.items))

    return Case(around(made), change, own)


def scaler(seed: int, enabled: bool) -> Case:
    made = torch.amp.GradScaler("cpu", enabled=enabled, growth_interval=2)
    weight = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([weight], lr=0.1)

    def change() -> None:
        made.scale(weight.sum()).backward()
        made.step(optimizer)
        made.update()

    return Case(around(made), change, partial(scaler, enabled=enabled))


class Average:
    def __init__(self) -> None:
        self.values = [1.0]


class AverageHandler:
    """As Horovod's own are: a value, and what was saved of it."""

    def __init__(self, value: Average) -> None:
        self.value = value
        self.kept: list[float] = []

    def save(self) -> None:
        self.kept = list(self.value.values)

    def restore(self) -> None:
        self.value.values = list(self.kept)

    def sync(self) -> None:
        raise AssertionError("not asked for here")


def handler(seed: int) -> Case:
    made = Average()
    return Case(HandlerPart(AverageHandler(made)), lambda: made.values.append(2.0), handler)


class OldState:
    """A State of the user's own: what it saves are the live things themselves. Its part hears of assignments."""

    part: SnapshotPart

    def __setattr__(self, name: str, value: object) -> None:
        if "part" in vars(self):
            self.part.assigned(name)
        super().__setattr__(name, value)

    def __init__(self) -> None:
        self.net = nn.Linear(2, 1)
        self.batch = 0
        self.history: list[int] = []

    def save(self) -> None:
        self._weights = self.net.state_dict()
        self._rest = {"batch": self.batch, "history": self.history}

    def restore(self) -> None:
        self.net.load_state_dict(self._weights)
        self.batch, self.history = self._rest["batch"], copy.copy(self._rest["history"])


def snapshot(seed: int) -> Case:
    torch.manual_seed(seed)
    made = OldState()

    def change() -> None:
        with torch.no_grad():
            made.net.weight.add_(1)
        made.batch += 1
        made.history.append(made.batch)

    part = SnapshotPart(made, save=made.save, restore=made.restore, sync=None, ignored=frozenset({"part"}))
    made.part = part
    return Case(part, change, snapshot)


def keras_on_torch() -> Any:
    """Return Keras 3 with its torch backend; skip the test where this process cannot have it."""
    with pytest.MonkeyPatch.context() as patch:
        if "KERAS_BACKEND" not in os.environ:
            patch.setenv("KERAS_BACKEND", "torch")
        keras = pytest.importorskip("keras", reason=tensorflow.KERAS_3_MISSING)
    if keras.__version__.startswith("2."):
        pytest.skip("needs Keras 3, which this TensorFlow does not have")
    if keras.config.backend() != "torch":  # another test of this process was first, and its modules keep theirs
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about objects of the other backend, which no test keeps
            patch.setenv("KERAS_BACKEND", "torch")  # else it stays set
            keras.config.set_backend("torch")
        keras = importlib.import_module("keras")
    return keras


def keras_model(seed: int) -> Case:
    keras = keras_on_torch()
    keras.backend.clear_session()  # names are numbered within a process, and a newcomer is another one
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    made = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)])
    made.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    rows = torch.linspace(-1, 1, 24).view(8, 3).numpy()

    def change() -> None:
        torch.manual_seed(7)  # Keras takes what Dropout drops from torch's generator
        made.train_on_batch(rows, rows[:, [0, 1, 2, 0]])

    own = tuple(variable.value for variable in made.trainable_variables)
    return Case(around(made), change, keras_model, parameters=own)


def keras_optimizer(seed: int, make: Callable[[Any], Any]) -> Case:
    keras = keras_on_torch()
    trained = [keras.Variable(torch.full(shape, 0.5).numpy()) for shape in ((2, 3), (2,))]
    optimizer = make(keras.optimizers)
    optimizer.build(trained)

    def change() -> None:
        for variable in trained:  # they belong to another part: here they are the same for all
            variable.assign(torch.full_like(variable.value, 0.5))
        optimizer.apply([torch.ones_like(variable.value) for variable in trained], trained)
        optimizer.learning_rate = float(optimizer.learning_rate) * 0.5

    return Case(around(optimizer), change, partial(keras_optimizer, make=make))


KERAS: dict[str, Callable[[Any], Any]] = {
    "Keras' SGD with momentum": lambda optimizers: optimizers.SGD(0.1, momentum=0.9),
    "Keras' Adam": lambda optimizers: optimizers.Adam(0.1, amsgrad=True),
    "Keras' AdamW, with averages and accumulation": lambda optimizers: optimizers.AdamW(
        0.1, use_ema=True, gradient_accumulation_steps=2
    ),
    "Keras' LossScaleOptimizer": lambda optimizers: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.1), dynamic_growth_steps=3
    ),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "SGD": lambda net: optim.SGD(net.parameters(), lr=0.1),
    "SGD with momentum": lambda net: optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda net: optim.Adam(net.parameters()),
    "Adam with amsgrad": lambda net: optim.Adam(net.parameters(), amsgrad=True),
    "AdamW": lambda net: optim.AdamW(net.parameters(), weight_decay=0.1),
    "AdamW of two groups": lambda net: optim.AdamW([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.5}]),
    "RMSprop": lambda net: optim.RMSprop(net.parameters(), momentum=0.1, centered=True),
    "Adagrad": lambda net: optim.Adagrad(net.parameters()),
    "a learning rate that is a tensor": lambda net: optim.Adam(net.parameters(), lr=torch.tensor(0.1)),
    "LBFGS": lambda net: optim.LBFGS(net.parameters(), max_iter=3),
    "Horovod's around Adam": lambda net: hvd.DistributedOptimizer(optim.Adam(net.parameters()), net.named_parameters()),
}
# Of these alone training on does not repeat itself: they change the optimizer as they find it.
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 2),
    "OneCycleLR": lambda optimizer: optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=50),
    "CosineAnnealingLR": lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, 9),
    "ReduceLROnPlateau": lambda optimizer: optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
}
CASES: dict[str, Callable[[int], Case]] = {
    "model": model,
    **{name: partial(optimizer_of, make=make) for name, make in OPTIMIZERS.items()},
    **{name: partial(scheduler_of, make=make) for name, make in SCHEDULERS.items()},
    "sampler": sampler,
    "own": own,
    "scaler": partial(scaler, enabled=True),
    "scaler that is off": partial(scaler, enabled=False),
    "Keras' model": keras_model,
    **{name: partial(keras_optimizer, make=make) for name, make in KERAS.items()},
    "handler": handler,
    "snapshot": snapshot,
}

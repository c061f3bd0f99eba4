"""What a State takes in, replaces, refuses, and never reads: by name."""

from __future__ import annotations

import copy
import datetime
import pathlib
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.torch.elastic import state as stock
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.parts import Part, choose
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.training import step, trained

pytestmark = pytest.mark.usefixtures("alone")


def test_our_state_is_a_horovod_state() -> None:
    state = elastic.TorchState(nn.Linear(1, 1), batch=3)
    assert isinstance(state, hvd.elastic.TorchState)
    assert state.batch == 3
    assert state.optimizer is None


def test_a_value_that_cannot_be_copied_is_named_at_once() -> None:
    with pytest.raises(
        StateError, match=r"state\.stream cannot be committed: it is a builtins\.generator.*; give it state_dict"
    ):
        elastic.TorchState(stream=(i for i in range(3)))


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"when": datetime.datetime(2026, 1, 1)}, "state.when = when.isoformat()"),
        ({"took": datetime.timedelta(1)}, "state.took = took.total_seconds()"),
        ({"place": pathlib.Path("a")}, "state.place = str(place)"),
        ({"history": [{"at": datetime.date(2026, 1, 1)}]}, "state.history[0]['at'] = value.isoformat()"),
    ],
)
def test_a_value_of_a_common_class_is_refused_with_what_to_write_instead(
    values: dict[str, object], remedy: str
) -> None:
    with pytest.raises(StateError) as refused:
        elastic.TorchState(**values)
    assert str(refused.value).endswith(f", which is not a plain value; keep its text or number: {remedy}")


def test_a_model_given_later_replaces_the_old_one_in_the_commit() -> None:
    state = elastic.TorchState(model=nn.Linear(1, 1), batch=0)
    state.model = nn.Linear(5, 5)
    new = fingerprint(state.model.state_dict())
    state.model.weight.data.zero_()
    state.restore()
    assert fingerprint(state.model.state_dict()) == new


def test_an_optimizer_given_later_is_kept_by_its_state() -> None:
    net, optimizer = trained(torch.optim.Adam)
    state = elastic.TorchState(model=net)
    state.optimizer = optimizer
    before = fingerprint(optimizer.state_dict())
    step(net, optimizer)
    state.restore()
    assert state.optimizer is optimizer
    assert fingerprint(optimizer.state_dict()) == before


def test_a_handler_the_user_registered_with_horovod_is_used() -> None:
    class Ema:
        def __init__(self) -> None:
            self.average = 1.0

    class EmaHandler(stock.StateHandler):
        def __init__(self, value: Ema) -> None:
            super().__init__(value)
            self.save()

        def save(self) -> None:
            self.kept = self.value.average

        def restore(self) -> None:
            self.value.average = self.kept

        def sync(self) -> None:
            self.value.average *= 10

    registry = stock.get_handler_registry()
    stock.set_handler_registry([*registry, (Ema, EmaHandler)])
    try:
        ema = Ema()
        state = elastic.TorchState(ema=ema, batch=0)
        ema.average = 5.0
        state.restore()
        assert ema.average == 1.0
        state.sync()
        ema.average = 7.0
        state.restore()
        assert ema.average == 10.0
    finally:
        stock.set_handler_registry(registry)


class Ema(nn.Linear):
    """A model for which a handler is registered."""


def test_a_handler_that_keeps_a_copy_of_the_whole_model_rolls_back_exactly(caplog: pytest.LogCaptureFixture) -> None:
    class EmaHandler(stock.StateHandler):
        def __init__(self, value: Ema) -> None:
            super().__init__(value)
            self.save()

        def save(self) -> None:
            self.kept = copy.deepcopy(self.value)
            self.undo = lambda: None

        def restore(self) -> None:
            self.value.load_state_dict(self.kept.state_dict())

        def sync(self) -> None: ...

    registry = stock.get_handler_registry()
    stock.set_handler_registry([(Ema, EmaHandler), *registry])
    try:
        ema = Ema(2, 2)
        state = elastic.TorchState(ema=ema)
        committed = fingerprint(ema.state_dict())
        for _ in range(2):
            ema.weight.data.add_(1.0)
            state.fingerprint()
            state.restore()
            assert state.ema is ema
            assert fingerprint(ema.state_dict()) == committed
    finally:
        stock.set_handler_registry(registry)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "EmaHandler.save keeps something in undo (function) that cannot be committed" in said[0]


def test_assigning_the_same_model_again_commits_nothing() -> None:
    net = nn.Linear(1, 1)
    state = elastic.TorchState(model=net)
    committed = net.weight.item()
    net.weight.data.add_(1.0)
    state.model = net
    state.restore()
    assert net.weight.item() == committed


@pytest.mark.parametrize("put", [lambda net: [net], lambda net: {"a": net}], ids=["list", "dict"])
def test_a_model_inside_a_container_is_refused_by_name_since_it_would_come_back_as_a_copy(put: Any) -> None:
    with pytest.raises(StateError, match=r"state\.nets\[.*: it is a Linear; give it a name of its own"):
        elastic.TorchState(nets=put(nn.Linear(1, 1)))


@pytest.mark.parametrize("put", [list, lambda found: {"trained": tuple(found)}], ids=["list", "deeply"])
def test_a_models_parameters_in_a_list_are_refused_by_name_since_they_would_come_back_as_copies(put: Any) -> None:
    net = nn.Linear(1, 1)
    with pytest.raises(StateError, match=r"state\.trained \(\w+\) holds parameters of a model of this State"):
        elastic.TorchState(model=net, batch=0, trained=put(net.parameters()))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: torch.eye(2).as_subclass(type("Named", (torch.Tensor,), {})), "of the class Named"),
        (lambda: torch.empty(2, device="meta"), r"state\.value cannot be committed: meta tensors"),
        (lambda: nn.Linear(2, 2, device="meta"), r"state\.value\['weight'\] cannot be committed: meta tensors"),
        (lambda: nn.LazyLinear(2), "run one forward pass first"),
        # The first of these imports much of torch: when the test runs, and not when tests are collected.
        (
            lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            "nested tensors of layout torch.jagged",
        ),
    ],
    ids=["subclass", "meta", "meta_model", "lazy", "nested"],
)
def test_tensors_that_would_not_come_back_as_they_are_are_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(StateError, match=told):
        elastic.TorchState(value=make())


def test_values_called_as_our_own_keywords_are_values() -> None:
    state = elastic.TorchState(rng={"seed": 1}, comms=[2])
    assert (state.rng, state.comms) == ({"seed": 1}, [2])


class Tally:
    """A value of a framework of which the State knows nothing."""

    def __init__(self) -> None:
        self.counts = torch.zeros(2)


class TallyPart(Part):
    def __init__(self, value: Tally) -> None:
        self.value = value

    def capture(self) -> Any:
        return {"counts": self.value.counts}

    def restore(self, tree: Any) -> None:
        self.value.counts.copy_(tree["counts"])


def test_a_kind_of_value_takes_a_part_and_an_entry_in_the_table_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tallies(value: object, names: object) -> Part | None:
        return TallyPart(value) if isinstance(value, Tally) else None

    monkeypatch.setattr(choose, "FRAMEWORKS", (tallies, *choose.FRAMEWORKS))
    tally = Tally()
    state = elastic.TorchState(model=nn.Linear(1, 1), tally=tally, batch=0)
    tally.counts += 1
    state.commit()
    tally.counts += 5
    state.restore()
    assert state.tally is tally
    assert tally.counts.tolist() == [1, 1]
    state.tally = Tally()
    state.tally.counts += 7
    state.restore()
    assert state.tally.counts.tolist() == [0, 0]
    with pytest.raises(StateError, match=r"^the given dict: tally: it is kept in a way of your own; load it yourself"):
        elastic.load_checkpoint(state, {"tally": 3}, names=["tally"])

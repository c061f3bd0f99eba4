"""The mixin over States that exist: what their roll-back promises within one process, with it and without."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.elastic import ObjectState
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.training import train
from tests.contract.worker.user_states import OLD, Average, Own, with_handlers
from tests.contract.worker.user_states_with_mixin import MIXED

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    with with_handlers():
        yield


def built(kind: Any) -> Any:
    net = nn.Linear(3, 2)
    state = kind(net, torch.optim.Adam(net.parameters()))
    train(state)
    return state


def look(state: Any) -> str:
    return fingerprint([state.model.state_dict(), state.optimizer.state_dict(), state.batch, state.history])


def rolls_back_exactly(kind: Any) -> None:
    state = built(kind)
    state.save()
    committed = look(state)
    for _ in range(3):
        train(state)
        train(state)
        state.restore()
        assert look(state) == committed
        state.history.append("after the roll-back")


class Syncing(hvd.elastic.TorchState):
    """Has a sync of a user's own."""

    def sync(self) -> None:
        super().sync()


@pytest.mark.parametrize(("old", "calls"), [(hvd.elastic.TorchState, 0), (Syncing, 1)])
def test_a_sync_of_horovods_own_does_not_run_and_a_users_does(
    old: type, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Horovod's would send everything from rank 0 to ranks that have the same."""
    net, synced = nn.Linear(3, 2), []
    state = type("Mixed", (elastic.ElasticMixin, old), {})(net, torch.optim.SGD(net.parameters(), lr=0.1), batch=0)
    monkeypatch.setattr(ObjectState, "sync", lambda self: synced.append(self.batch))
    state.sync()
    assert synced == [0] * calls


@pytest.mark.parametrize("name", MIXED)
def test_a_first_roll_back_returns_to_the_first_commit(name: str) -> None:
    net = nn.Linear(3, 2)
    state = MIXED[name](net, torch.optim.SGD(net.parameters(), lr=0.1))
    state.save()
    committed = look(state)
    train(state)
    state.fingerprint()  # it sees what the first save did not change
    state.restore()
    assert look(state) == committed


@pytest.mark.parametrize("name", MIXED)
def test_steps_generators_and_gradients_roll_back_too(name: str) -> None:
    state = built(MIXED[name])
    state.save()
    steps = state._keeper._steps.done
    drawn = random.random(), torch.rand(1).item()
    train(state)
    assert state._keeper._steps.done == steps + 1
    state.model(torch.ones(1, 3)).sum().backward()
    state.restore()
    assert (random.random(), torch.rand(1).item()) == drawn
    assert state._keeper._steps.done == steps
    assert [p.grad for p in state.model.parameters()] == [None, None]


@pytest.mark.parametrize("name", MIXED)
def test_it_is_still_what_it_was(name: str) -> None:
    state = built(MIXED[name])
    called: list[str] = []
    state.register_reset_callbacks([lambda: called.append("reset")])
    state.on_reset()
    state.commit()
    state.sync()
    assert isinstance(state, OLD[name])
    assert called == ["reset"]
    assert getattr(state, "synced", 1) == 1, "the user's own sync did not run once"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = state.nonsense


def test_the_users_own_handler_is_kept_by_what_it_saves() -> None:
    state = built(MIXED["torch_state"])
    state.average.value = 3.0
    state.save()
    for _ in range(2):
        state.average.value = 5.0
        state.fingerprint()
        state.restore()
        assert state.average.value == 3.0


def given_a_scheduler(base: Any, **values: Any) -> tuple[Any, Any, Any]:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    mixed = type("Mixed", (elastic.ElasticMixin, base), {})
    state = mixed(model=net, optimizer=optimizer, scheduler=scheduler, batch=0, history=[], **values)
    return state, optimizer, scheduler


class Objects(ObjectState):
    def __init__(self, **values: Any) -> None:
        super().__init__(hvd.broadcast_object, hvd.rank, **values)


@pytest.mark.parametrize("base", [hvd.elastic.TorchState, Objects])
def test_models_optimizers_and_schedulers_among_the_values_stay_the_same_objects(base: Any) -> None:
    state, optimizer, scheduler = given_a_scheduler(base)
    net = state.model
    state.sync()
    train(state)
    scheduler.step()
    state.save()
    committed = look(state)
    for _ in range(2):
        train(state)
        scheduler.step()
        state.restore()
        assert (state.model, state.optimizer, state.scheduler) == (net, optimizer, scheduler)
        assert look(state) == committed
        assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.5)


def test_a_live_model_among_what_is_saved_is_not_replaced_by_a_copy(caplog: pytest.LogCaptureFixture) -> None:
    class References(Own):
        def save(self) -> None:
            super().save()
            self._everything = {"model": self.model, "optimizer": self.optimizer}

        def restore(self) -> None:
            self.model, self.optimizer = self._everything["model"], self._everything["optimizer"]
            super().restore()

    class Mixed(elastic.ElasticMixin, References):
        pass

    with caplog.at_level(logging.WARNING):
        rolls_back_exactly(Mixed)
        state = built(Mixed)
        net, optimizer = state.model, state.optimizer
        state.save()
        state.restore()
    assert state.model is net
    assert state.optimizer is optimizer
    assert "Mixed.save puts something into self._everything (dict) that cannot be committed" in caplog.text


def test_names_that_the_mixin_uses_may_be_attributes_of_the_old_class() -> None:
    class Named(Own):
        def __init__(self, *args: Any, **values: Any) -> None:
            super().__init__(*args, **values)
            self.rng, self.comms, self.merged = None, "none of ours", 3

    class Mixed(elastic.ElasticMixin, Named):
        pass

    rolls_back_exactly(Mixed)
    assert built(Mixed).comms == "none of ours"


def test_an_attribute_of_the_rank_is_not_state() -> None:
    state = built(MIXED["own"])
    state.save()
    state.rank = 7
    state.restore()
    assert state.rank == 7


def test_a_class_that_answers_for_missing_attributes_goes_on_doing_so() -> None:
    class Answers(Own):
        def __getattr__(self, name: str) -> Any:
            if name == "learning_rate":
                return self.optimizer.param_groups[0]["lr"]
            raise AttributeError(name)

    class Mixed(elastic.ElasticMixin, Answers):
        pass

    assert built(Mixed).learning_rate == 0.001


def test_what_cannot_be_committed_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Own):
        def save(self) -> None:
            super().save()
            self.undo = lambda: None

    class Mixed(elastic.ElasticMixin, Odd):
        pass

    with caplog.at_level(logging.WARNING):
        state = built(Mixed)
        state.save()
        state.save()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "Mixed.save puts something into self.undo (function) that cannot be committed" in said[0]


def test_a_large_attribute_that_no_save_touches_is_not_copied_at_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def counting(value: object, tensors: Any) -> str:
        written.append(value)
        return write(value, tensors)

    monkeypatch.setattr("hvd_elastic_ext.worker.parts.user_parts.write", counting)
    state = built(MIXED["own"])
    state.data = b"\0" * (2 << 20)
    for _ in range(10):
        state.save()
    known = written.count(state.data)
    for _ in range(10):
        state.save()
    assert known
    assert written.count(state.data) == known


def test_a_mixin_without_generators_leaves_them_alone() -> None:
    class Mixed(elastic.ElasticMixin, Own):
        rng = False

    state = built(Mixed)
    state.save()
    torch.manual_seed(1)
    expected = torch.rand(1).item()
    torch.manual_seed(1)
    state.restore()
    assert torch.rand(1).item() == expected


@pytest.mark.parametrize("loop", [elastic.run, hvd.elastic.run], ids=["our_loop", "horovods_loop"])
@pytest.mark.parametrize("name", MIXED)
def test_a_mixin_state_trains_to_its_end_under_our_loop_and_horovods(
    name: str, loop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horovod.runner.elastic.worker.WorkerNotificationManager.init", lambda self: None)

    @loop
    def training(state: Any) -> int:
        while state.batch < 4:
            train(state)
            state.commit()
        return int(state.batch)

    state = (
        MIXED[name](net := nn.Linear(3, 2), torch.optim.Adam(net.parameters()), average=Average())
        if name in ("torch_state", "object_state")
        else built(MIXED[name])
    )
    assert training(state) == 4

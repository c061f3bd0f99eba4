"""What a State promises within one process: each check passes on ours and fails on the stock one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import state as stock
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("alone")

State = Callable[..., Any]
Check = Callable[[State], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def trained(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = nn.Linear(3, 2)
    optimizer = make(net.parameters())
    step(net, optimizer)
    return net, optimizer


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 3)).pow(2).sum().backward()
    optimizer.step()


@check
def two_roll_backs_without_a_commit_give_the_same_bytes(make_state: State) -> None:
    net, optimizer = trained(torch.optim.Adam)
    state = make_state(model=net, optimizer=optimizer)
    state.save()
    for _ in range(2):
        step(net, optimizer)
        state.restore()
        seen = fingerprint([net.state_dict(), optimizer.state_dict()])
        step(net, optimizer)
        state.restore()
        assert fingerprint([net.state_dict(), optimizer.state_dict()]) == seen


@check
def a_roll_back_takes_uncommitted_items_out_of_a_list(make_state: State) -> None:
    state = make_state(history=[1], best={"loss": [3.0]})
    state.save()
    state.history.append(2)
    state.best["loss"].append(1.0)
    state.restore()
    assert (state.history, state.best) == ([1], {"loss": [3.0]})


@check
def a_list_changed_after_a_roll_back_leaves_the_commit_alone(make_state: State) -> None:
    state = make_state(history=[1])
    state.save()
    state.restore()
    state.history.append(2)
    state.restore()
    assert state.history == [1]


@check
def a_roll_back_returns_the_scheduler(make_state: State) -> None:
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    state = make_state(model=net, optimizer=optimizer, scheduler=scheduler)
    state.save()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants to see a step before; it was made before the scheduler
        scheduler.step()
    state.restore()
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (0, 1.0)


@check
def a_roll_back_drops_the_gradients_of_the_interrupted_batch(make_state: State) -> None:
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=1.0))
    state = make_state(model=net, optimizer=optimizer)
    net(torch.ones(2, 3)).sum().backward()
    state.restore()
    assert [p.grad for p in net.parameters()] == [None, None]


@pytest.mark.parametrize("function", CHECKS, ids=lambda function: function.__name__)
def test_our_state_keeps_it(function: Check) -> None:
    function(elastic.TorchState)


@pytest.mark.parametrize("function", CHECKS, ids=lambda function: function.__name__)
def test_the_stock_state_breaks_it(function: Check) -> None:
    with pytest.raises(AssertionError):
        function(hvd.elastic.TorchState)


def test_our_state_is_a_horovod_state() -> None:
    state = elastic.TorchState(nn.Linear(1, 1), batch=3)
    assert isinstance(state, hvd.elastic.TorchState)
    assert state.batch == 3
    assert state.optimizer is None


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


def test_a_value_that_cannot_be_copied_is_named_at_once() -> None:
    with pytest.raises(Permanent, match=r"state\.stream \(generator\) cannot be committed: .*; give it state_dict"):
        elastic.TorchState(stream=(i for i in range(3)))


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

    class EmaHandler(stock.StateHandler):  # type: ignore[misc]
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


def test_a_roll_back_of_the_users_own_leaves_the_world_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[str] = []
    monkeypatch.setattr(elastic._FENCE, "cut", lambda: cuts.append("cut"))
    state = elastic.TorchState(batch=0)
    state.restore()
    try:
        raise ArithmeticError("the loss is not a number")
    except ArithmeticError:
        state.restore()
    assert cuts == []
    try:
        raise HorovodInternalError("a peer was lost")
    except HorovodInternalError:
        state.restore()
    assert cuts == ["cut"]


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


def test_assigning_the_same_model_again_commits_nothing() -> None:
    net = nn.Linear(1, 1)
    state = elastic.TorchState(model=net)
    committed = net.weight.item()
    net.weight.data.add_(1.0)
    state.model = net
    state.restore()
    assert net.weight.item() == committed


@pytest.mark.parametrize("passes", [1, 3])
def test_a_step_of_horovods_optimizer_counts_once(passes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")  # Horovod registers its hooks in a world of one only then
    journal = given_a_journal(monkeypatch, tmp_path)
    net = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(net.parameters()), net.named_parameters(), backward_passes_per_step=passes
    )
    elastic.TorchState(model=net, optimizer=optimizer)
    for number in range(4):
        for _ in range(passes):
            net(torch.ones(2, 3)).sum().backward()
        optimizer.synchronize()
        assert len(events(journal, "stepped")) == number
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    assert [event["step"] for event in events(journal, "stepped")] == [1, 2, 3, 4]


def test_steps_are_counted_again_after_one_that_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    journal = given_a_journal(monkeypatch, tmp_path)
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    state = elastic.TorchState(model=net, optimizer=optimizer)

    def broken() -> float:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        optimizer.step(broken)
    state.restore()
    step(net, optimizer)
    assert [event["step"] for event in events(journal, "stepped")] == [1]


def test_a_training_process_journals_steps_commits_syncs_and_roll_backs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    journal = given_a_journal(monkeypatch, tmp_path)
    monkeypatch.setenv("HOROVOD_HOSTNAME", "h1")
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    state = elastic.TorchState(model=net, optimizer=optimizer, epoch=2, loss=0.5, name="digits", history=[1])
    state.sync()
    step(net, optimizer)
    state.save()
    step(net, optimizer)
    step(net, optimizer)
    state.restore()
    lines = events(journal)
    assert [line["event"] for line in lines] == [
        "committed",
        "synced",
        "stepped",
        "committed",
        "stepped",
        "stepped",
        "rolled_back",
    ]
    assert {(line["host"], line["rank"], line["size"], line["generation"]) for line in lines} == {("h1", 0, 1, 0)}
    assert lines[1]["values"] == {"epoch": 2, "loss": 0.5, "name": "digits"}
    assert (lines[3]["number"], lines[3]["step"]) == (2, 1)
    assert (lines[-1]["steps_lost"], lines[-1]["step"]) == (2, 1)


def test_a_journal_that_is_not_there_or_breaks_does_not_hurt_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in (tmp_path / "absent", Path("/dev/full"), tmp_path):
        monkeypatch.setenv("HVD_ELASTIC_WORKER_JOURNAL", str(path))
        state = elastic.TorchState(batch=0)
        state.sync()
        state.restore()
    assert not (tmp_path / "absent").exists()


def given_a_journal(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Path:
    journal = directory / "worker.jsonl"
    journal.touch()
    monkeypatch.setenv("HVD_ELASTIC_WORKER_JOURNAL", str(journal))
    monkeypatch.setenv("HVD_ELASTIC_SAMPLE", "0")
    return journal


def events(journal: Path, name: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [line for line in lines if name in (None, line["event"])]

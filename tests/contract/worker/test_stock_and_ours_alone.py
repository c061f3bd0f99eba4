"""What a State promises within one process: each check passes on ours and fails on the stock one."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.training import trained

pytestmark = pytest.mark.usefixtures("alone")

State = Callable[..., Any]
Check = Callable[[State], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


@check
def a_roll_back_takes_uncommitted_items_out_of_a_list(make_state: State) -> None:
    state = make_state(history=[1], best={"loss": [3.0]})
    state.save()
    state.history.append(2)
    state.best["loss"].append(1.0)
    state.restore()
    assert (state.history, state.best) == ([1], {"loss": [3.0]})


@check
def a_roll_back_drops_the_gradients_of_the_interrupted_batch(make_state: State) -> None:
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=1.0))
    state = make_state(model=net, optimizer=optimizer)
    net(torch.ones(2, 3)).sum().backward()
    state.restore()
    assert [p.grad for p in net.parameters()] == [None, None]


@check
def a_roll_back_returns_schedulers_of_every_kind(make_state: State) -> None:
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9))
    rates = torch.optim.lr_scheduler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants to see a step before; it was made before the schedulers
        chain = rates.SequentialLR(optimizer, [rates.ConstantLR(optimizer), rates.ExponentialLR(optimizer, 0.9)], [2])
        cycle = rates.OneCycleLR(optimizer, max_lr=1.0, total_steps=20)
        plateau = rates.ReduceLROnPlateau(optimizer, patience=0)
        state = make_state(model=net, optimizer=optimizer, chain=chain, cycle=cycle, plateau=plateau)

        def trajectory() -> list[float]:
            seen = []
            for loss in (1.0, 2.0, 3.0, 4.0):
                optimizer.step()
                chain.step()
                cycle.step()
                plateau.step(loss)
                seen += [optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]]
            return seen

        trajectory()
        state.save()
        first = trajectory()
        for _ in range(2):
            state.restore()
            assert trajectory() == first


@check
def a_scaler_interrupted_after_unscaling_can_unscale_again(make_state: State) -> None:
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    state = make_state(model=net, optimizer=optimizer, scaler=scaler)

    def unscaled() -> float:
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(2, 3)).sum()).backward()
        scaler.unscale_(optimizer)
        return float(scaler.get_scale())

    before = unscaled()
    scaler.step(optimizer)
    scaler.update()
    state.restore()
    unscaled()
    state.restore()  # here a peer was lost
    try:
        assert unscaled() == before
    except RuntimeError as error:
        raise AssertionError from error
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2 * before


@check
def optimizer_state_of_another_type_keeps_it(make_state: State) -> None:
    net = nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for parameter in net.parameters():
        optimizer.state[parameter]["master"] = parameter.detach().float() + 1e-5
    state = make_state(model=net, optimizer=optimizer)
    before = fingerprint([entry["master"] for entry in optimizer.state.values()])
    state.restore()
    assert fingerprint([entry["master"] for entry in optimizer.state.values()]) == before


@check
def a_roll_back_removes_a_group_added_since(make_state: State) -> None:
    head, body = nn.Linear(3, 1), nn.Linear(3, 3)
    optimizer = torch.optim.Adam(head.parameters())
    state = make_state(model=head, body=body, optimizer=optimizer)
    head(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state.save()
    before = fingerprint(optimizer.state_dict())
    optimizer.add_param_group({"params": list(body.parameters())})
    try:
        state.restore()
    except ValueError as error:
        raise AssertionError from error
    assert fingerprint(optimizer.state_dict()) == before


def held() -> int:
    """Bytes of all tensors but those in memory files of the host: what would lie on the model's device."""
    files = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            files.append(range(start, end))
    gc.collect()
    found = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]
    # Other tests left some that have no such memory.
    plain = [tensor for tensor in found if not nn.parameter.is_lazy(tensor) and not tensor.is_nested]
    tensors = [tensor for tensor in plain if tensor.layout == torch.strided]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(size for address, size in storages.items() if not any(address in file for file in files))


@check
def a_commit_makes_no_second_copy_on_the_device(make_state: State) -> None:
    net = nn.Linear(300, 300)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    before = held()
    state = make_state(model=net, optimizer=optimizer)
    state.save()
    assert held() - before < 0.05 * net.weight.nbytes


@pytest.mark.parametrize("function", CHECKS, ids=lambda function: function.__name__)
def test_our_state_keeps_each_promise(function: Check) -> None:
    function(elastic.TorchState)


@pytest.mark.parametrize("function", CHECKS, ids=lambda function: function.__name__)
def test_the_stock_state_breaks_each_promise(function: Check) -> None:
    with pytest.raises(AssertionError):
        function(hvd.elastic.TorchState)

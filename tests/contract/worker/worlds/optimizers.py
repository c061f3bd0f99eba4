"""Optimizers whose state is of another form on a newcomer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.worlds.registry import check, train_alone, weights

Make = Callable[[nn.Module], torch.optim.Optimizer]


def veteran_and_newcomers(State: Any, make: Make, veteran: Callable[[nn.Module, Any], None]) -> dict[str, Any]:
    """``veteran`` is what rank 0 has done to its optimizer since it was made."""
    torch.manual_seed(100 + hvd.rank())
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = make(net)
    state = State(model=net, optimizer=optimizer)
    if hvd.rank() == 0:
        veteran(net, optimizer)
    state.sync()
    after = weights(net), fingerprint(optimizer.state_dict())
    train_alone(net, optimizer, steps=2)
    state.restore()
    train_alone(net, optimizer, steps=1)
    return {
        "groups": [len(group["params"]) for group in optimizer.param_groups],
        "after": after,
        "trained": (weights(net), fingerprint(optimizer.state_dict())),
    }


@check
def newcomer_gets_a_group_that_was_added(State: Any) -> dict[str, Any]:
    def unfreeze(net: nn.Module, optimizer: Any) -> None:
        train_alone(net, optimizer, steps=1)
        optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.5})
        train_alone(net, optimizer, steps=1)

    return veteran_and_newcomers(State, lambda net: torch.optim.Adam(net[2].parameters()), unfreeze)


@check
def newcomer_loses_a_group_that_was_removed(State: Any) -> dict[str, Any]:
    def drop(net: nn.Module, optimizer: Any) -> None:
        train_alone(net, optimizer, steps=1)
        for parameter in optimizer.param_groups.pop()["params"]:
            optimizer.state.pop(parameter)

    def make(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam([{"params": list(net[2].parameters())}, {"params": list(net[0].parameters())}])

    return veteran_and_newcomers(State, make, drop)


@check
def newcomer_gets_lbfgs(State: Any) -> dict[str, Any]:
    torch.manual_seed(100 + hvd.rank())
    net = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    state = State(model=net, optimizer=optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(torch.eye(3)) - 1).pow(2).sum()
        loss.backward()
        return loss

    if hvd.rank() == 0:
        optimizer.step(closure)
    state.sync()
    after = weights(net), fingerprint(optimizer.state_dict())
    optimizer.step(closure)
    return {"after": after, "trained": (weights(net), fingerprint(optimizer.state_dict()))}


@check
def newcomer_gets_schedulers(State: Any) -> dict[str, Any]:
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    rates = torch.optim.lr_scheduler
    chain = rates.SequentialLR(
        optimizer, [rates.ConstantLR(optimizer, 0.5, total_iters=2), rates.ExponentialLR(optimizer, 0.9)], [3]
    )
    plateau = rates.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    state = State(model=net, optimizer=optimizer, chain=chain, plateau=plateau)
    if hvd.rank() == 0:
        for loss in (1.0, 2.0, 2.0, 2.0, 2.0):
            optimizer.step()
            chain.step()
            plateau.step(loss)
    state.sync()
    for loss in (3.0, 3.0):
        optimizer.step()
        state.chain.step()
        state.plateau.step(loss)
    return {"lr": optimizer.param_groups[0]["lr"], "steps": chain.last_epoch, "bad": plateau.num_bad_epochs}

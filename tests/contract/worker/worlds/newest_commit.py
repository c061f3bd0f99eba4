"""Whose state the others take over, and how much of it is sent."""

from __future__ import annotations

import os
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.worlds.registry import check, counted, interrupt_of, model, notify, train_alone, weights


def together(State: Any, *, width: int = 3, **values: Any) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    """A State on every rank, in one world, all with the same."""
    net = model(width)
    optimizer = torch.optim.Adam(net.parameters())
    state = State(model=net, optimizer=optimizer, batch=0, **values)
    state.sync()
    return state, net, optimizer


def ahead(State: Any, holder: int) -> dict[str, Any]:
    """Peers were lost while one rank had committed once more than the others."""
    state, net, optimizer = together(State)
    for number in (1, 2):
        train_alone(net, optimizer, steps=1)
        state.batch = 10 * hvd.rank() + number
        if number == 1 or hvd.rank() == holder:
            state.save()
    state.restore()
    before = weights(net), fingerprint(optimizer.state_dict()), state.batch
    state.on_reset()
    state.sync()
    return {"before": before, "after": (weights(net), fingerprint(optimizer.state_dict()), state.batch)}


@check
def newest_commit_wins_though_it_is_not_rank_0s(State: Any) -> dict[str, Any]:
    return ahead(State, holder=hvd.size() - 1)


@check
def rank_behind_by_one_commit_follows(State: Any) -> dict[str, Any]:
    return ahead(State, holder=0)


@check
def commits_of_one_number_after_unequal_steps(State: Any) -> dict[str, Any]:
    """Each rank commits by its own clock: equally often, at other steps."""
    state, net, optimizer = together(State)
    for step in (1, 2, 3):
        torch.manual_seed(step)
        train_alone(net, optimizer, steps=1)
        state.batch = step
        if step == 2 + hvd.rank():
            state.save()
    state.restore()
    before = weights(net), fingerprint(optimizer.state_dict()), state.batch
    state.on_reset()
    state.sync()
    return {"before": before, "after": (weights(net), fingerprint(optimizer.state_dict()), state.batch)}


@check
def weights_loaded_on_one_rank_and_committed_by_all(State: Any) -> dict[str, Any]:
    """As a script does that goes back to its best checkpoint, which only rank 0 has; a world later it does."""
    state, net, optimizer = together(State)
    train_alone(net, optimizer, steps=1)
    state.commit()
    if hvd.rank() == 0:
        net.load_state_dict({key: torch.zeros_like(value) for key, value in net.state_dict().items()})
    state.save()
    train_alone(net, optimizer, steps=1)
    state.save()
    before = weights(net)
    state.sync()
    return {"before": before, "after": weights(net)}


@check
def first_sync_sends_though_all_hold_commit_0(State: Any) -> dict[str, Any]:
    net = model()
    before = weights(net)
    state = State(model=net, batch=0)
    with counted() as sent:
        state.sync()
    return {"before": before, "after": weights(net), "sent": sent["broadcast"]}


@check
def equal_commits_are_not_sent(State: Any) -> dict[str, Any]:
    state, net, optimizer = together(State)
    with counted() as first:
        state.sync()
    torch.manual_seed(0)
    train_alone(net, optimizer, steps=1)
    state.batch = 1
    state.commit()
    with counted() as second:
        state.sync()
    return {"first": first["broadcast"], "second": second["broadcast"], "batch": state.batch}


@check
def values_and_buffers_that_differ_are_made_equal(State: Any) -> dict[str, Any]:
    with counted() as all_sent:
        state, net, _ = together(State, width=300, loss=0.0, seen=[])
    with torch.no_grad():
        net(torch.randn(4, 300) + hvd.rank())  # batch norm's running mean is now this rank's own
    state.loss = float(hvd.rank())
    state.seen.append(hvd.rank())
    state.save()
    before = weights(net)
    with counted() as sent:
        state.sync()
    after = [weights(net), state.loss, state.seen]
    net[1].running_mean.zero_()
    state.loss = -1.0
    state.restore()
    restored = [weights(net), state.loss, state.seen]
    return {
        "before": before,
        "after": after,
        "restored": restored,
        "sent": sent["broadcast"],
        "all": all_sent["broadcast"],
    }


@check
def the_interrupt_seals(State: Any) -> dict[str, Any]:
    state, net, optimizer = together(State)
    train_alone(net, optimizer, steps=1)
    state.batch = 7
    notify(state, on=0)
    interrupted = any(interrupt_of(state) is not None for _ in range(3))
    live = weights(net), state.batch
    state.restore()
    return {"interrupted": interrupted, "kept": (weights(net), state.batch) == live}


@check
def what_a_reset_callback_changes_reaches_newcomers(State: Any) -> dict[str, Any]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    state = State(model=net, optimizer=optimizer)
    if hvd.rank() == 0:  # the others have only just come: theirs are not called

        def halve() -> None:
            optimizer.param_groups[0]["lr"] /= 2

        state.register_reset_callbacks([halve])
        state.save()
        state.on_reset()
    state.sync()
    after = optimizer.param_groups[0]["lr"]
    state.restore()
    return {"after": after, "restored": optimizer.param_groups[0]["lr"]}


@check
def divergence_is_found_when_asked_for(State: Any) -> dict[str, Any]:
    os.environ["HVD_ELASTIC_VERIFY"] = "1"
    try:
        state, net, _ = together(State)
    finally:
        del os.environ["HVD_ELASTIC_VERIFY"]
    net[0].weight.data.fill_(hvd.rank())
    state.save()
    try:
        state.sync()
    except Exception as error:
        return {"said": f"{type(error).__name__}: {error}"}
    return {"said": ""}


@check
def a_commit_sends_nothing(State: Any) -> dict[str, Any]:
    from horovod.torch import functions

    state, net, optimizer = together(State)
    train_alone(net, optimizer, steps=1)
    state.commit()
    train_alone(net, optimizer, steps=1)
    broadcasts: list[str] = []
    kept = functions.broadcast_
    functions.broadcast_ = lambda *args, **options: broadcasts.append("stock") or kept(*args, **options)
    try:
        with counted() as sent:
            state.commit()
    finally:
        functions.broadcast_ = kept
    return {"broadcasts": len(broadcasts), "sent": sum(sent.values())}

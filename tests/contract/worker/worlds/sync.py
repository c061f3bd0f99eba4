"""What a newcomer gets, what an interrupt asks for, and what a sync leaves of the step before."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from horovod.runner.elastic.worker import HostUpdateResult
from torch import nn

from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.worlds.registry import check, interrupt_of, model, train_alone, weights


@check
def newcomer_falls_back_to_what_was_synced(State: Any) -> dict[str, Any]:
    net = nn.Linear(1, 1)
    first = hvd.rank() == 0
    net.weight.data.fill_(117.0 if first else -1.0)
    state = State(model=net, batch=117 if first else 0)
    state.sync()
    state.restore()  # a peer is lost before the next commit
    return {"weight": net.weight.item(), "batch": state.batch}


@check
def sync_sends_weights_with_their_own_counters(State: Any) -> dict[str, Any]:
    net = nn.Linear(1, 1)
    net.weight.data.fill_(100.0)
    state = State(model=net, batch=100, seen=[])
    state.save()
    if hvd.rank() == 0:
        net.weight.data.fill_(117.0)
        state.batch = 117
        state.seen.append("uncommitted")
    state.sync()
    return {"weight": net.weight.item(), "batch": state.batch, "seen": state.seen}


@check
def newcomer_gets_the_weights_adamw(State: Any) -> dict[str, Any]:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    if hvd.rank() == 0:
        train_alone(net, optimizer, steps=3)
    state = State(model=net, optimizer=optimizer)
    state.sync()
    after_sync = weights(net)
    train_alone(net, optimizer, steps=2)  # the same input on both: only the momenta could differ
    return {
        "weights": after_sync,
        "optimizer": fingerprint(optimizer.state_dict()),
        "weights after training": weights(net),
    }


@check
def any_kind_of_tensor_is_synced(State: Any) -> dict[str, Any]:
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    net.half_precision = nn.Parameter(torch.full((5,), float(hvd.rank()), dtype=torch.bfloat16))
    net.register_buffer("flags", torch.tensor([hvd.rank() == 0, False]))
    net.register_buffer("turned", torch.arange(6.0).view(2, 3).t() + hvd.rank())
    net.register_buffer("nothing", torch.empty(0))
    net.register_buffer("one", torch.tensor(hvd.rank()))
    net.weight.data.fill_(hvd.rank())
    net.bias.data.fill_(hvd.rank())
    state = State(model=net)
    state.sync()
    return {"weights": weights(net)}


@check
def notice_during_the_new_worlds_forming_is_kept(State: Any) -> dict[str, Any]:
    state = State(batch=0)
    if hvd.rank() == 0:
        state.on_hosts_updated(1, HostUpdateResult.added)
    first = interrupt_of(state)
    if hvd.rank() == 0:
        state.on_hosts_updated(5, HostUpdateResult.added)  # Horovod is shutting down and starting again
    state.on_reset()
    second = interrupt_of(state)
    state.on_reset()
    return {"first": first is not None, "second": second is not None, "third": interrupt_of(state) is not None}


@check
def notices_of_one_second_are_two_notices(State: Any) -> dict[str, Any]:
    state = State(batch=0)
    seen = []
    for stamp in (7, 7, 3):  # the same second again, then the clock was set back
        if hvd.rank() == 0:
            state.on_hosts_updated(stamp, HostUpdateResult.added)
        seen.append(interrupt_of(state) is not None)
        state.on_reset()
    return {"seen": seen}


@check
def fingerprints_agree_after_sync(State: Any) -> dict[str, Any]:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    if hvd.rank() == 0:
        train_alone(net, optimizer, steps=2)
    state = State(model=net, optimizer=optimizer, epoch=hvd.rank(), history={"loss": [hvd.rank()]})
    before = state.fingerprint()
    state.sync()
    return {"before": before, "after": state.fingerprint()}


@check
def steps_of_the_root_count_for_the_newcomer(State: Any) -> dict[str, Any]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = State(model=net, optimizer=optimizer)
    if hvd.rank() == 0:
        train_alone(net, optimizer, steps=4)
        state.save()
    state.sync()
    return {"step": state._keeper._steps.done, "number": state._keeper._identity().number}


@check
def interrupted_accumulation_is_forgotten_everywhere(State: Any) -> dict[str, Any]:
    net = nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), named_parameters=net.named_parameters(), backward_passes_per_step=2
    )
    state = State(model=net, optimizer=optimizer)
    net(torch.ones(1, 1)).sum().backward()  # the first of two passes, then the hosts change
    state.sync()
    passes = 0
    try:
        for _ in range(2):
            net(torch.ones(1, 1)).sum().backward()
            passes += 1
        gradient = net.weight.grad.item()
        optimizer.step()
    except AssertionError as error:
        return {"passes": passes, "error": str(error)}
    return {"passes": passes, "gradient": gradient, "error": ""}


@check
def unused_parameters_do_not_stall(State: Any) -> dict[str, Any]:
    net = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    optimizer = torch.optim.Adam(net.parameters())
    if hvd.rank() == 0:
        net["used"](torch.ones(1, 2)).sum().backward()
        optimizer.step()
    state = State(model=net, optimizer=optimizer)
    state.sync()
    return {"entries": len(optimizer.state_dict()["state"]), "optimizer": fingerprint(optimizer.state_dict())}


@check
def different_models_are_named(State: Any) -> dict[str, Any]:
    state = State(model=nn.Linear(2 + hvd.rank(), 1))
    state.sync()
    return {}


@check
def weights_loaded_on_one_rank_reach_the_others(State: Any) -> dict[str, Any]:
    """All ranks sealed something since the last sync, so their commits have the same number."""
    net = nn.Linear(1, 1)
    state = State(model=net, batch=0)
    state.sync()
    if hvd.rank() == 0:
        net.load_state_dict({"weight": torch.tensor([[42.0]]), "bias": torch.tensor([1.0])})
    else:
        net.load_state_dict({"weight": torch.tensor([[0.35]]), "bias": torch.tensor([2.0])})
    state.batch = 0
    state.sync()
    by_load = net.weight.item()
    if hvd.rank() == 0:
        net.weight.data.fill_(7.0)  # behind torch's back
    state.batch = 1
    state.sync()
    return {"by load": by_load, "by data": net.weight.item(), "fingerprint": state.fingerprint()}

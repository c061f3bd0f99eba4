"""States of users, with our mixin (``ours``) and without (``stock``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from hvd_elastic_ext.worker.sync.exchange import fingerprint
from tests.contract.worker.user_states import OLD, Own, with_handlers
from tests.contract.worker.worlds.registry import CHECKS, check, notify, prepare_another_world


def kind(State: Any, name: str) -> Any:
    if State is hvd.elastic.TorchState:
        return OLD[name]
    from tests.contract.worker.user_states_with_mixin import MIXED

    return MIXED[name]


def mixed(State: Any, old: type, **options: Any) -> Any:
    if State is hvd.elastic.TorchState:
        return old
    import hvd_elastic_ext.torch as elastic

    return type(f"Mixed{old.__name__}", (elastic.ElasticMixin, old), options)


def built(make: Any) -> Any:
    torch.manual_seed(100 + hvd.rank())
    net = nn.Linear(3, 2)
    return make(net, torch.optim.Adam(net.parameters()))


def train(state: Any, steps: int) -> None:
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.ones(2, 3)).pow(2).sum().backward()
        state.optimizer.step()
        state.batch += 1
        state.history.append(state.batch)


def look(state: Any) -> dict[str, Any]:
    return {
        "batch": state.batch,
        "history": list(state.history),
        "weights": fingerprint(state.model.state_dict()),
        "optimizer": fingerprint(state.optimizer.state_dict()),
    }


def newest(make: Any) -> dict[str, Any]:
    """Peers were lost while the last rank had committed once more than the others."""
    state = built(make)
    state.sync()
    train(state, 1)
    state.save()
    train(state, 1)
    if hvd.rank() == hvd.size() - 1:
        state.save()
    state.restore()
    before = look(state)
    state.on_reset()
    state.sync()
    return {"before": before, "after": look(state), "rank": getattr(state, "rank", hvd.rank())}


def falls_back(make: Any) -> dict[str, Any]:
    """A newcomer loses a peer after the sync and before its first commit."""
    state = built(make)
    if hvd.rank() == 0:
        train(state, 3)
        state.save()
    state.sync()
    synced = look(state)
    train(state, 1)
    state.restore()
    return {"synced": synced, "restored": look(state)}


def goes_on_under(loop: Any, make: Any) -> dict[str, Any]:
    """A notice in the middle, through a real new world, to the end."""
    prepare_another_world()
    state = built(make)
    worlds: list[int] = []

    @loop
    def training(state: Any) -> None:
        worlds.append(state.batch)
        while state.batch < 6:
            train(state, 1)
            if state.batch == 3 and len(worlds) == 1:
                notify(state, on=0)
            state.commit()

    training(state)
    return {"worlds": worlds, **look(state)}


def _register(scenario: Callable[..., dict[str, Any]], name: str) -> None:
    def run(State: Any) -> dict[str, Any]:
        with with_handlers():
            return scenario(kind(State, name))

    run.__name__ = f"{scenario.__name__}_{name}"
    check(run)


for _name in OLD:
    _register(newest, _name)
    _register(falls_back, _name)


class Forgetful(Own):
    """Its sync forgets the optimizer."""

    def sync(self) -> None:
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.batch, self.history = hvd.broadcast_object((self.batch, self.history), root_rank=0)


@check
def what_a_users_sync_forgets_is_synced(State: Any) -> dict[str, Any]:
    return falls_back(mixed(State, Forgetful))


class Merging(Own):
    """Counts each rank's samples, and adds the counts up in a sync: afterwards rank 0 holds them all."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.total = 0
        self.mine: set[str] = set()

    def state(self) -> dict[str, Any]:
        return {**super().state(), "total": self.total, "mine": self.mine}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.total, self.mine = state["total"], state["mine"]

    def sync(self) -> None:
        total = hvd.allreduce(torch.tensor(self.total), op=hvd.Sum, name="merge").item()
        mine = set().union(*hvd.allgather_object(self.mine))
        super().sync()
        self.total, self.mine = (total if hvd.rank() == 0 else 0), mine


@check
def a_users_sync_merges_what_each_rank_has(State: Any) -> dict[str, Any]:
    state = built(mixed(State, Merging, merged=("total", "mine")))
    state.sync()
    seen = []
    for step in range(2):
        state.total += hvd.rank() + 1
        state.mine.add(f"sample {hvd.rank()} of {step}")
        state.save()
        state.total += 100
        state.restore()
        state.sync()
        seen.append((state.total, sorted(state.mine)))
    return {"seen": seen}


def _loops() -> None:
    for loop in ("ours", "stock"):
        for name in ("own", "torch_state"):

            def run(State: Any, name: str = name, loop: str = loop) -> dict[str, Any]:
                import hvd_elastic_ext.torch as elastic

                with with_handlers():
                    return goes_on_under(elastic.run if loop == "ours" else hvd.elastic.run, kind(State, name))

            CHECKS[f"{name}_goes_on_under_the_{loop}_loop"] = run


_loops()

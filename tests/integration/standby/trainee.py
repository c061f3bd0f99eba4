"""A training script for our State. ``LOOP``: ours or stock. It ends after ``STEPS``, or when the file ``STOP``
exists."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.elastic import State

import hvd_elastic_ext.torch as elastic

STEPS = int(os.environ.get("STEPS", "100000"))
PAUSE = float(os.environ.get("PAUSE", "0.02"))

hvd.init()
print(
    "built as",
    *(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()),
    flush=True,
)
if hvd.rank() == 0:
    print("rank 0 branch", flush=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
# A step without effect, as scripts do it to create the optimizer's state, then an incomplete one.
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
print("dummy step", [round(float(parameter.grad.sum()), 4) for parameter in model.parameters()], flush=True)
optimizer.zero_grad()
model(torch.ones(2, 4)).sum().backward()
sampler = elastic.ElasticSampler(range(1000), shuffle=False)
print("sampler deals", len(sampler), flush=True)


class OverHorovods(elastic.ElasticMixin, hvd.elastic.TorchState):
    """Our mixin over Horovod's State."""


class Users(State):
    """A user's State, with Horovod's collectives in its ``sync``."""

    def __init__(self, **given: Any) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.__dict__.update(given)
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.step))

    def restore(self) -> None:
        weights, moments, self.step = copy.deepcopy(self.saved)
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)

    def sync(self) -> None:
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        self.step = hvd.broadcast_object(self.step, root_rank=0)
        self.save()


class OverUsers(elastic.ElasticMixin, Users):
    """Our mixin over a user's State."""


KINDS: dict[str, Any] = {"ours": elastic.TorchState, "over_horovods": OverHorovods, "over_users": OverUsers}
state = KINDS[os.environ.get("KIND", "ours")](model=model, optimizer=optimizer, sampler=sampler, step=0)
state.register_reset_callbacks([lambda: print("reset", hvd.rank(), hvd.size(), flush=True)])


def stopped() -> bool:
    """Whether the test wants the end. The answer is the same on all ranks."""
    return bool(hvd.allreduce(torch.tensor(float(os.path.exists(os.environ["STOP"]))), op=hvd.Max, name="stop"))


@elastic.on_removed
def removed() -> None:
    print("removed", state.step, "alive", elastic.check_alive(), flush=True)


def train(state: elastic.TorchState) -> str:
    print("enter", hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), flush=True)
    while state.step < STEPS and not stopped():
        optimizer.zero_grad()
        data = torch.full((2, 4), float(state.step % 7) + hvd.rank())
        (model(data) ** 2).mean().backward()
        optimizer.step()
        state.step += 1
        time.sleep(PAUSE)
        print("step", state.step, "rank", hvd.rank(), "size", hvd.size(), flush=True)
        if os.environ.get("FAIL_AT") == str(state.step):
            raise ZeroDivisionError(f"rank {hvd.rank()} could not")
        if state.step % 10 == 0:
            state.commit()
            print("committed", state.step, state.fingerprint(), flush=True)
        else:
            state.check_host_updates()
    return "trained"


run = elastic.run if os.environ.get("LOOP", "ours") == "ours" else hvd.elastic.run
print(run(train)(state), flush=True)

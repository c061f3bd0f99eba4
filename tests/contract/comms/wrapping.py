"""Checks of ``elastic.wrap`` for ``ranks.py``: each compares a world with one process and the whole batch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.shares import agree
from hvd_elastic_ext.worker.optim import averaging
from hvd_elastic_ext.worker.optim.averaging import Averaged, accumulating, wrap

STEPS = 4
Optimizing = Callable[[Any], torch.optim.Optimizer]


class Branching(nn.Module):
    """A layer that all batches use, one that some use, and one that none uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.sometimes = nn.Linear(7, 7)
        self.never = nn.Linear(3, 3)
        self.last = nn.Linear(7, 1)

    def forward(self, data: Tensor, mark: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(data))
        if mark.any():
            hidden = hidden + mark[:, None] * self.sometimes(hidden)
        return self.last(hidden)


def model() -> Branching:
    torch.manual_seed(3)
    return Branching().double()


def batches(size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Global batches; only rank 1's part has the mark."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        data = torch.randn(4 * size, 5, generator=generator, dtype=torch.float64)
        mark = torch.zeros(4 * size, dtype=torch.float64)
        mark[1::size] = 1
        yield data, mark, data.sum(1, keepdim=True)


def mine(comms: Comms, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(part[comms.rank() :: comms.size()] for part in batch)


def loss_of(net: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    data, mark, target = batch
    return mse_loss(net(data, mark), target)


def weights(net: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(p for n, p in net.named_parameters() if "never" not in n).tolist()


def together(comms: Comms, optimizing: Optimizing, *, passes: int = 1, clip: float | None = None) -> list[float]:
    net = model()
    optimizer = wrap(optimizing(net.parameters()), net.named_parameters(), backward_passes_per_step=passes, comms=comms)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for batch in batches(comms.size()):
        optimizer.zero_grad()
        for part in zip(*(value.chunk(passes) for value in mine(comms, batch)), strict=True):
            (loss_of(net, part) / passes).backward()
        if clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(net.parameters(), clip)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
    return weights(net)


def alone(comms: Comms, optimizing: Optimizing, *, clip: float | None = None) -> list[float]:
    net = model()
    optimizer = optimizing(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for batch in batches(comms.size()):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        schedule.step()
    return weights(net)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def wrapped_sgd(comms: Comms) -> Any:
    return [together(comms, sgd), alone(comms, sgd)]


def wrapped_adamw(comms: Comms) -> Any:
    return [together(comms, adamw), alone(comms, adamw)]


def wrapped_with_two_passes(comms: Comms) -> Any:
    return [together(comms, sgd, passes=2), alone(comms, sgd)]


def wrapped_with_clipping(comms: Comms) -> Any:
    return [together(comms, sgd, clip=0.05), alone(comms, sgd, clip=0.05)]


def wrapped_with_a_scheduler_made_first(comms: Comms) -> Any:
    """The scheduler has replaced the optimizer's step before it is wrapped; Horovod's does not survive that."""
    net = model()
    plain = sgd(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = wrap(plain, comms=comms)
    for batch in batches(comms.size()):
        optimizer.zero_grad()
        loss_of(net, mine(comms, batch)).backward()
        optimizer.step()
        schedule.step()
    return [weights(net), alone(comms, sgd)]


def wrapped_with_a_loss_scaler(comms: Comms) -> Any:
    """One rank gets an infinity in the second batch: all skip that step."""
    net = model().float()
    optimizer = wrap(sgd(net.parameters()), net.named_parameters(), comms=comms)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number, batch in enumerate(batches(comms.size())):
        optimizer.zero_grad()
        loss = loss_of(net, tuple(part.float() for part in mine(comms, batch)))
        scaler.scale(loss * (float("inf") if number == 1 and comms.rank() == 1 else 1)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    return [weights(net), scaler.get_scale()]


def wrapped_lbfgs(comms: Comms) -> Any:
    """It evaluates several times: gradients and losses are averaged each time."""

    def train(part: Callable[[Any], Any], wrapped: bool) -> list[float]:
        net = model()
        optimizer: torch.optim.Optimizer = torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe")
        optimizer = wrap(optimizer, comms=comms) if wrapped else optimizer
        batch = part(next(batches(comms.size())))

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, batch)
            loss.backward()
            return loss

        optimizer.step(closure)
        return weights(net)

    return [train(lambda batch: mine(comms, batch), True), train(lambda batch: batch, False)]


def what_is_unused_stays_untouched(comms: Comms) -> Any:
    net = model()
    optimizer = wrap(adamw(net.parameters()), comms=comms)
    before = net.never.weight.clone()
    loss_of(net, mine(comms, next(batches(comms.size())))).backward()
    missing = net.sometimes.weight.grad is None
    optimizer.step()
    return [missing, net.sometimes.weight.grad is None, net.never.weight.grad is None, before.equal(net.never.weight)]


def small_and_large_gradients_of_several_types(comms: Comms) -> Any:
    kept, averaging.BUCKET = averaging.BUCKET, 64
    try:
        parameters = [
            nn.Parameter(torch.zeros(shape, dtype=kind))
            for shape in ((3,), (2, 2), (50,), (5,), (), (7, 2))
            for kind in (torch.float32, torch.float64, torch.bfloat16)
        ]
        optimizer = wrap(torch.optim.SGD(parameters, lr=1.0), comms=comms)
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.full_like(parameter, float(number * 3 + comms.rank() * 4)).t().t()
        optimizer.step()
    finally:
        averaging.BUCKET = kept
    return [parameter.detach().double().unique().tolist() for parameter in parameters]


def sparse_gradients(comms: Comms) -> Any:
    def step(**options: Any) -> list[float]:
        net = nn.Embedding(4, 2, sparse=True)
        nn.init.zeros_(net.weight)
        optimizer = wrap(torch.optim.SGD(net.parameters(), lr=1.0), comms=comms, **options)
        net(torch.tensor([comms.rank()])).sum().backward()
        optimizer.step()
        return (net.weight[:, 0] * comms.size()).tolist()

    try:
        step()
    except UsageError as error:
        return [str(error), step(sparse_as_dense=True)]


def wrapped_is_a_real_optimizer(comms: Comms) -> Any:
    net = model()
    plain = adamw(net.parameters())
    stepped = []
    plain.register_step_post_hook(lambda *_: stepped.append(1))
    optimizer = wrap(plain, comms=comms)
    loss_of(net, mine(comms, next(batches(comms.size())))).backward()
    optimizer.step()
    twin = adamw(model().parameters())
    twin.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(copy.deepcopy(twin.state_dict()))
    copied = copy.deepcopy(optimizer)
    return [
        isinstance(optimizer, torch.optim.AdamW),
        type(optimizer).__name__,
        len(stepped),
        len(optimizer.state) == len(twin.state) > 0,
        isinstance(copied, torch.optim.AdamW) and not isinstance(copied, Averaged),
        optimizer.param_groups[0]["weight_decay"],
    ]


def accumulating_between_passes_only(comms: Comms) -> Any:
    net = model()
    optimizer = wrap(sgd(net.parameters()), net.named_parameters(), backward_passes_per_step=2, comms=comms)
    batch = mine(comms, next(batches(comms.size())))
    seen = [accumulating(optimizer)]
    for _ in range(2):
        loss_of(net, batch).backward()
        seen.append(accumulating(optimizer))
    optimizer.step()
    return [*seen, accumulating(optimizer)]


# --- ranks of unlike speed

TOTAL, SAMPLE_S = 24, 0.002
LENGTH = 20 * TOTAL + 5  # a short batch comes last


def unlike() -> tuple[TensorDataset, nn.Module]:
    torch.manual_seed(3)
    inputs = torch.randn(LENGTH, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    return TensorDataset(inputs, inputs.sum(1, keepdim=True)), net


def in_shares(comms: Comms, data: TensorDataset, net: nn.Module, optimizer: Any) -> list[Any]:
    """Train for an epoch, with rank 1 at half the speed. Return the last shares, and the number of changes."""
    sampler = ElasticSampler(data, seed=1)
    batches = GlobalBatches(sampler, TOTAL, shares="measured")
    changes = []
    for step in batches.steps(DataLoader(data, batch_sampler=batches)):
        for (inputs, targets), weight in step:
            output = net(inputs)
            time.sleep(SAMPLE_S * len(inputs) * (1 + comms.rank()))
            (mse_loss(output, targets) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert batches.shares is not None
        changes += [changed["rows"] for changed in agree({"sampler": batches.shares}, comms).values()]
    return changes


def in_one_process() -> list[float]:
    data, net = unlike()
    optimizer = sgd(net.parameters())
    order = ElasticSampler(data, seed=1).order()
    for start in range(0, LENGTH, TOTAL):
        inputs, targets = data[order[start : start + TOTAL]]
        mse_loss(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(net.parameters()).tolist()


def shares_by_measured_speed(comms: Comms) -> Any:
    data, net = unlike()
    optimizer = wrap(sgd(net.parameters()), net.named_parameters(), comms=comms)
    changes = in_shares(comms, data, net, optimizer)
    return [nn.utils.parameters_to_vector(net.parameters()).tolist(), in_one_process(), changes]


def shares_by_measured_speed_under_ddp(comms: Comms) -> Any:
    """DDP waits for the others within ``backward()``."""
    data, net = unlike()
    changes = in_shares(comms, data, DistributedDataParallel(net), sgd(net.parameters()))
    return [nn.utils.parameters_to_vector(net.parameters()).tolist(), in_one_process(), changes]

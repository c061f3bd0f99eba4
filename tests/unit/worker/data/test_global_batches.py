"""The global batch, and so the training, is the same for every number of ranks: trained on simulated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches, Step
from tests.unit.worker.histories import HISTORIES, World
from tests.unit.worker.placed_samplers import PlacedSampler

# Machines with few cores are welcome to run these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

LARGEST = st.none() | st.integers(1, 40)


def data(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def backward(net: nn.Module, step: Step) -> None:
    """The user's loop: gradients of the passes add up, undivided."""
    for (inputs, labels), weight in step:
        (F.cross_entropy(net(inputs), labels) * weight).backward()


def averaged(gradients: Sequence[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(same).mean(0) for same in zip(*gradients, strict=True)]


class Job:
    """One model trained by any number of simulated ranks, one after the other."""

    def __init__(self, count: int, total: int, *, largest: int | None, drop_last: bool = False) -> None:
        self.data, self.total, self.largest = data(count), total, largest
        self.options = {"seed": 1, "drop_last": drop_last}
        self.net = model()
        self.optimizer = Adam(self.net.parameters(), lr=0.05)
        self.progress = PlacedSampler((0, 1), count, **self.options).state_dict()
        self.losses: list[float] = []
        self.lengths: list[int] = []

    def run(self, size: int, steps: int | None = None) -> None:
        """Train in a world of ``size``, for ``steps`` steps or to the end of the epoch."""
        samplers = [PlacedSampler((rank, size), len(self.data), **self.options) for rank in range(size)]
        for sampler in samplers:
            sampler.load_state_dict(self.progress)
        for number, parts in enumerate(zip(*map(self._steps, samplers), strict=True)):
            if number == steps:
                break
            gradients = []
            for part in parts:
                self.optimizer.zero_grad()
                backward(self.net, part)
                gradients.append([parameter.grad.clone() for parameter in self.net.parameters()])
            for parameter, gradient in zip(self.net.parameters(), averaged(gradients), strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            self._look(parts[0].length)
            self.progress = samplers[0].state_dict()
            assert all(sampler.state_dict() == self.progress for sampler in samplers)

    def next_epoch(self) -> None:
        self.progress = {"epoch": self.progress["epoch"] + 1, "processed_num": 0}

    def _steps(self, sampler: PlacedSampler) -> Iterator[Step]:
        batches = GlobalBatches(sampler, self.total, self.largest)
        return batches.steps(DataLoader(self.data, batch_sampler=batches))

    def _look(self, length: int) -> None:
        inputs, labels = self.data.tensors
        with torch.no_grad():
            self.losses.append(F.cross_entropy(self.net(inputs), labels).item())
        self.lengths.append(length)


@settings(max_examples=30)
@given(
    count=st.integers(1, 40), total=st.integers(1, 20), size=st.integers(1, 6), largest=st.none() | st.integers(1, 7)
)
def test_the_averaged_gradient_is_that_of_one_process_with_the_whole_batch(
    count: int, total: int, size: int, largest: int | None
) -> None:
    job = Job(count, total, largest=largest)
    job.run(size, steps=1)
    inputs, labels = job.data[PlacedSampler((0, 1), count, seed=1).order()[:total]]
    net = model()
    F.cross_entropy(net(inputs), labels).backward()
    for ours, alone in zip(job.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, alone.grad)


def test_the_loss_curve_does_not_depend_on_how_many_ranks_there_are() -> None:
    curves = []
    for size, largest in ((1, None), (2, None), (3, None), (3, 4), (7, 1)):
        job = Job(50, 16, largest=largest)
        for _ in range(3):
            job.run(size)
            job.next_epoch()
        curves.append(job.losses)
        assert job.lengths == [16, 16, 16, 2] * 3
    assert curves[0][-1] < 0.5 * curves[0][0], "it learns something"
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=1e-9)


def test_the_loss_curve_goes_on_through_resizes_within_an_epoch() -> None:
    undisturbed, resized = Job(50, 8, largest=None), Job(50, 8, largest=3)
    undisturbed.run(1)
    for size, steps in ((2, 2), (5, 1), (3, None)):
        resized.run(size, steps)
    assert resized.losses == pytest.approx(undisturbed.losses, rel=1e-9)


@given(count=st.integers(1, 300), total=st.integers(1, 40), largest=LARGEST, history=HISTORIES)
def test_global_batches_are_the_same_ones_through_any_losses_and_resizes(
    count: int, total: int, largest: int | None, history: list[World]
) -> None:
    progress: dict[str, Any] = {"epoch": 0, "processed_num": 0}
    committed: list[set[int]] = []
    for world in [*history, World(size=3, batches=count + 1, commit_every=1, end="resize")]:
        live, samplers = list(committed), [PlacedSampler((rank, world.size), count) for rank in range(world.size)]
        for sampler in samplers:
            sampler.load_state_dict(progress)
        batches = [GlobalBatches(sampler, total, largest) for sampler in samplers]
        running = [each.steps(AsLoaded(each)) for each in batches]
        for number, parts in enumerate(zip(*running, strict=True)):
            if number == world.batches:
                break
            live.append({index for part in parts for indices, weight in part if weight for index in indices})
            if (number + 1) % world.commit_every == 0:
                progress, committed = samplers[0].state_dict(), list(live)
        if world.end == "resize":
            progress, committed = samplers[0].state_dict(), live
    order = PlacedSampler((0, 1), count).order().tolist()
    assert committed == [set(order[start : start + total]) for start in range(0, count, total)]


class AsLoaded:
    """A loader that delivers the indices themselves."""

    def __init__(self, batches: GlobalBatches) -> None:
        self.batch_sampler = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)


def test_drop_last_leaves_the_incomplete_global_batch_out() -> None:
    job = Job(50, 16, largest=None, drop_last=True)
    job.run(3)
    assert job.lengths == [16, 16, 16]


def test_loader_processes_and_what_they_fetch_ahead_make_no_difference() -> None:
    sampler = PlacedSampler((1, 3), 40, shuffle=False)
    batches = GlobalBatches(sampler, 12, largest=2)
    loader = DataLoader(range(40), batch_sampler=batches, num_workers=2, prefetch_factor=4)
    assert (len(loader), batches.passes) == (3 * 2 + 1, 2)
    running = batches.steps(loader)
    first = next(running)
    assert [(batch.tolist(), weight) for batch, weight in first] == [([1, 4], 0.5), ([7, 10], 0.5)]
    second = next(running)
    next(iter(second))
    assert sampler.state_dict()["processed_num"] == 12, "a step is recorded when all of it has been used"
    running.close()  # the State rolls back; the next world begins
    sampler.place = (0, 1)
    steps = [[batch.tolist() for batch, _ in step] for step in batches.steps(loader)]
    assert sorted(index for step in steps for batch in step for index in batch) == list(range(12, 40))
    del running, loader


def test_a_step_left_in_the_middle_and_a_foreign_loader_are_refused() -> None:
    sampler = PlacedSampler((0, 1), 40)
    batches = GlobalBatches(sampler, 12, largest=2)
    running = batches.steps(DataLoader(range(40), batch_sampler=batches))
    next(iter(next(running)))
    with pytest.raises(UsageError, match="before all of its 6 micro-batches"):
        next(running)
    with pytest.raises(UsageError, match="batch_sampler"):
        next(batches.steps(DataLoader(range(40))))

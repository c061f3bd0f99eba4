"""What a step does so that it can be done again, without processes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.ddp import ElasticDDP
from hvd_elastic_ext.worker.replay.notes import Deal, Run, World
from hvd_elastic_ext.worker.replay.recorder import Recorder
from tests.unit.worker.lockstep import LockstepComms, in_lockstep
from tests.unit.worker.placed_samplers import PlacedSampler


class Job:
    """One rank: a State, as a recorder sees it, and a loop."""

    def __init__(self, *, rate: float = 0.1) -> None:
        self.data = TensorDataset(torch.arange(24), torch.randn(24, 3, generator=torch.Generator().manual_seed(1)))
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 1))
        self.optimizer = wrap(torch.optim.SGD(self.net.parameters(), lr=rate), comms=AloneComms())
        self.sampler = PlacedSampler((0, 1), 24)
        self.count = 0
        self.generator = torch.Generator().manual_seed(4)
        self.ends: list[tuple[int, int]] = []
        self.recorder = Recorder(self, replayed=lambda *end: self.ends.append(end))
        self.optimizer.register_step_post_hook(self._stepped)
        self.rates: list[float] = []
        self.batches = GlobalBatches(self.sampler, 4)

    def optimizers(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer}

    def models(self) -> Sequence[nn.Module]:
        return [self.net]

    def samplers(self) -> dict[str, Any]:
        return {"sampler": self.sampler}

    def generators(self) -> Sequence[torch.Generator]:
        return [self.generator]

    def steps(self) -> int:
        return self.count

    def _stepped(self, *_: Any) -> None:
        self.count += 1
        self.recorder.stepped()

    def enter(self, comms: Any = None, *, generation: int = 1) -> None:
        self.recorder.enter(comms or AloneComms(), generation=generation, root=0)

    def lost(self) -> list[Deal]:
        return self.recorder.lost(self.sampler, 99)

    def train(self, steps: int) -> list[Any]:
        """Do steps; what each has drawn."""
        drawn = []
        loop = self.batches.steps(DataLoader(self.data, batch_sampler=self.batches))
        for _ in range(steps):
            step = next(loop)
            drawn.append([])
            for (places, inputs), weight in step:
                own = torch.rand(1, generator=self.generator).item()
                drawn[-1].append((places.tolist(), random.random(), np.random.rand(), torch.rand(1).item(), own))
                (self.net(inputs).mean() * weight).backward()
            self.optimizer.step()
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.zero_grad()
        return drawn

    def weights(self) -> list[torch.Tensor]:
        return [value.clone() for value in self.net.state_dict().values()]


def lost(job: Job, *steps: Run, places: dict[int, int]) -> None:
    """Let the job have lost steps that other worlds did."""
    job.recorder._left = tuple(steps)
    job.recorder._places.update(places)


def test_steps_since_the_commit_are_done_again_after_a_loss_and_those_before_it_are_not() -> None:
    job = Job()
    job.enter()
    job.train(2)
    job.recorder.committed()
    progress, own = job.sampler.state_dict(), job.generator.get_state()
    first = job.train(3)
    job.recorder.rolled_back(world_lost=True)
    job.sampler.load_state_dict(progress)
    job.generator.set_state(own)
    job.count = 2
    random.seed(99)  # a rank that comes to them otherwise
    torch.manual_seed(99)
    job.enter(generation=2)
    assert len(job.lost()) == 3
    assert job.train(3) == first
    job.recorder.settle()
    assert job.ends == [(3, 1)]
    assert job.lost() == []


def test_a_second_loss_in_the_middle_leaves_all_steps_to_be_done_again_as_the_worlds_had_done_them() -> None:
    job = Job()
    job.enter()
    lost(job, Run(World(1, 2, source="sampler"), (0.1,), 3), places={1: 1})
    job.enter(generation=2)
    assert [deal.parts for deal in job.lost()] == [(1, 0)] * 3
    job.train(4)  # three of them, and one of its own
    job.recorder.rolled_back(world_lost=True)
    job.enter(generation=3)
    deals = job.lost()
    assert [(deal.run.world.size, deal.parts) for deal in deals] == [(2, (1, 0))] * 3 + [(1, (0,))]
    job.sampler.load_state_dict({"epoch": 0, "processed_num": 0})
    job.train(2)
    job.recorder.rolled_back(world_lost=True)
    job.enter(generation=4)
    assert [deal.run.world.size for deal in job.lost()] == [2, 2, 2, 1]


def test_a_commit_in_the_middle_leaves_only_the_rest() -> None:
    job = Job()
    job.enter()
    lost(job, Run(World(1, 2, source="sampler"), (0.1,), 3), places={1: 0})
    job.enter(generation=2)
    job.train(2)
    job.recorder.committed()
    job.recorder.rolled_back(world_lost=True)
    job.enter(generation=3)
    assert [deal.run.world.size for deal in job.lost()] == [2]


def test_a_step_that_one_survivor_alone_has_done_is_done_again_by_all() -> None:
    def rank(comms: LockstepComms) -> Any:
        job = Job()
        job.recorder._left = (Run(World(1, 3, source="sampler"), (0.1,), 4 + comms.rank()),)
        job.recorder._places = {1: 2 - 2 * comms.rank()}
        job.enter(comms, generation=2)
        return [deal.parts for deal in job.lost()], job.recorder._seed

    (first, second), _ = in_lockstep(2, rank)
    assert first == ([(2, 1)] * 5, torch.Generator().manual_seed(3).initial_seed())
    assert second == ([(0,)] * 5, first[1])


def test_buffers_and_generators_end_as_after_the_survivors_own_part() -> None:
    jobs = []
    for size in (1, 2):
        job = Job()
        job.enter()
        jobs.append(job)
        if size == 2:
            job.batches.total = 8  # rank 0 takes every second sample of it
            lost(job, Run(World(1, 2, source="sampler"), (0.1,)), places={1: 0})
            job.enter(generation=2)
            own = [[0, 2, 4, 6]]
        else:
            own = [[0, 1, 2, 3]]
        order = job.sampler.order()
        drawn = job.train(1)[0]
        assert drawn[0][0] == [int(order[place]) for place in own[0]]
        job.after = random.random(), np.random.rand(), torch.rand(1).item(), job.generator.get_state().tolist()
        job.drawn = drawn
    alone, both = jobs
    assert len(both.drawn) == 2
    assert both.drawn[0][1:] == alone.drawn[0][1:], "rank 0 of step 0 has one seed"
    assert both.drawn[1][1:4] != both.drawn[0][1:4]
    assert both.drawn[1][4] == both.drawn[0][4], "a generator of the State is the same on all ranks"
    assert both.after == alone.after
    assert both.net[1].num_batches_tracked.item() == 1


def test_a_lost_step_has_the_rate_that_it_had_and_what_follows_the_step_finds_the_present_one() -> None:
    job = Job(rate=0.1)
    job.enter()
    used = []
    job.optimizer.register_step_pre_hook(lambda *_: used.append(job.optimizer.param_groups[0]["lr"]))
    lost(job, Run(World(1, 2, source="sampler"), (0.25,)), places={1: 0})
    job.enter(generation=2)
    job.train(2)
    assert used == [0.25, 0.1]
    assert job.rates == [0.1, 0.1]


def test_the_passes_for_a_step_are_the_users_again_after_the_lost_ones_and_after_a_loss() -> None:
    job = Job()
    job.enter()
    job.optimizer.set_backward_passes_per_step(2)
    lost(job, Run(World(1, 2, source="sampler"), (0.1,), 2), places={1: 0})
    job.enter(generation=2)
    job.train(2)
    job.recorder.settle()
    assert job.optimizer.backward_passes_per_step == 2
    lost(job, Run(World(1, 2, source="sampler"), (0.1,), 2), places={1: 0})
    job.enter(generation=2)
    loop = job.batches.steps(DataLoader(job.data, batch_sampler=job.batches))
    list(next(loop))
    assert job.optimizer.backward_passes_per_step > 1000
    job.recorder.rolled_back(world_lost=True)
    assert job.optimizer.backward_passes_per_step == 2


def test_a_step_of_which_the_recorder_does_not_know_the_samples_is_refused() -> None:
    job = Job()
    job.optimizer.step()  # before training
    job.enter()
    with pytest.raises(UsageError, match="elsewhere than"):
        job.optimizer.step()
    job.recorder.ended()
    job.optimizer.step()


def test_what_cannot_be_done_again_is_refused_before_training() -> None:
    job = Job()
    job.net = nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4))
    with pytest.raises(UsageError, match="1 is a SyncBatchNorm"):
        job.enter()
    job = Job()
    job.net = ElasticDDP(job.net)
    with pytest.raises(UsageError, match="DDP averages in each backward pass"):
        job.enter()
    job = Job()
    job.optimizer = torch.optim.SGD(job.net.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"state.optimizer \(SGD\) does not average"):
        job.enter()
    job = Job()
    job.optimizers = lambda: {"optimizer": object()}
    with pytest.raises(UsageError, match="is not an optimizer of torch"):
        job.enter()
    job.optimizers = dict
    with pytest.raises(UsageError, match="needs an optimizer"):
        job.enter()

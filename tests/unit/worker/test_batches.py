"""The global batch, and so the training, is the same for every number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from horovod.torch.elastic import sampler as stock_sampler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, LambdaLR, LinearLR, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.batches import Split, lr_factor, micro_batches, split
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches, Step
from hvd_elastic_ext.worker.data.learning_rate import KEY, ScaledLearningRate
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from tests.unit.worker.histories import HISTORIES, World

# Machines with few cores are welcome to run these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

TOTALS = st.integers(1, 200)
SIZES = st.integers(1, 12)
LARGEST = st.none() | st.integers(1, 40)


# -- arithmetic


@given(total=TOTALS, size=SIZES, largest=LARGEST)
def test_the_shares_add_up_and_no_rank_takes_more_than_it_can(total: int, size: int, largest: int | None) -> None:
    shared = split(total, size=size, largest=largest)
    assert sum(shared.batches) == total
    assert max(shared.batches) - min(shared.batches) <= 1
    assert shared.passes >= 1
    assert largest is None or (shared.passes - 1) * largest < max(shared.batches) <= shared.passes * largest


@given(total=TOTALS, size=SIZES, largest=LARGEST)
def test_every_sample_has_the_same_weight_whoever_takes_it(total: int, size: int, largest: int | None) -> None:
    weights = [0.0] * total
    plans = [micro_batches(total, rank=rank, size=size, largest=largest) for rank in range(size)]
    assert len({len(plan) for plan in plans}) == 1, "all ranks make equally many passes"
    for plan in plans:
        for micro in plan:
            assert len(micro.places) >= 1
            assert largest is None or len(micro.places) <= largest
            for place in micro.places:
                weights[place] += micro.weight / len(micro.places) / size
    assert weights == pytest.approx([1 / total] * total)


def test_shares_that_divide_have_weight_one_over_the_passes() -> None:
    assert split(512, size=4, largest=64) == Split((128,) * 4, 2)
    assert {micro.weight for micro in micro_batches(512, rank=1, size=4, largest=64)} == {0.5}
    assert [micro.weight for micro in micro_batches(512, rank=3, size=4)] == [1.0]


def test_more_ranks_than_samples_leaves_some_with_a_sample_of_no_weight() -> None:
    plans = [micro_batches(2, rank=rank, size=3) for rank in range(3)]
    assert [(micro.places, micro.weight) for (micro,) in plans] == [((0,), 1.5), ((1,), 1.5), ((0,), 0.0)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"total": 0, "size": 1}, "the global batch is 0"),
        ({"total": 8, "size": 0}, "the number of ranks is 0"),
        ({"total": 8, "size": 1, "largest": 0}, "the largest batch is 0"),
    ],
)
def test_impossible_numbers_are_refused_in_one_line(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        split(**arguments)
    with pytest.raises(UsageError, match=complaint):
        micro_batches(rank=0, **arguments)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 2 is not one of 2"):
        micro_batches(8, rank=2, size=2)


# -- training on simulated ranks


class Placed(ElasticSampler):
    def __init__(self, place: tuple[int, int], count: int, **options: Any) -> None:
        self.place = place
        super().__init__(range(count), **options)

    def world(self) -> tuple[int, int]:
        return self.place


def data(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def backward(net: nn.Module, step: Step) -> None:
    """What the user's loop does: gradients of the passes add up, undivided."""
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
        self.progress = Placed((0, 1), count, **self.options).state_dict()
        self.losses: list[float] = []
        self.lengths: list[int] = []

    def run(self, size: int, steps: int | None = None) -> None:
        """Train in a world of ``size``, for ``steps`` steps or to the end of the epoch."""
        samplers = [Placed((rank, size), len(self.data), **self.options) for rank in range(size)]
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

    def _steps(self, sampler: Placed) -> Iterator[Step]:
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
    inputs, labels = job.data[Placed((0, 1), count, seed=1).order()[:total]]
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


@given(
    count=st.integers(1, 300),
    total=st.integers(1, 40),
    largest=LARGEST,
    history=HISTORIES,
)
def test_global_batches_are_the_same_ones_through_any_losses_and_resizes(
    count: int, total: int, largest: int | None, history: list[World]
) -> None:
    progress: dict[str, Any] = {"epoch": 0, "processed_num": 0}
    committed: list[set[int]] = []
    for world in [*history, World(size=3, batches=count + 1, commit_every=1, end="resize")]:
        live, samplers = list(committed), [Placed((rank, world.size), count) for rank in range(world.size)]
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
    order = Placed((0, 1), count).order().tolist()
    assert committed == [set(order[start : start + total]) for start in range(0, count, total)]


class AsLoaded:
    """A loader that delivers the indices themselves."""

    def __init__(self, batches: GlobalBatches) -> None:
        self.batch_sampler = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)


def test_a_batch_that_grows_with_the_world_gives_another_curve() -> None:
    """What happens without it: the same batch on each rank."""
    curves = []
    for size in (1, 3):
        job = Job(48, 8 * size, largest=None)
        job.run(size)
        curves.append(job.losses)
    assert curves[0][1] != pytest.approx(curves[1][1], rel=1e-3)


def stock_losses(size: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """An epoch of the usual script on ``size`` ranks: Horovod's sampler, 8 samples a rank, gradients averaged."""
    inputs, net = torch.linspace(-1, 1, 48).unsqueeze(1), nn.Linear(1, 1)
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    optimizer, hands = torch.optim.SGD(net.parameters(), lr=0.5), []
    for rank in range(size):
        monkeypatch.setattr(stock_sampler, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(stock_sampler, "size", lambda: size)
        hands.append(DataLoader(inputs, batch_size=8, sampler=stock_sampler.ElasticSampler(inputs, shuffle=False)))  # type: ignore[arg-type]
    losses = []
    for parts in zip(*hands, strict=True):
        loss = torch.stack([(net(part) - 3 * part - 1).pow(2).mean() for part in parts]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_stock_way_takes_fewer_steps_on_larger_batches_in_a_larger_world(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, three = stock_losses(1, monkeypatch), stock_losses(3, monkeypatch)
    assert (len(alone), len(three)) == (6, 2)
    assert alone[-1] < 0.5 * three[-1], "after the same samples it has learnt less"


def test_drop_last_leaves_the_incomplete_global_batch_out() -> None:
    job = Job(50, 16, largest=None, drop_last=True)
    job.run(3)
    assert job.lengths == [16, 16, 16]


def test_loader_processes_and_what_they_fetch_ahead_make_no_difference() -> None:
    sampler = Placed((1, 3), 40, shuffle=False)
    batches = GlobalBatches(sampler, 12, largest=2)
    loader = DataLoader(range(40), batch_sampler=batches, num_workers=2, prefetch_factor=4)  # type: ignore[arg-type]
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
    sampler = Placed((0, 1), 40)
    batches = GlobalBatches(sampler, 12, largest=2)
    running = batches.steps(DataLoader(range(40), batch_sampler=batches))  # type: ignore[arg-type]
    next(iter(next(running)))
    with pytest.raises(UsageError, match="before all of its 6 micro-batches"):
        next(running)
    with pytest.raises(UsageError, match="batch_sampler"):
        next(batches.steps(DataLoader(range(40))))  # type: ignore[arg-type]


# -- learning rate


class Scaled(ScaledLearningRate):
    size = 1

    def world(self) -> tuple[int, int]:
        return 0, self.size

    def resized(self, size: int) -> Scaled:
        self.size = size
        self()
        return self


def optimizer(lr: float = 0.1) -> SGD:
    return SGD(
        [{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.ones(1))], "lr": 3 * lr}], lr=lr
    )


def rates(of: Any) -> list[float]:
    return [group["lr"] for group in of.param_groups]


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rules(rule: Any, factor: float) -> None:
    assert lr_factor(rule, size=8, base=2) == factor
    scaled = Scaled(optimizer(), rule, base=2).resized(8)
    assert rates(scaled.optimizer) == pytest.approx([0.1 * factor, 0.3 * factor])


def test_unknown_rules_and_bases_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="choose linear, sqrt, none"):
        ScaledLearningRate(optimizer(), "cubic", base=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="base is 0"):
        ScaledLearningRate(optimizer(), base=0)


@given(sizes=st.lists(st.integers(1, 64), min_size=1, max_size=30), rule=st.sampled_from(["linear", "sqrt", "none"]))
def test_any_number_of_resizes_never_compounds(sizes: list[int], rule: Any) -> None:
    scaled = Scaled(optimizer(), rule, base=4)
    for size in sizes:
        scaled.resized(size).resized(size)
    assert rates(scaled.optimizer) == pytest.approx([lr * lr_factor(rule, size=sizes[-1], base=4) for lr in (0.1, 0.3)])


SCHEDULERS = {
    "step": lambda o: StepLR(o, step_size=2, gamma=0.5),
    "lambda": lambda o: LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "cosine": lambda o: CosineAnnealingLR(o, T_max=12),
    "cyclic": lambda o: CyclicLR(o, [0.1, 0.3], [0.2, 0.6], step_size_up=3, cycle_momentum=False),
    "one cycle": lambda o: OneCycleLR(o, max_lr=[0.1, 0.3], total_steps=12, cycle_momentum=False),
    "warm-up": lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=3), StepLR(o, 2, 0.5)], milestones=[3]),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_a_scheduler_goes_on_as_if_it_had_known_the_world_from_the_start(make: Any) -> None:
    plain = optimizer()
    alone = make(plain)
    ours = optimizer()
    scheduler = make(ours)
    Scaled(ours, base=1, scheduler=scheduler).resized(7)
    scaled = Scaled(ours, base=1, scheduler=scheduler)  # made once more, as in a training function
    for size in (2, 2, 6, 3, 1, 5, 5, 4, 8):
        for steered, of in ((plain, alone), (ours, scheduler)):
            steered.step()
            of.step()
        scaled.resized(size)
        assert rates(ours) == pytest.approx([size * lr for lr in rates(plain)])
        assert scheduler.get_last_lr() == pytest.approx(rates(ours))


def test_a_roll_back_across_a_resize_ends_with_the_rate_of_the_new_world() -> None:
    ours = optimizer()
    scheduler = StepLR(ours, step_size=1, gamma=0.5)
    scaled = Scaled(ours, base=1, scheduler=scheduler).resized(4)
    commit = {"optimizer": ours.state_dict(), "scheduler": scheduler.state_dict()}
    ours.step()
    scheduler.step()
    # The order of a loss: roll back, new world, reset callbacks.
    ours.load_state_dict(commit["optimizer"])
    scheduler.load_state_dict(commit["scheduler"])
    scaled.resized(3)
    assert rates(ours) == pytest.approx([0.3, 0.9])
    ours.step()
    scheduler.step()
    assert rates(ours) == pytest.approx([0.15, 0.45])


@pytest.mark.parametrize("callback_before_sync", [True, False])
def test_a_newcomer_ends_with_the_survivors_rate_whatever_the_order(callback_before_sync: bool) -> None:
    survivor, newcomer = optimizer(), optimizer()
    theirs, own = StepLR(survivor, step_size=1, gamma=0.5), StepLR(newcomer, step_size=1, gamma=0.5)
    scaled = Scaled(survivor, base=2, scheduler=theirs).resized(2)
    survivor.step()
    theirs.step()
    Scaled.size = 3  # the newcomer builds its optimizer in the new world
    try:
        arrived = Scaled(newcomer, base=2, scheduler=own)
    finally:
        Scaled.size = 1
    arrived.size = 3
    if callback_before_sync:
        scaled.resized(3)
    newcomer.load_state_dict(survivor.state_dict())
    own.load_state_dict(theirs.state_dict())
    scaled.resized(3)  # first thing in the training function, on all ranks
    arrived()
    assert rates(newcomer) == rates(survivor) == pytest.approx([0.075, 0.225])
    assert own.base_lrs == theirs.base_lrs == pytest.approx([0.15, 0.45])


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    # The wrapped optimizer's groups are the plain one's until a state is loaded, and then no longer.
    with pytest.raises(UsageError, match="wrap the optimizer first"):
        ScaledLearningRate(optimizer(), base=1, scheduler=StepLR(optimizer(), 1))


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(0.1)
    ours = AdamW([nn.Parameter(torch.zeros(1))], lr=rate, foreach=False)
    Scaled(ours, base=1).resized(3)
    assert ours.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.3)


def test_the_factor_is_part_of_the_optimizers_state() -> None:
    ours = optimizer()
    Scaled(ours, base=1).resized(3)
    assert [group[KEY] for group in ours.state_dict()["param_groups"]] == [3.0, 3.0]

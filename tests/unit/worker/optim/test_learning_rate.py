"""A rate that follows the global batch through any number of resizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, LambdaLR, LinearLR, OneCycleLR, SequentialLR, StepLR

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.optim.learning_rate import KEY, ScaledLearningRate, lr_factor


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
def test_the_rules_scale_the_rates(rule: Any, factor: float) -> None:
    assert lr_factor(rule, size=8, base=2) == factor
    scaled = Scaled(optimizer(), rule, base=2).resized(8)
    assert rates(scaled.optimizer) == pytest.approx([0.1 * factor, 0.3 * factor])


def test_unknown_rules_and_bases_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="choose linear, sqrt, none"):
        ScaledLearningRate(optimizer(), "cubic", base=1)
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
def test_a_scheduler_continues_as_if_the_world_had_always_been_so(make: Any) -> None:
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

"""How long a step waits for other ranks, as the launcher gets to know it: under DDP, and while ours averages."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.nn.parallel import DistributedDataParallel

from hvd_elastic_ext.worker.optim import averaging, step_waits
from hvd_elastic_ext.worker.optim.step_waits import OwnTime
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepTimer
from tests.support.waiting import wait_until
from tests.unit.worker.fake_gpu import Event, Gpu, gpu

__all__ = ["gpu"]


@pytest.fixture(autouse=True, scope="module")
def _world() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Training:
    """A DDP, the other ranks of which are a thread, and a clock that they and this rank's work move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.status = Status()
        self.timer = StepTimer(self.status, lambda: self.now)
        self.others_s = 0.0
        self.error: Exception | None = None
        self.late: list[threading.Thread] = []
        self.ddp = self.wrapped(nn.Linear(2, 1))
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1)

    def wrapped(self, module: nn.Module) -> DistributedDataParallel:
        ddp = DistributedDataParallel(module)
        ddp.register_comm_hook(None, _annotated(self._averaged))
        return ddp

    def _averaged(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        before = self.now
        future = torch.futures.Future[torch.Tensor]()

        def others() -> None:
            # DDP waits when all its callbacks but the last have been called: then the clock is read.
            if self.others_s:
                self.read.wait(10)
                self.now = before + self.others_s
            if self.error is None:
                future.set_result(bucket.buffer())
            else:
                future.set_exception(self.error)

        self.read = threading.Event()
        self.timer._now = self._read
        self.late.append(threading.Thread(target=others))
        self.late[-1].start()
        return future

    def _read(self) -> float:
        self.read.set()
        return self.now

    def backward(self, *, own_s: float) -> None:
        loss = self.ddp(torch.ones(1, 2)).sum()
        self.now += own_s
        loss.backward()

    def step(self, *, own_s: float, others_s: float) -> float | None:
        """One step; return the seconds of it that the launcher is told."""
        self.others_s = others_s
        self.backward(own_s=own_s)
        self.ends_step()
        return self.status.step_s

    def ends_step(self) -> None:
        assert not self.status.waiting
        self.timer.before_step(self.optimizer)
        self.timer.after_step(self.optimizer)


def _annotated(hook: Callable[[Any], torch.futures.Future[torch.Tensor]]) -> Any:
    def annotated(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(bucket)

    annotated.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return annotated


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    step_waits.measure(lambda: standby.current().step_timer)
    training = Training()
    monkeypatch.setattr(standby.current(), "step_timer", training.timer)
    yield training
    for thread in training.late:
        thread.join()


def test_what_ddp_waits_for_others_is_not_this_ranks_time(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    assert training.step(own_s=0.5, others_s=7.0) == 0.5
    assert training.step(own_s=0.25, others_s=0.0) == 0.25


def test_a_device_s_own_time_is_without_its_waits_at_the_end_of_ddp_s_backward_passes(
    gpu: Gpu, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event(_: int | None) -> Event:
        return Event(gpu, training._read())  # the other ranks come once DDP waits

    training.others_s = 7.0
    training.backward(own_s=1.0)
    monkeypatch.setattr(step_waits, "_on_present_device", lambda value: True)
    monkeypatch.setattr(step_waits, "_event", event)
    measured = OwnTime.begin()
    training.backward(own_s=0.5)
    training.backward(own_s=0.25)
    measured.end()
    assert training.now == 8.0 + 7.5 + 7.25
    assert measured.seconds() == 0.75


def test_nothing_is_measured_of_a_ddp_on_another_device_than_the_present_one(
    gpu: Gpu, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = OwnTime.begin()
    for value in (torch.ones(1), torch.ones(1, device="meta")):
        step_waits._expect_backward(training.timer, training.ddp, value)
    measured.end()
    assert measured.seconds() is None


def test_several_backward_passes_of_a_step_wait_once_if_they_are_accumulated(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    with training.ddp.no_sync():
        training.backward(own_s=2.0)
        assert not training.status.waiting
    assert training.step(own_s=0.5, others_s=7.0) == 2.5


def test_of_short_steps_only_some_are_measured(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    assert training.step(own_s=0.001, others_s=0.001) == 0.001
    found = [training.step(own_s=0.002 + number / 1e6, others_s=0.0) for number in range(50)]
    assert found[:5] == [0.001] * 5
    assert 5 <= len(set(found)) <= 7


def test_a_rank_whose_backward_pass_fails_is_not_taken_for_one_that_waits(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    training.error = RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError, match="closed by peer"):
        training.backward(own_s=1.0)
    assert not training.status.waiting
    training.error = None
    training.ends_step()
    assert training.step(own_s=0.5, others_s=7.0) == 0.5


def test_a_graph_that_is_gone_through_twice_is_measured_twice(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    inputs = torch.ones(1, 2, requires_grad=True)
    loss = training.ddp(inputs).sum()
    training.others_s = 2.0
    torch.autograd.grad(loss, inputs, retain_graph=True)
    training.now += 0.5
    training.others_s = 3.0
    loss.backward()
    training.ends_step()
    assert training.status.step_s == 0.5


def test_a_wait_for_the_values_of_buffers_in_a_forward_pass_counts(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broadcast(**_: object) -> None:
        assert training.status.waiting
        training.now += 4.0

    training.step(own_s=1.0, others_s=1.0)
    ddp = training.wrapped(nn.BatchNorm1d(2))
    monkeypatch.setattr(ddp, "_default_broadcast_coalesced", broadcast)
    training.now += 0.5
    ddp(torch.ones(3, 2))
    training.ends_step()
    assert training.status.step_s == 0.5


def test_a_wait_for_an_operation_of_the_script_counts(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    future = torch.futures.Future[torch.Tensor]()

    def others() -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: training.status.waiting, what="this rank to wait", timeout=10)
        training.now += 4.0
        future.set_result(torch.ones(1))

    thread = threading.Thread(target=others)
    thread.start()
    _create_work_from_future(future).wait()
    thread.join()
    training.now += 0.5
    training.ends_step()
    assert training.status.step_s == 0.5


def test_a_parameter_that_a_model_returns_keeps_no_hooks(training: Training) -> None:
    class Returns(nn.Linear):
        def forward(self, given: torch.Tensor) -> Any:
            return super().forward(given), self.bias

    module = Returns(2, 1)
    ddp = training.wrapped(module)
    for _ in range(3):
        found, bias = ddp(torch.ones(1, 2))
        (found.sum() + bias.sum()).backward()
    assert not module.bias._backward_hooks


def test_a_ddp_can_be_copied_and_saved_as_before(training: Training) -> None:
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    ddp(torch.ones(1, 2)).sum().backward()
    copied = copy.deepcopy(ddp)
    assert copied.module.weight is not ddp.module.weight
    assert pickle.loads(pickle.dumps(ddp)).module.weight.shape == (1, 2)


def test_averaging_without_ddp_is_a_wait_too(training: Training) -> None:
    class Two:
        """Comms of two ranks, of which the other one comes 3 s later."""

        def size(self) -> int:
            return 2

        def sum(self, data: torch.Tensor, *, name: str) -> None:
            assert training.status.waiting
            training.now += 3.0

    model = nn.Linear(2, 1)
    average = averaging.Averaging(Two(), 1)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average.watch(optimizer)  # type: ignore[arg-type]
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        training.now += 0.5
        average.average()
        training.timer.before_step(optimizer)
        training.timer.after_step(optimizer)
    assert training.status.step_s == 0.5
    assert not training.status.waiting

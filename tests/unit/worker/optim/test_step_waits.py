"""How long a step waits for other ranks, as the launcher gets to know it: under DDP, and while ours averages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hvd_elastic_ext.worker.optim import averaging, step_waits
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepTimer
from tests.support.waiting import wait_until


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
        self.ddp = DistributedDataParallel(nn.Linear(2, 1))
        self.ddp.register_comm_hook(None, _annotated(self._averaged))
        step_waits.measure(self.ddp, self.timer)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1)
        self.late: list[threading.Thread] = []

    def _averaged(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future = torch.futures.Future[torch.Tensor]()

        def others() -> None:
            try:
                wait_until(lambda: self.status.waiting, what="this rank to wait", timeout=10)
                self.now += self.others_s
            finally:
                if self.error is None:
                    future.set_result(bucket.buffer())
                else:
                    future.set_exception(self.error)

        self.late.append(threading.Thread(target=others))
        self.late[-1].start()
        return future

    def backward(self, *, own_s: float) -> None:
        loss = self.ddp(torch.ones(1, 2)).sum()
        self.now += own_s
        loss.backward()

    def step(self, *, own_s: float, others_s: float) -> float | None:
        """One step; return the seconds of it that the launcher is told."""
        self.others_s = others_s
        self.backward(own_s=own_s)
        assert not self.status.waiting
        self.timer.before_step(self.optimizer)
        self.timer.after_step(self.optimizer)
        return self.status.step_s


def _annotated(hook: Callable[[Any], torch.futures.Future[torch.Tensor]]) -> Any:
    def annotated(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(bucket)

    annotated.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return annotated


@pytest.fixture
def training() -> Iterator[Training]:
    training = Training()
    yield training
    for thread in training.late:
        thread.join()


def test_what_ddp_waits_for_others_is_not_this_ranks_time(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    assert training.step(own_s=0.5, others_s=7.0) == 0.5
    assert training.step(own_s=0.25, others_s=0.0) == 0.25


def test_several_backward_passes_of_a_step_wait_once_if_they_are_accumulated(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    with training.ddp.no_sync():
        training.backward(own_s=2.0)
        assert not training.status.waiting
    assert training.step(own_s=0.5, others_s=7.0) == 2.5


def test_an_error_ends_the_wait_at_the_next_step_at_the_latest(training: Training) -> None:
    training.step(own_s=1.0, others_s=1.0)
    training.error = RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError, match="closed by peer"):
        training.backward(own_s=1.0)
    training.timer.before_step(training.optimizer)
    assert not training.status.waiting


def test_averaging_without_ddp_is_a_wait_too(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        """Comms of two ranks, of which the other one comes 3 s later."""

        def size(self) -> int:
            return 2

        def sum(self, data: torch.Tensor, *, name: str) -> None:
            assert training.status.waiting
            training.now += 3.0

    monkeypatch.setattr(standby.current(), "step_timer", training.timer)
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

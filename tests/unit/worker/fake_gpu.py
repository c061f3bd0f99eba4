"""A GPU without a GPU: a clock of a device that does what is queued, one after the other, while the host goes on."""

from __future__ import annotations

import pytest
import torch

from hvd_elastic_ext.worker.optim import step_waits
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepTimer


class Event:
    """In the present stream: what was queued before it is done ``at`` a time, in seconds."""

    def __init__(self, gpu: Gpu, at: float) -> None:
        self._gpu = gpu
        self.at = at

    def synchronize(self) -> None:
        self._gpu.known_to = max(self._gpu.known_to, self.at)

    def elapsed_time(self, later: Event) -> float:
        """As torch's: in milliseconds, and an error before it is done."""
        assert max(self.at, later.at) <= self._gpu.known_to
        return 1000 * (later.at - self.at)


class Gpu:
    """``now``: the host's clock. It does not move while work is queued."""

    def __init__(self) -> None:
        self.now = 100.0
        self.done_at = 0.0
        """When the device will have done all that is queued."""
        self.known_to = 0.0
        """Until when the host has waited for the device."""
        self.made = 0
        self.timer = StepTimer(Status(), lambda: self.now)

    def work(self, seconds: float) -> None:
        """Queue some."""
        self.done_at = max(self.now, self.done_at) + seconds

    wait = work
    """Queue a wait for other ranks, of that length."""

    def event(self, device: int | None) -> Event:
        assert device == 0
        self.made += 1
        return Event(self, max(self.now, self.done_at))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()
    monkeypatch.setattr(standby.current(), "step_timer", found.timer)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(step_waits, "_event", found.event)
    return found

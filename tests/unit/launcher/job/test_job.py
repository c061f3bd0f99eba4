"""The pause before a job restarts is logged repeatedly, and a signal ends it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hvd_elastic_ext.launcher.job import job
from hvd_elastic_ext.launcher.job.job import pause_until
from hvd_elastic_ext.launcher.state.facts.waits import Wait
from tests.support.clock import ManualClock


class Passing(ManualClock):
    """A clock that moves four seconds at each second reading: once before a pause, and once after it."""

    looks = 0

    def mono(self) -> float:
        self.looks += 1
        if self.looks % 2 == 0:
            self.advance(4.0)
        return super().mono()


def test_the_pause_before_a_restart_is_said_every_4_s(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job, "LOG_PERIOD_S", 0.001)  # these waits use the clock of this machine
    caplog.set_level(logging.INFO)
    asyncio.run(pause_until(Wait("for the restart of the job", 110.0), asyncio.Event(), Passing(mono=100.0)))
    assert caplog.messages == [f"waiting: for the restart of the job; at most {left} s more" for left in (6, 2)]


def test_a_signal_ends_the_pause_before_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def stopped() -> None:
        stop = asyncio.Event()
        stop.set()
        await pause_until(Wait("for the restart of the job", 1e9), stop, ManualClock())

    asyncio.run(stopped())
    assert caplog.messages == []

"""The pause before a job restarts is logged repeatedly, and a signal ends it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hvd_elastic_ext.launcher.driver.words import Wait
from hvd_elastic_ext.launcher.job import job
from hvd_elastic_ext.launcher.job.job import pause_until
from tests.support.clock import ManualClock


class Passing(ManualClock):
    """A clock that moves one second at each reading."""

    def mono(self) -> float:
        self.advance(1.0)
        return super().mono()


def test_the_pause_before_a_restart_is_told_at_the_pace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job, "LOOK_S", 0.001)  # these waits use the clock of this machine
    caplog.set_level(logging.INFO)
    asyncio.run(pause_until(Wait("for the restart of the job", 400.0), asyncio.Event(), Passing(mono=0.0)))
    left = [int(message.split("at most ")[1].split()[0]) for message in caplog.messages]
    assert left == pytest.approx([396, 390, 370, 340, 280, 220, 160, 100, 40], abs=1)


def test_a_signal_ends_the_pause_before_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def stopped() -> None:
        stop = asyncio.Event()
        stop.set()
        await pause_until(Wait("for the restart of the job", 1e9), stop, ManualClock())

    asyncio.run(stopped())
    assert caplog.messages == []

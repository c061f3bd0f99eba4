"""A job that sleeps: the hosts that wake it, its lines, and its end."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import re

import pytest

from hvd_elastic_ext.core.errors import Asleep
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Departure, Publication
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from hvd_elastic_ext.launcher.sleep.sleep import SleepingJob
from hvd_elastic_ext.launcher.sources.hosts import HostFeed
from tests.support.clock import ManualClock


@pytest.fixture(autouse=True)
def tests_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleeping launcher gives all memory that it can back; it does not have thousands of tests in it."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


class Slumber:
    """One sleep of a job, with a clock of its own and its output."""

    def __init__(self, *, max_wait_s: float | None = None, idle_wakes: int = 0, lines_s: float = 4.0) -> None:
        self.clock, self.lines = ManualClock(), io.StringIO()
        journal = Journal(self.lines, self.clock)
        self.feed = HostFeed(Journal(io.StringIO(), self.clock))
        self.sleeping_job = SleepingJob(
            self.feed,
            HealthLedger,
            WorldLimits(least=2, settle_s=0.0),
            journal=journal,
            clock=self.clock,
            releases=None,
            max_wait_s=max_wait_s,
            generation=4,
            idle_wakes=idle_wakes,
            lines_s=lines_s,
        )
        self.number = 0

    def publish(self, *hosts: str, departing: tuple[str, ...] = ()) -> None:
        self.number += 1
        gone = tuple(Departure(host, "spot reclaim", None) for host in departing)
        self.feed.offer(Publication("test", self.number, HostSet(tuple(Host(host, 1) for host in hosts)), gone))
        self.sleeping_job.changed()

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.lines.getvalue().splitlines()]


def test_it_sleeps_on_until_hosts_are_published_that_stay() -> None:
    async def play() -> None:
        facts = Slumber()
        sleep = asyncio.create_task(facts.sleeping_job.sleep(Asleep("too few", path="/store/x", step=40), HostSet()))
        for hosts, departing in ((("a",), ()), (("a",), ("b",)), (("a", "c"), ("b",))):
            await asyncio.sleep(0)
            assert not sleep.done()
            facts.publish(*hosts, departing=departing)
        await asyncio.wait_for(sleep, 30.0)
        assert facts.events() == ["slept", "woke"]

    asyncio.run(play())


@pytest.mark.parametrize("others", [True, False])
def test_woken_in_vain_it_wakes_at_once_for_other_hosts_only(others: bool) -> None:
    async def play() -> None:
        facts = Slumber(idle_wakes=1)
        facts.publish("a", "b")
        sleep = asyncio.create_task(facts.sleeping_job.sleep(Asleep("too few"), facts.feed.hosts()))
        await asyncio.sleep(0)
        assert not sleep.done()
        facts.publish("a")
        facts.publish("a", "c" if others else "b")
        if not others:
            facts.publish("b", "a")
            await asyncio.sleep(0)
            assert not sleep.done()
            facts.clock.advance(30.0)
            facts.sleeping_job.changed()
        await asyncio.wait_for(sleep, 30.0)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("max_wait_s", "end"), [(None, "slots may work"), (60.0, "it waits 60 s at most (--max-wait-time)")]
)
def test_the_line_of_a_sleep_says_what_ends_it(
    max_wait_s: float | None, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        slumber = Slumber(max_wait_s=max_wait_s)
        sleep = asyncio.create_task(slumber.sleeping_job.sleep(Asleep("too few hosts"), HostSet()))
        await asyncio.sleep(0)
        slumber.publish("a", "b")
        await asyncio.wait_for(sleep, 30.0)

    asyncio.run(play())
    assert "asleep: too few hosts; it goes on by itself when 2 slots may work" in caplog.messages[0]
    assert caplog.messages[0].endswith(end)


@pytest.mark.parametrize(("lines_s", "number"), [(4.0, range(850, 901)), (600.0, range(11, 25))])
def test_a_sleep_is_told_every_4_s_or_as_asked_and_its_status_says_what_is_waited_for_and_until_when(
    lines_s: float, number: range, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    told = "waiting: asleep: slots usable: 1, needed: 2; "

    async def play() -> None:
        slumber = Slumber(max_wait_s=4000.0, lines_s=lines_s)
        slumber.publish("a")
        sleep = asyncio.create_task(slumber.sleeping_job.sleep(Asleep("too few hosts"), HostSet()))
        for _ in range(3600):
            slumber.clock.advance(1.0)
            slumber.sleeping_job.changed()
            for _ in range(4):  # until it has looked
                await asyncio.sleep(0)
        assert slumber.sleeping_job.status() == (f"{told}at most 400 s more, then this launcher ends (--max-wait-time)")
        slumber.publish("a", "b")
        await asyncio.wait_for(sleep, 30.0)

    asyncio.run(play())
    lines = [line for line in caplog.messages if line.startswith(told)]
    assert re.match(r".*at most 399[0-6] s more, then this launcher ends \(--max-wait-time\)$", lines[0])
    assert len(lines) in number
    assert lines[-1].endswith("; next line in 600 s") == (lines_s == 600.0)


@pytest.mark.parametrize("waits", [True, False])
def test_told_to_stop_or_after_the_longest_wait_it_ends_resumable(waits: bool) -> None:
    async def play() -> None:
        facts = Slumber(max_wait_s=0.0 if waits else None)
        sleep = asyncio.create_task(facts.sleeping_job.sleep(Asleep("too few"), HostSet()))
        await asyncio.sleep(0)
        if not waits:
            facts.sleeping_job.end("stopped by SIGTERM")
        with pytest.raises(Asleep, match="--max-wait-time 0 s" if waits else "stopped by SIGTERM") as ended:
            await asyncio.wait_for(sleep, 30.0)
        assert ended.value.exit_code == 75
        assert facts.events() == ["slept"]

    asyncio.run(play())

"""When a sleeping job wakes, and when a failed one begins again."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Departure, Publication
from hvd_elastic_ext.launcher.job.restart_policy import pause_before_restart
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger, Strike
from hvd_elastic_ext.launcher.rules.membership.next_world import WorldLimits
from hvd_elastic_ext.launcher.rules.suspend.sleep_policy import SleepAction, SleepFacts, decide, settle_s, slots_there
from hvd_elastic_ext.launcher.sources.feed import HostFeed
from hvd_elastic_ext.launcher.suspend.sleep import SleepingJob
from tests.support.clock import ManualClock

LIMITS = WorldLimits(start=2, least=2, settle_s=3.0)


@pytest.mark.parametrize(
    ("facts", "max_wait_s", "act", "again_at"),
    [
        (SleepFacts(90.0, 1), None, SleepAction.SLEEP_ON, None),
        (SleepFacts(90.0, 1), 20.0, SleepAction.SLEEP_ON, 110.0),
        (SleepFacts(80.0, 1), 20.0, SleepAction.END, None),
        (SleepFacts(90.0, 1, next_release=105.0), 20.0, SleepAction.SLEEP_ON, 105.0),
        (SleepFacts(90.0, 2), None, SleepAction.SLEEP_ON, 103.0),
        (SleepFacts(90.0, 2, enough_since=98.0), None, SleepAction.SLEEP_ON, 101.0),
        (SleepFacts(90.0, 2, enough_since=97.0), None, SleepAction.WAKE, None),
        (SleepFacts(80.0, 2, enough_since=99.0), 20.0, SleepAction.SLEEP_ON, 102.0),
        (SleepFacts(90.0, 2, enough_since=90.0, end_reason="stopped by SIGTERM"), None, SleepAction.END, None),
    ],
)
def test_it_wakes_for_enough_that_stay_a_while(
    facts: SleepFacts, max_wait_s: float | None, act: SleepAction, again_at: float | None
) -> None:
    decision = decide(100.0, facts, LIMITS, max_wait_s)
    assert (decision.act, decision.again_at) == (act, again_at)


def test_sizes_that_are_not_allowed_are_not_enough() -> None:
    limits = WorldLimits(least=2, allowed=(4, 8), settle_s=0.0)
    assert decide(1.0, SleepFacts(0.0, 3), limits, None).act is SleepAction.SLEEP_ON
    assert decide(1.0, SleepFacts(0.0, 5, enough_since=0.0), limits, None).act is SleepAction.WAKE


def test_hosts_that_are_blocked_do_not_count() -> None:
    hosts = HostSet((Host("a", 2), Host("c", 8)))
    strike = Strike.of(Cause.UNREACHABLE, Host("c", 8), None, at=0.0)
    assert strike is not None
    ledger = HealthLedger().struck(0.0, strike, (10.0, 300.0))
    assert slots_there(1.0, hosts, ledger) == 2
    assert slots_there(11.0, hosts, ledger) == 10


def test_hosts_that_wake_it_in_vain_have_to_stay_ever_longer() -> None:
    assert [settle_s(3.0, times) for times in range(7)] == [3.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    assert settle_s(400.0, 1) == 400.0


def test_a_failure_is_followed_by_ever_longer_pauses_as_often_as_is_allowed() -> None:
    def pauses(failure: JobFailed, policy: str, limit: int = 6) -> list[float | None]:
        return [pause_before_restart(failure, number, policy=policy, limit=limit) for number in range(8)]

    assert pauses(JobFailed("x"), "OnFailure") == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, None, None]
    assert pauses(JobFailed("x"), "OnFailure", 8)[-1] == 360.0
    for failure in (Interrupted(15, "x"), Asleep("x")):
        assert set(pauses(failure, "OnFailure")) == {None}
    assert set(pauses(JobFailed("x"), "Never")) == {None}


class Slumber:
    """One sleep of a job with a clock of its own, and what it writes."""

    def __init__(self, *, max_wait_s: float | None = None, idle_wakes: int = 0) -> None:
        self.clock, self.lines = ManualClock(), io.StringIO()
        journal = Journal(self.lines, self.clock)
        self.feed = HostFeed(Journal(io.StringIO(), self.clock))
        self.dormant = SleepingJob(
            self.feed,
            HealthLedger,
            WorldLimits(least=2, settle_s=0.0),
            journal=journal,
            clock=self.clock,
            releases=None,
            max_wait_s=max_wait_s,
            generation=4,
            idle_wakes=idle_wakes,
        )
        self.number = 0

    def publish(self, *hosts: str, departing: tuple[str, ...] = ()) -> None:
        self.number += 1
        gone = tuple(Departure(host, "spot reclaim", None) for host in departing)
        self.feed.offer(Publication("test", self.number, HostSet(tuple(Host(host, 1) for host in hosts)), gone))
        self.dormant.changed()

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.lines.getvalue().splitlines()]


def test_it_sleeps_on_until_hosts_are_published_that_stay() -> None:
    async def play() -> None:
        facts = Slumber()
        sleep = asyncio.create_task(facts.dormant.sleep(Asleep("too few", path="/store/x", step=40), HostSet()))
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
        sleep = asyncio.create_task(facts.dormant.sleep(Asleep("too few"), facts.feed.hosts()))
        await asyncio.sleep(0)
        assert not sleep.done()
        facts.publish("a")
        facts.publish("a", "c" if others else "b")
        if not others:
            facts.publish("b", "a")
            await asyncio.sleep(0)
            assert not sleep.done()
            facts.clock.advance(30.0)
            facts.dormant.changed()
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
        sleep = asyncio.create_task(slumber.dormant.sleep(Asleep("too few hosts"), HostSet()))
        await asyncio.sleep(0)
        slumber.publish("a", "b")
        await asyncio.wait_for(sleep, 30.0)

    asyncio.run(play())
    assert "asleep: too few hosts; it goes on by itself when 2 slots may work" in caplog.messages[0]
    assert caplog.messages[0].endswith(end)


@pytest.mark.parametrize("waits", [True, False])
def test_told_to_stop_or_after_the_longest_wait_it_ends_resumable(waits: bool) -> None:
    async def play() -> None:
        facts = Slumber(max_wait_s=0.0 if waits else None)
        sleep = asyncio.create_task(facts.dormant.sleep(Asleep("too few"), HostSet()))
        await asyncio.sleep(0)
        if not waits:
            facts.dormant.end("stopped by SIGTERM")
        with pytest.raises(Asleep, match="--max-wait-time 0 s" if waits else "stopped by SIGTERM") as ended:
            await asyncio.wait_for(sleep, 30.0)
        assert ended.value.exit_code == 75
        assert facts.events() == ["slept"]

    asyncio.run(play())

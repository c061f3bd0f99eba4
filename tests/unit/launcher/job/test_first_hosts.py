"""The wait for the first host list is logged from its beginning: its subject, its reason, and its limit."""

from __future__ import annotations

import asyncio
import io
import logging
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import Asleep, BadPublication, ElasticError, JobFailed
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Publication
from hvd_elastic_ext.launcher.driver.words import Wait
from hvd_elastic_ext.launcher.job import first_hosts
from hvd_elastic_ext.launcher.job.first_hosts import FirstHosts, log_while_waiting
from hvd_elastic_ext.launcher.options.settings import Sources
from hvd_elastic_ext.launcher.sources.hosts import HostFeed
from tests.support.clock import ManualClock

FILE, SCRIPT, DAEMON = Sources(Path("hosts")), Sources(script="sleep 60"), Sources(discovery_url="unix:///run/d.sock")


class Waiting:
    """A wait of 30 s, and the feed that it reads."""

    def __init__(self, sources: Sources = FILE, *, sleep_after_s: float | None = None) -> None:
        self.clock = ManualClock()
        self.feed = HostFeed(Journal(io.StringIO(), self.clock))
        self.first = FirstHosts(self.feed, sources, self.clock, elastic_timeout_s=30.0, sleep_after_s=sleep_after_s)

    def answer(self) -> None:
        """The source gives an empty list."""
        self.feed.offer(Publication("source", 1, HostSet()))

    def run(self, seconds: float) -> None:
        """Look as often as it requests."""
        end = self.clock.mono() + seconds
        while (left := end - self.clock.mono()) > 0:
            self.clock.advance(min(left, self.first.look()))


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize(
    ("sources", "answered", "why"),
    [
        (FILE, False, "hosts is not read yet"),
        (FILE, True, "no host in hosts"),
        (SCRIPT, False, "'sleep 60' has not answered yet"),
        (SCRIPT, True, "'sleep 60' names no host"),
        (DAEMON, False, "the daemon at unix:///run/d.sock has not answered yet"),
        (DAEMON, True, "the daemon at unix:///run/d.sock names no host"),
        (Sources(hosts=HostSet()), True, "--hosts names none"),
    ],
)
def test_a_source_without_a_host_is_named_within_1_s_with_the_reason_and_the_limit(
    sources: Sources, why: str, caplog: pytest.LogCaptureFixture, *, answered: bool
) -> None:
    waiting = Waiting(sources)
    if answered:
        waiting.answer()
    waiting.run(1.0)
    line = f"waiting: for a first host: {why}; at most 30 s more, then the job fails (--elastic-timeout)"
    assert caplog.messages == [line]
    waiting.clock.advance(9.0)
    assert waiting.first.status() == line.replace("30 s", "20 s")


def test_the_wait_is_told_at_the_pace_and_the_rest_of_it_falls(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting()
    waiting.run(30.0)
    rest = [int(message.split("at most ")[1].split()[0]) for message in caplog.messages]
    assert rest == [30, 26, 20]
    with pytest.raises(JobFailed, match="no host in --elastic-timeout 30 s"):
        waiting.first.look()


def test_a_source_that_answers_at_once_is_not_said_to_be_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    Waiting().run(0.4)
    assert caplog.messages == []


def test_a_refused_list_is_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting()
    waiting.feed.refuse(BadPublication("hosts:1: 'a slots=2' is a line for mpirun"))
    waiting.run(1.0)
    assert "for a first host: hosts:1: 'a slots=2' is a line for mpirun; at most " in caplog.text


def test_a_job_that_may_sleep_says_so_and_sleeps(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting(sleep_after_s=5.0)
    waiting.run(5.0)
    assert caplog.messages[0].endswith("at most 4 s more, then the job sleeps (--sleep-after)")
    with pytest.raises(Asleep, match="no host in --sleep-after 5 s"):
        waiting.first.look()


def test_a_source_that_gives_up_ends_the_wait_at_once() -> None:
    waiting = Waiting()
    waiting.feed.fail(ElasticError("the script cannot be run"))
    with pytest.raises(JobFailed, match="the script cannot be run"):
        waiting.first.look()


class Passing(ManualClock):
    """A clock that moves one second at each look."""

    def mono(self) -> float:
        self.advance(1.0)
        return super().mono()


NAME = Wait("for the address of b", ends="it ends when the resolver gives up")


def test_a_slow_name_server_is_said_before_there_is_anything_to_decide(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_hosts, "STOP_CHECK_S", 0.0)

    async def answered_late() -> None:
        answer = asyncio.get_running_loop().create_future()
        looks = iter(range(60))

        def failed() -> None:
            if next(looks) == 40:
                answer.set_result(None)

        await log_while_waiting(answer, NAME, Passing(), failed=failed)

    asyncio.run(answered_late())
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 3
    assert set(said) == {"waiting: for the address of b; no limit: it ends when the resolver gives up"}


def test_a_job_that_is_stopped_does_not_wait_for_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_hosts, "STOP_CHECK_S", 0.0)

    async def stopped() -> None:
        answer = asyncio.get_running_loop().create_future()
        await log_while_waiting(answer, NAME, ManualClock(), failed=lambda: JobFailed("stopped by SIGINT"))

    with pytest.raises(JobFailed, match="stopped by SIGINT"):
        asyncio.run(stopped())


def test_what_goes_wrong_while_it_is_waited_for_is_raised() -> None:
    async def wrong() -> None:
        raise JobFailed("network interface: eth9 has no IPv4 address here")

    with pytest.raises(JobFailed, match="eth9"):
        asyncio.run(log_while_waiting(wrong(), NAME, ManualClock(), failed=lambda: None))

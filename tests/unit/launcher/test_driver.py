"""The driver over a feed, without workers."""

from __future__ import annotations

import io
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import JobFailed, SourceUnavailable
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Publication
from hvd_elastic_ext.launcher import horovod_driver
from hvd_elastic_ext.launcher.feed import HostFeed
from hvd_elastic_ext.launcher.horovod_driver import PushedDriver
from hvd_elastic_ext.launcher.settings import RunSettings, Sources
from tests.support.waiting import wait_until


class Nowhere:
    """Stands in for the rendezvous server."""

    def stop(self) -> None: ...


class Stumbling(HostFeed):
    """A feed whose first answer is a defect."""

    stumbled = False

    def hosts(self) -> HostSet:
        if not self.stumbled:
            self.stumbled = True
            raise ZeroDivisionError("a defect")
        return super().hosts()


def driver_of(feed: HostFeed) -> PushedDriver:
    settings = RunSettings(("true",), Sources(hosts_file=Path("hosts")), num_proc=1, min_num_proc=1)
    return PushedDriver(
        settings, feed, journal=Journal(io.StringIO(), SystemClock()), clock=SystemClock(), rendezvous=Nowhere()
    )


@pytest.fixture
def feed() -> Stumbling:
    return Stumbling(Journal(io.StringIO(), SystemClock()))


@pytest.fixture
def driver(feed: HostFeed) -> Iterator[PushedDriver]:
    made = driver_of(feed)
    made.watch()
    yield made
    made.stop()


def test_a_defect_while_looking_at_the_hosts_does_not_end_the_looking(
    driver: PushedDriver, feed: Stumbling, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: feed.stumbled, what="the defect")
    feed.offer(Publication("file", 1, HostSet.of({"a": 1, "b": 2})))
    wait_until(lambda: driver.available_hosts() == ["a", "b"], what="the hosts after the defect")
    assert "this is a defect of hvd-elastic" in caplog.text


def test_newcomers_follow_veterans_and_are_ordered_by_name(driver: PushedDriver, feed: Stumbling) -> None:
    names = list("hgfedcba")
    feed.offer(Publication("file", 1, HostSet.of(dict.fromkeys(names[:4], 1))))
    wait_until(lambda: driver.available_hosts() == list("efgh"), what="the first hosts, by name")
    feed.offer(Publication("file", 2, HostSet.of(dict.fromkeys(names, 1))))
    wait_until(lambda: driver.available_hosts() == list("efghabcd"), what="newcomers by name behind them")
    assert driver.world() == {}


def test_a_horovod_that_crashes_when_looked_at_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes() -> bool:
        raise queue.Empty

    monkeypatch.setattr(horovod_driver, "gloo_built", crashes)
    with pytest.raises(JobFailed, match="hvd-elastic doctor"):
        horovod_driver.check_gloo()


def test_a_source_that_can_never_give_hosts_ends_the_wait_for_them(driver: PushedDriver, feed: HostFeed) -> None:
    feed.fail(SourceUnavailable("discover.sh", "ended with exit code 127"))
    with pytest.raises(JobFailed, match=r"discover\.sh: ended with exit code 127"):
        driver.wait_for_slots(1)

"""A job that does not train is never silent for long: a line tells what it waits for, and for how long at most."""

from __future__ import annotations

import logging

import pytest

from hvd_elastic_ext.launcher.planners.membership.waiting import SAY_S, status, waits_for
from hvd_elastic_ext.launcher.rules.membership.next_world import Limits
from tests.unit.launcher.simulated import Cluster, JobOptions, running


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("waiting: ")]


def test_a_job_that_trains_waits_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = running("a", "b")
    cluster.run(60.0)
    assert waits_for(cluster.driver.job) is None
    assert waits(caplog) == []


def test_too_few_slots_are_told_at_least_every_5_s_until_the_job_fails(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(JobOptions(Limits(start=2)))
    cluster.options.elastic_timeout_s = 60.0
    cluster.hosts(a=1)
    cluster.run(59.0)
    told = waits(caplog)
    assert len(told) == 59 // SAY_S
    assert "processes ready: 1, needed: 2; at most 4 s more, then the job fails (--elastic-timeout)" in told[-1]


def test_no_host_at_all_is_told(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(JobOptions(Limits(start=1)))
    cluster.run(10.0)
    assert "no host is published" in waits(caplog)[0]


def test_hosts_that_are_left_out_are_named_with_the_rest_of_their_cooldown(caplog: pytest.LogCaptureFixture) -> None:
    cluster = running("a", "b")
    cluster.options.limits = Limits(start=2, least=2)
    cluster.kill("b", code=3)
    cluster.run(SAY_S + 1.5)
    assert "left out: b (" in waits(caplog)[0]


def test_processes_that_import_for_long_are_named(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(JobOptions(Limits(start=2)))
    cluster.boot_s["b"] = 30.0
    cluster.hosts(a=1, b=1)
    cluster.run(10.0)
    assert "processes that have not called hvd.init() yet: b[0]; at most " in waits(caplog)[0]


def test_a_silent_host_is_told_within_5_s_and_when_it_counts_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = running("a", "b")
    cluster.options.heartbeat_timeout_s = 10.0
    cluster.run(20.0)
    caplog.clear()
    cluster.disconnect("b")
    cluster.run(5.0)
    assert waits(caplog) == [
        "waiting: no heartbeat from b; at most 6 s more, then it counts as failed (--heartbeat-timeout)"
    ]
    cluster.run(10.0)
    assert cluster.events("fenced")
    assert len([line for line in waits(caplog) if "no heartbeat" in line]) == 2


def test_a_silent_process_is_told_within_5_s(caplog: pytest.LogCaptureFixture) -> None:
    cluster = running("a", "b")
    cluster.options.heartbeat_timeout_s = 10.0
    cluster.run(20.0)
    cluster.stop("b")
    cluster.run(5.5)
    assert "no heartbeat from b[0]; at most " in waits(caplog)[0]


def test_the_status_of_a_job_is_one_short_line() -> None:
    cluster = running("a", "b")
    cluster.run(20.0)
    assert status(cluster.driver.job).startswith("world 1, size 2, step ")
    cluster.kill("b", code=3)
    cluster.run(0.5)
    assert "left out: b (" in status(cluster.driver.job)


@pytest.mark.parametrize(("slots", "told"), [(1, 0), (2, 1)])
def test_programs_that_never_ask_for_a_world_are_told_to_have_run_each_by_itself(
    slots: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(JobOptions(Limits(start=slots)))
    cluster.boot_s["a"] = 1000.0
    cluster.hosts(a=slots)
    cluster.run(5.0)
    for slot in range(slots):
        cluster.kill("a", slot, code=0)
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None
    assert sum("no process asked for a world: 2 programs" in each.getMessage() for each in caplog.records) == told
    assert {each["reason"] for each in cluster.events("exited")} == {
        "ended with exit code 0 without having asked for a world"
    }

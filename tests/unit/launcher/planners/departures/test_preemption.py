"""Who is told that it is about to be taken away, and what it is when a script ends by itself for it."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.driver.events import Expected
from hvd_elastic_ext.launcher.planners.departures.preemption import SAVE_S, reclaimed
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.planners.departures.test_leaving import nobody_is_blamed
from tests.unit.launcher.simulated import Cluster, Rules

A, B = Life(Seat("a", 0), 1), Life(Seat("b", 0), 1)
TWO = Rules(Limits(start=2, least=2, settle_s=0.1))


def told(cluster: Cluster) -> list[str]:
    """Hosts whose processes have been told to save what they have."""
    return [worker.seat.host for worker in cluster.driver.job.roster.workers.values() if worker.reclaimed]


@pytest.mark.parametrize(
    ("leaves_in", "enough", "expected"),
    [
        ({}, True, set()),
        ({}, False, set()),
        ({"b": 100.0}, True, set()),
        ({"b": float("inf")}, True, set()),
        ({"b": SAVE_S}, True, {B}),
        ({"b": float("inf")}, False, {A, B}),
        ({"c": 1.0}, False, set()),
    ],
)
def test_all_are_told_where_too_few_would_be_left_else_those_whose_time_is_up(
    leaves_in: dict[str, float], enough: bool, expected: set[Life]
) -> None:
    leaves_by = {host: 500.0 + seconds for host, seconds in leaves_in.items()}
    assert reclaimed([A, B], leaves_by, now=500.0, enough=enough) == expected


def test_where_others_go_on_nobody_is_told_but_who_leaves_and_that_at_its_step() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.write_notice("b", "spot reclaim", 120.0)
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(10.0)
    assert not cluster.told["reclaim"]


def test_below_the_minimum_every_process_is_told_once_and_that_it_is_over() -> None:
    cluster = running("a", "b", rules=TWO)
    cluster.run(2.0)
    cluster.write_notice("b", "spot reclaim")
    cluster.run(5.0)
    assert told(cluster) == ["a", "b"]
    assert cluster.told["reclaim"] == 2
    assert cluster.world == ["a", "b"]  # they train on as long as they can
    cluster.write_notice("b", "")
    cluster.run(5.0)
    assert told(cluster) == []
    assert cluster.told["reclaim"] == 4
    cluster.run(30.0)
    assert cluster.told["reclaim"] == 4


def test_the_only_host_is_told_late_while_its_replacement_is_on_the_way_and_at_once_without_one() -> None:
    cluster = running("a")
    cluster.run(2.0)
    cluster.boot_s["b"] = 300.0
    cluster.hosts(a=1, b=1)
    cluster.write_notice("a", "spot reclaim", 100.0)
    assert cluster.until(lambda: told(cluster) == ["a"], within=101.0) == pytest.approx(100.0 - SAVE_S, abs=1.5)
    alone = running("a")
    alone.run(2.0)
    alone.write_notice("a", "spot reclaim", 100.0)
    assert alone.until(lambda: told(alone) == ["a"]) < 1.5


def test_what_was_lost_with_a_connection_is_told_again() -> None:
    cluster = running("a", "b", rules=TWO)
    cluster.run(2.0)
    cluster.lose["reclaim"] = 2
    cluster.write_notice("b", "spot reclaim")
    cluster.run(1.0)
    for host in ("a", "b"):
        cluster.disconnect(host)
        cluster.run(0.2)
        cluster.reconnect(host)
    cluster.run(2.0)
    assert cluster.told["reclaim"] == 4
    assert told(cluster) == ["a", "b"]


def warned(cluster: Cluster, host: str, *, leaving: bool = True) -> None:
    cluster.warned(host, leaving=leaving)
    cluster.run(0.1)


def exits(cluster: Cluster) -> list[tuple[str, str]]:
    return [(event["host"], event["cause"]) for event in cluster.events("exited")]


def test_scripts_that_save_and_end_with_minus_one_are_preempted_and_the_job_goes_on_when_hosts_are_back() -> None:
    cluster = running("a", "b", rules=TWO)
    cluster.run(2.0)
    cluster.write_notice("b", "spot reclaim", 120.0)
    cluster.run(1.0)
    for host in ("a", "b"):
        warned(cluster, host)
        cluster.kill(host, code=255)
    cluster.run(5.0)
    assert exits(cluster) == [("a", "preempted"), ("b", "preempted")]
    assert nobody_is_blamed(cluster)
    cluster.write_notice("b", "")
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert cluster.driver.outcome is None


def test_it_is_preempted_too_if_the_notice_was_withdrawn_while_it_saved() -> None:
    cluster = running("a")
    cluster.run(2.0)
    cluster.write_notice("a", "spot reclaim", 120.0)
    cluster.run(1.0)
    warned(cluster, "a")
    cluster.write_notice("a", "")
    cluster.run(1.0)
    cluster.kill("a", code=255)
    cluster.run(0.1)
    assert exits(cluster) == [("a", "preempted")]
    assert nobody_is_blamed(cluster)
    cluster.until(lambda: cluster.world == ["a"])


def test_a_script_that_saw_that_it_may_stay_and_fails_later_has_failed() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    warned(cluster, "b")
    warned(cluster, "b", leaving=False)
    cluster.kill("b", code=255)
    cluster.run(0.1)
    assert exits(cluster) == [("b", "unreachable")]
    assert len(cluster.events("struck")) == 1


@pytest.mark.parametrize("ends_meanwhile", [True, False])
def test_what_a_script_saw_is_known_though_a_connection_broke_before_it_was_told(ends_meanwhile: bool) -> None:
    cluster = running("a")
    cluster.run(2.0)
    cluster.mute.add("a")
    warned(cluster, "a")
    if ends_meanwhile:
        cluster.kill("a", code=255)
    cluster.disconnect("a")
    cluster.run(0.5)
    cluster.reconnect("a")
    cluster.run(0.1)
    if not ends_meanwhile:
        cluster.kill("a", code=255)
        cluster.run(0.1)
    assert exits(cluster) == [("a", "preempted")]


def test_who_was_told_by_a_launcher_that_is_gone_is_told_by_the_next_one_that_it_may_stay() -> None:
    cluster = Cluster(Rules())
    cluster.hosts(a=1)
    inherited = cluster.inherit("a")
    cluster.warned("a")
    cluster.driver.tell(Expected(tuple(inherited), cluster.clock.mono() + 60.0))
    cluster.until(lambda: cluster.told["reclaim"] == 1)
    cluster.run(5.0)
    assert told(cluster) == []
    assert cluster.told["reclaim"] == 1
    assert cluster.world == ["a"]

"""Training goes on while nobody hears of it: what the launcher does when it hears of it again, and until then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.driver.events import End, Expected
from hvd_elastic_ext.launcher.job.saved_state import hosts_left, ports_of, state_of
from hvd_elastic_ext.launcher.planners.departures.shutdown import PATIENCE_S
from hvd_elastic_ext.launcher.planners.health.link_loss import alone
from tests.unit.launcher.driver.test_driver import causes, running
from tests.unit.launcher.simulated import Cluster, Rules


def lives(cluster: Cluster) -> dict[str, int]:
    """Which life each host's process is in."""
    return {process.host: process.life for process in cluster.training}


def undisturbed(cluster: Cluster) -> bool:
    """Whether nobody was blamed, ended or interrupted since the start."""
    found = [cluster.events(name) for name in ("fenced", "struck", "exited")]
    return not any(found) and causes(cluster) == ["start"] and not cluster.told["update"]


# --- the launcher's own link


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        ([100.0, 100.0], False),
        ([89.0, 99.0], False),  # one that speaks could go on without the silent one
        ([89.9, 90.7], True),  # no beat of the other one has come either
        ([89.9], True),
        ([20.0, 45.0], True),
        ([20.0, 39.9], False),  # too long: they are gone
        ([], False),
    ],
)
def test_a_launcher_is_alone_if_no_host_of_the_world_is_heard_and_not_for_ever(
    heard: list[float], *, expected: bool
) -> None:
    assert alone(100.0, heard, limit_s=10.0, grace_s=60.0) is expected


def test_without_any_grace_hosts_are_gone_when_they_are_silent() -> None:
    assert not alone(100.0, [89.0, 89.5], limit_s=10.0, grace_s=0.0)


def test_a_launcher_that_was_cut_off_for_a_while_disturbs_nobody_who_trains() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    before = lives(cluster)
    cluster.cut.update("abc")
    cluster.run(12.0)
    cluster.cut.clear()
    cluster.run(60.0)
    assert undisturbed(cluster)
    assert lives(cluster) == before
    (isolated,) = cluster.events("isolated")
    assert isolated["hosts"] == ["a", "b", "c"]


def test_hosts_that_come_back_one_after_the_other_are_all_taken_back() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    before = lives(cluster)
    for name in "abc":
        cluster.cut.add(name)
        cluster.run(0.3)
    cluster.run(20.0)
    for name in "abc":
        cluster.disconnect(name)
        cluster.cut.discard(name)
    for name in "abc":
        cluster.run(3.0)
        cluster.reconnect(name)
    cluster.run(60.0)
    assert undisturbed(cluster)
    assert lives(cluster) == before


def test_a_host_that_does_not_come_back_with_the_others_is_cut_off_then() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    cluster.cut.update("abc")
    cluster.run(15.0)
    cluster.cut.difference_update("ab")
    cluster.run(9.0)
    assert not cluster.events("fenced")
    cluster.until(lambda: cluster.world == ["a", "b"], within=8.0)
    assert [event["host"] for event in cluster.events("fenced")] == ["c"]


@pytest.mark.parametrize("boot_s", [4.0, 20.0])
def test_a_newcomer_that_is_heard_is_no_reason_to_cut_off_those_who_train(boot_s: float) -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.boot_s["d"] = boot_s
    cluster.hosts(a=1, b=1, d=1)
    cluster.run(0.5)
    cluster.cut.update("ab")
    cluster.run(30.0)
    assert not cluster.events("fenced")
    cluster.cut.clear()
    cluster.until(lambda: sorted(cluster.world) == ["a", "b", "d"], within=12.0)
    assert causes(cluster) == ["start", "hosts added"]
    assert lives(cluster) == {"a": 1, "b": 1, "d": 1}


@pytest.mark.parametrize(("limit_s", "silent_s"), [(12.0, 20.0), (5.0, 8.0)])
def test_ranks_that_nobody_saw_getting_on_are_not_taken_to_stand_still(limit_s: float, silent_s: float) -> None:
    cluster = running("a", "b", rules=Rules(progress_timeout_s=limit_s, restart_stalled=True))
    cluster.run(3.0)
    cluster.agents["b"][0].wedged = True  # it waits for others when it is heard last
    cluster.run(2.0)
    cluster.cut.update("ab")
    cluster.agents["b"][0].wedged = False
    cluster.run(silent_s)
    cluster.cut.clear()
    cluster.run(30.0)
    assert not cluster.events("stalled")
    assert undisturbed(cluster)


def test_hosts_that_are_really_gone_are_replaced_when_the_orphans_grace_is_over() -> None:
    cluster = running("a", "b", rules=Rules(orphan_grace_s=40.0))
    cluster.run(2.0)
    cluster.cut.update("ab")
    cluster.dead.update("ab")
    cluster.run(12.0)
    cluster.hosts(c=1, d=1)
    cluster.run(23.0)
    assert cluster.driver.job.generation == 1
    meeting = cluster.driver.job.rendezvous
    waited = cluster.until(lambda: meeting.formed and {life.seat.host for life in meeting.members} == {"c", "d"})
    assert 35.0 + waited > 40.0
    assert {event["host"] for event in cluster.events("fenced")} == {"a", "b"}


def test_the_only_host_may_be_silent_for_as_long() -> None:
    cluster = running("a", rules=Rules(orphan_grace_s=40.0))
    cluster.run(2.0)
    cluster.cut.add("a")
    cluster.run(35.0)
    cluster.cut.clear()
    cluster.run(10.0)
    assert undisturbed(cluster)
    cluster.cut.add("a")
    cluster.until(lambda: cluster.events("fenced"), within=42.0)


# --- another launcher's world


def taking_back(*names: str, rules: Rules | None = None, late: dict[str, float] | None = None) -> Cluster:
    """A new launcher of a job that trains on these hosts, whose agents take so long to come."""
    cluster = Cluster(rules or Rules())
    cluster.rules.limits = replace(cluster.rules.limits, start=len(names))
    cluster.join_s.update(late or {})
    cluster.hosts(**dict.fromkeys(names, 1))
    hosts = cluster.inherit(*names)
    cluster.driver.tell(Expected(tuple(hosts), cluster.clock.mono() + cluster.rules.orphan_grace_s))
    return cluster


def goes_on(cluster: Cluster, *names: str) -> bool:
    """Whether these hosts train on in the world that the last launcher formed, undisturbed."""
    members = {life.seat.host for life in cluster.driver.job.world.members}
    quiet = not cluster.lines.getvalue() and not cluster.told["update"] and not cluster.told["fence"]
    same = {(process.generation, process.life) for process in cluster.training} == {(7, 4)}
    return quiet and same and members == set(names) == set(cluster.world) and cluster.driver.job.standing


def test_a_host_that_takes_longer_than_the_heartbeats_timeout_to_come_back_is_waited_for() -> None:
    cluster = taking_back("a", "b", "c", late={"c": 12.0})
    cluster.run(60.0)
    assert goes_on(cluster, "a", "b", "c")


def test_newcomers_are_let_in_when_the_hosts_of_the_last_launcher_are_back() -> None:
    cluster = taking_back("a", "b", "c", late={"c": 40.0})
    cluster.hosts(a=1, b=1, c=1, d=1)
    cluster.run(39.0)
    assert not cluster.lines.getvalue()
    cluster.until(lambda: len(cluster.world) == 4)
    assert lives(cluster) == {"a": 4, "b": 4, "c": 4, "d": 1}
    assert causes(cluster) == ["hosts added"]


def test_a_host_that_comes_after_the_wait_is_of_the_world_that_was_taken_over() -> None:
    cluster = taking_back("a", "b", "c", late={"c": 200.0})
    cluster.run(100.0)
    assert {life.seat.host for life in cluster.driver.job.world.members} == {"a", "b"}
    cluster.run(150.0)
    assert goes_on(cluster, "a", "b", "c")


def test_a_host_that_cannot_be_reached_for_long_trains_on_and_is_looked_for() -> None:
    cluster = Cluster(Rules())
    cluster.dead.add("c")
    cluster.hosts(a=1, b=1, c=1)
    cluster.driver.tell(Expected(tuple(cluster.inherit("a", "b", "c")), cluster.clock.mono() + 60.0))
    cluster.run(8.0)
    assert {life.seat.host for life in cluster.driver.job.world.members} == {"a", "b"}  # nothing is on its way any more
    cluster.run(100.0)
    cluster.dead.clear()
    cluster.run(20.0)
    assert goes_on(cluster, "a", "b", "c")


def test_agents_come_back_by_themselves_when_nothing_can_be_started_on_their_hosts() -> None:
    cluster = Cluster(Rules())
    cluster.dead.update("abc")
    cluster.hosts(a=1, b=1, c=1)
    cluster.driver.tell(Expected(tuple(cluster.inherit("a", "b", "c")), cluster.clock.mono() + 60.0))
    cluster.run(3.0)
    for name in "abc":
        cluster.run(1.0)
        cluster.join(name)
    cluster.run(60.0)
    assert goes_on(cluster, "a", "b", "c")


def test_if_nobody_is_back_in_time_the_world_is_taken_over_when_they_come() -> None:
    cluster = taking_back("a", "b", late={"a": 61.0, "b": 61.2})
    cluster.run(120.0)
    assert goes_on(cluster, "a", "b")


def test_who_waits_for_a_world_does_not_wait_for_all_hosts_of_the_last_launcher() -> None:
    cluster = taking_back("a", "b", "c", late={"c": 50.0})
    cluster.cut.add("c")  # it is gone with the launcher, and its command hangs
    cluster.later(2.0, lambda: cluster.lose_world("a"))
    cluster.later(2.0, lambda: cluster.lose_world("b"))
    waited = cluster.until(lambda: [p.generation for p in cluster.training if p.host in "ab"] == [8, 8])
    assert 9.0 < waited < 14.0
    cluster.agents.pop("c")
    cluster.run(60.0)
    assert not cluster.driver.job.adoption.missing


def test_a_host_that_comes_when_the_others_have_gone_on_without_it_starts_anew() -> None:
    cluster = taking_back("a", "b", "c", late={"c": 200.0})
    cluster.run(100.0)
    cluster.lose_world("a")
    cluster.lose_world("b")
    cluster.until(lambda: cluster.driver.job.generation == 8 and cluster.driver.job.formed)
    cluster.until(lambda: lives(cluster).get("c", 4) > 4 and len(cluster.world) == 3, within=400.0)
    assert lives(cluster)["a"] == lives(cluster)["b"] == 4


# --- a job that is ended before its hosts are back


def test_a_launcher_that_is_stopped_while_it_takes_hosts_back_ends_what_runs_there() -> None:
    cluster = taking_back("a", "b", late={"a": 2.0, "b": 5.0})
    cluster.run(0.5)
    cluster.driver.tell(End(Interrupted(2, "stopped")))
    cluster.until(lambda: cluster.driver.over)
    assert cluster.clock.mono() >= 105.0  # not before the last one was there
    assert not cluster.agents
    assert not cluster.driver.job.shutdown.untold


def test_hosts_that_do_not_come_in_time_are_ended_without_a_connection() -> None:
    cluster = taking_back("a", "b", late={"b": 1000.0})
    cluster.run(0.5)
    cluster.driver.tell(End(Interrupted(2, "stopped")))
    took = cluster.until(lambda: cluster.driver.over)
    assert PATIENCE_S < took < PATIENCE_S + 2.0
    assert not cluster.agents
    assert not cluster.driver.job.shutdown.untold


def test_told_again_to_stop_it_waits_for_nobody_to_come() -> None:
    cluster = taking_back("a", "b", late={"a": 1000.0, "b": 1000.0})
    cluster.run(0.5)
    for _ in range(2):
        cluster.driver.tell(End(Interrupted(2, "stopped")))
    assert cluster.until(lambda: cluster.driver.over) < 2.0
    assert not cluster.agents


def test_a_host_that_nobody_could_tell_is_not_forgotten() -> None:
    cluster = Cluster(Rules())
    cluster.dead.add("b")
    cluster.hosts(a=1, b=1)
    cluster.driver.tell(Expected(tuple(cluster.inherit("a", "b")), cluster.clock.mono() + 60.0))
    cluster.driver.tell(End(Interrupted(2, "stopped")))
    assert cluster.until(lambda: cluster.driver.over) < 15.0
    assert list(cluster.driver.job.shutdown.untold) == ["b"]
    state = state_of(cluster.driver.job, incarnation=2, ports={"10.0.0.1": 7}, wall=0.0)
    assert [host.name for host in hosts_left(state)] == ["b"]
    assert ports_of(state) == {"10.0.0.1": 7}


def test_a_job_that_has_told_all_of_them_leaves_nothing_to_look_for() -> None:
    cluster = taking_back("a", "b")
    cluster.driver.tell(End(Interrupted(2, "stopped")))
    cluster.until(lambda: cluster.driver.over)
    assert not hosts_left(state_of(cluster.driver.job, incarnation=2, ports={}, wall=0.0))


def test_a_host_that_falls_silent_while_the_job_ends_is_ended_without_a_connection() -> None:
    cluster = running("a", "b", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.cut.add("b")
    cluster.ends_s["a"] = 8.0
    cluster.driver.tell(End(Interrupted(2, "stopped")))
    cluster.until(lambda: cluster.driver.over)
    assert not cluster.agents


def test_a_job_that_is_stopped_while_its_launcher_is_cut_off_is_not_taken_to_have_ended() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.cut.update("ab")
    cluster.dead.update("ab")
    cluster.run(15.0)
    cluster.driver.tell(End(Interrupted(2, "stopped")))
    cluster.until(lambda: cluster.driver.over, within=90.0)
    assert sorted(cluster.driver.job.shutdown.untold) == ["a", "b"]

"""A container that is started again in its pod is another life of the host: nobody waits for the former one.

What the new one has not done is not held against it.
"""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.simulated import Cluster, Rules

LONG_S = 600.0
SOON_S = 1.5
"""Within this time nobody has been silent for too long, whatever the rule."""


def pods(**lives: str) -> HostSet:
    return HostSet(tuple(Host(name, 1, uid=f"uid-{name}", node="n", life=life) for name, life in lives.items()))


def running(**lives: str) -> Cluster:
    cluster = Cluster(Rules(Limits(start=len(lives), settle_s=0.1), cooldown_s=(LONG_S, LONG_S)))
    cluster.publish(pods(**lives))
    cluster.until(lambda: cluster.world == list(lives))
    cluster.run(1.0)
    return cluster


def lose_container(cluster: Cluster, host: str) -> None:
    """Its agent is gone with all that it ran; over ssh that looks as if only the connection were lost."""
    cluster.disconnect(host)
    del cluster._kept[host]
    del cluster.agents[host]
    cluster._beating.discard(host)
    cluster._forget(host)
    cluster.lose_world("a")


def test_nobody_waits_for_a_container_whose_successor_is_listed() -> None:
    cluster = running(a="1", b="1")
    lose_container(cluster, "b")
    cluster.run(1.2)
    cluster.publish(pods(a="1"))
    cluster.run(0.6)
    cluster.publish(pods(a="1", b="2"))
    assert cluster.until(lambda: cluster.world == ["a"]) < 0.1
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 10.0
    assert not cluster.events("struck")
    assert [event["reason"] for event in cluster.events("fenced")] == ["its container was started again"]


def test_nor_if_it_never_was_off_the_list() -> None:
    cluster = running(a="1", b="1")
    lose_container(cluster, "b")
    cluster.publish(pods(a="1", b="2"))
    assert cluster.until(lambda: cluster.world == ["a"]) < 0.1
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert not cluster.events("struck")


def test_nor_if_its_connection_is_lost_only_after_that() -> None:
    cluster = running(a="1", b="1")
    cluster.publish(pods(a="1", b="2"))
    lose_container(cluster, "b")
    assert cluster.until(lambda: cluster.world == ["a"]) < 0.1
    assert not cluster.events("struck")


def test_one_whose_connection_seems_to_stand_is_given_half_the_time_of_a_silent_host() -> None:
    cluster = running(a="1", b="1")
    cluster.cut.add("b")
    cluster.dead.add("b")
    cluster.lose_world("a")
    cluster.publish(pods(a="1", b="2"))
    cluster.run(3.0)
    assert not cluster.events("fenced")
    assert cluster.until(lambda: cluster.events("fenced")) < 2.5
    assert not cluster.events("struck")


def test_an_agent_that_speaks_on_is_kept_whatever_the_list_says_and_is_that_of_the_new_life() -> None:
    cluster = running(a="1", b="1")
    for life in ("2", "1", "7"):
        cluster.publish(pods(a="1", b=life))
        cluster.run(0.5)
    cluster.run(20.0)
    assert cluster.world == ["a", "b"]
    assert len(cluster.events("resized")) == len(cluster.events("spawned")) - 1 == 1
    assert cluster.driver.job.roster.agents["b"].host.life == "7"
    cluster.disconnect("b")  # a link that breaks for a moment is no more than that
    cluster.run(SOON_S)
    cluster.reconnect("b")
    cluster.run(20.0)
    assert len(cluster.events("resized")) == 1
    assert not cluster.events("fenced")


def test_a_list_that_is_odd_for_a_moment_costs_a_host_that_is_heard_nothing() -> None:
    cluster = running(a="1", b="1")
    cluster.publish(pods(a="1", b="2"))
    cluster.publish(pods(a="1", b="1"))
    cluster.disconnect("b")
    cluster.run(SOON_S)
    cluster.reconnect("b")
    cluster.run(20.0)
    assert len(cluster.events("resized")) == 1
    assert not cluster.events("fenced")


def test_the_new_life_carries_no_strike_of_the_former_one() -> None:
    cluster = running(a="1", b="1")
    cluster.kill("b")  # a moment before its container is gone, too
    cluster.until(lambda: cluster.events("struck"))
    lose_container(cluster, "b")
    cluster.run(5.0)
    assert cluster.world == ["a"]
    cluster.publish(pods(a="1", b="2"))
    cluster.until(lambda: cluster.world == ["a", "b"], within=20.0)
    cluster.publish(pods(a="1", b="1"))  # no cluster does so; it shows that nothing was forgotten
    assert cluster.driver.job.faults.ledger.usable_slots(cluster.clock.mono(), pods(b="1").hosts[0]) == ()


def test_the_new_life_answers_for_what_it_does_itself() -> None:
    cluster = running(a="1", b="1")
    lose_container(cluster, "b")
    cluster.publish(pods(a="1", b="2"))
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(20.0)
    assert cluster.world == ["a"]
    assert [event["host"] for event in cluster.events("struck")] == ["b"]


def test_an_agent_that_is_on_its_way_to_a_container_that_is_gone_is_started_anew() -> None:
    cluster = running(a="1")
    cluster.join_s["b"] = 50.0
    cluster.publish(pods(a="1", b="1"))
    cluster.run(1.0)
    cluster.join_s["b"] = 0.3
    cluster.publish(pods(a="1", b="2"))
    cluster.until(lambda: cluster.world == ["a", "b"], within=20.0)
    assert not cluster.events("struck")


@pytest.mark.parametrize("off_s", [0.1, 0.6])
def test_where_lives_are_not_told_a_host_that_was_off_the_list_is_not_waited_for_either(off_s: float) -> None:
    """As with a hosts file: it is back on it before its silence has lasted long enough."""
    cluster = Cluster(Rules(Limits(start=2, settle_s=0.1)))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(1.0)
    lose_container(cluster, "b")
    cluster.run(0.5)
    cluster.hosts(a=1)
    cluster.run(off_s)
    cluster.hosts(a=1, b=1)
    assert cluster.until(lambda: cluster.world == ["a"]) < 2.0


def test_a_host_that_was_off_the_list_once_and_has_spoken_since_has_all_the_time_again() -> None:
    cluster = Cluster(Rules(Limits(start=2, settle_s=0.1)))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.hosts(a=1)
    cluster.hosts(a=1, b=1)
    cluster.run(5.0)
    cluster.disconnect("b")
    cluster.run(5.0)
    cluster.reconnect("b")
    cluster.run(5.0)
    assert len(cluster.events("resized")) == 1
    assert not cluster.events("fenced")


def test_lives_that_are_told_from_now_on_are_learnt_without_a_change() -> None:
    """The daemon was replaced by one that knows them."""
    cluster = running(a="", b="")
    cluster.publish(pods(a="1", b="1"))
    cluster.run(20.0)
    assert len(cluster.events("resized")) == 1
    lose_container(cluster, "b")
    cluster.publish(pods(a="1", b="2"))
    assert cluster.until(lambda: cluster.world == ["a"]) < 0.1

"""A pod that comes back under its name is another host: nothing that was held against the former one holds for it."""

from __future__ import annotations

import io

import pytest

from hvd_elastic_ext.core.clock import ManualClock
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Publication, from_json, to_json
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from hvd_elastic_ext.launcher.sources.feed import HostFeed
from tests.unit.launcher.simulated import Cluster, Rules

LONG_S = 600.0


def pods(**uids: str) -> HostSet:
    return HostSet(tuple(Host(name, 1, uid=uid, node=f"node-of-{uid}") for name, uid in uids.items()))


def running(**uids: str) -> Cluster:
    rules = Rules(Limits(start=len(uids), settle_s=0.1), cooldown_s=(LONG_S, LONG_S))
    cluster = Cluster(rules)
    cluster.publish(pods(**uids))
    cluster.until(lambda: cluster.world == list(uids))
    cluster.run(1.0)
    return cluster


def test_what_is_published_of_a_pods_life_reaches_the_launcher() -> None:
    feed = HostFeed(Journal(io.StringIO(), ManualClock()))
    for number, uid in enumerate(("1", "2"), start=1):
        change = feed.offer(from_json(to_json(Publication("s", number, pods(a="0", b=uid))), where="test"))
    assert (change.removed, change.added) == (("b",), ("b",))
    assert feed.hosts().get("b") == Host("b", 1, uid="2", node="node-of-2")


def test_a_blocked_pods_successor_works_at_once_and_the_blocked_one_still_does_not() -> None:
    cluster = running(a="0", b="1")
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(20.0)
    assert cluster.world == ["a"]
    cluster.publish(pods(a="0"))
    cluster.until(lambda: "b" not in cluster.agents)
    cluster.publish(pods(a="0", b="2"))
    cluster.until(lambda: cluster.world == ["a", "b"], within=20.0)
    assert [event["cause"] for event in cluster.events("resized")] == ["start", "worker failed", "hosts added"]
    cluster.publish(pods(a="0", b="1"))  # no cluster does so; it shows that nothing was forgotten
    cluster.run(20.0)
    assert cluster.world == ["a"]


@pytest.mark.parametrize(("uid", "works"), [("2", True), ("1", False)], ids=["recreated", "the same"])
def test_a_pod_that_was_sent_away_has_itself_rest_and_not_its_successor(uid: str, *, works: bool) -> None:
    cluster = running(a="0", b="1")
    cluster.terminate("b")
    cluster.publish(pods(a="0"))
    cluster.until(lambda: "b" not in cluster.agents)
    cluster.publish(pods(a="0", b=uid))
    cluster.run(20.0)
    assert cluster.world == (["a", "b"] if works else ["a"])


def test_nobody_waits_for_the_silence_of_a_pod_that_has_a_successor() -> None:
    cluster = running(a="0", b="1")
    lose(cluster, "b")
    cluster.publish(pods(a="0", b="2"))
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < cluster.rules.heartbeat_timeout_s
    assert not cluster.events("struck")
    assert [event["reason"] for event in cluster.events("fenced")] == ["its pod was recreated"]


def test_a_pod_that_is_published_again_keeps_its_agent_and_its_processes() -> None:
    cluster = running(a="0", b="1")
    cluster.publish(HostSet((*pods(a="0"), Host("b", 1))))  # by a source that does not know
    cluster.publish(pods(b="1", a="0"))
    cluster.run(20.0)
    assert len(cluster.events("spawned")) == 2
    assert len(cluster.events("resized")) == 1


def test_a_successor_that_was_reached_before_it_was_published_is_not_cut_off() -> None:
    """The source of hosts was away while the pod died and was made again, under the name that was listed still."""
    cluster = Cluster(Rules(Limits(start=2, settle_s=0.1), cooldown_s=(5.0, 5.0)))
    cluster.publish(pods(a="0", b="1"))
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(1.0)
    cluster.kill("b")
    cluster.lose_agent("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.until(lambda: cluster.world == ["a", "b"])
    changes = len(cluster.events("resized"))
    cluster.publish(pods(a="0", b="2"))
    cluster.run(20.0)
    assert len(cluster.events("resized")) == changes
    assert not [event for event in cluster.events("fenced") if "recreated" in event["reason"]]
    cluster.kill("b", code=1)
    cluster.run(1.0)
    assert [subject.uid for subject in cluster.driver.job.faults.ledger.records if subject.uid][-1] == "2"


def cut_off_once(*, dies: bool = False) -> Cluster:
    """The link to pod b was cut for a while, or its agent died and another one was started in it; it trains again."""
    cluster = Cluster(Rules(Limits(start=2, settle_s=0.1), cooldown_s=(5.0, 5.0)))
    cluster.publish(pods(a="0", b="1"))
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(1.0)
    if dies:
        cluster.kill("b")
        cluster.lose_agent("b")
    else:
        cluster.cut.add("b")
        cluster.dead.add("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(20.0)
    cluster.cut.discard("b")
    cluster.dead.discard("b")
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(20.0)
    return cluster


def test_an_agent_that_was_cut_off_and_has_come_back_is_not_taken_for_its_pods_successor() -> None:
    """Nobody waits for its silence, then, when its pod is made again; and the new one is not blamed for it."""
    cluster = cut_off_once()
    struck = len(cluster.events("struck"))
    lose(cluster, "b")
    cluster.publish(pods(a="0", b="2"))
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < cluster.rules.heartbeat_timeout_s
    assert len(cluster.events("struck")) == struck


def test_whoever_says_nothing_after_its_pod_was_made_again_is_not_held_against_the_new_one() -> None:
    """Whether another agent than before is that of the same pod is not known."""
    cluster = cut_off_once(dies=True)
    struck = len(cluster.events("struck"))
    del cluster.agents["b"]  # without a word, as a node that is switched off
    cluster.lose_world("a")
    cluster.publish(pods(a="0", b="2"))
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert len(cluster.events("struck")) == struck


def lose(cluster: Cluster, host: str) -> None:
    """The pod is gone with all that it ran, and nobody tells: its connections stay open, as through a cut link."""
    cluster.agents[host].clear()
    cluster.mute.add(host)
    cluster.lose_world("a")


def test_nobody_waits_for_what_a_pod_held_that_was_made_again_after_it_was_cut_off() -> None:
    cluster = Cluster(Rules(Limits(settle_s=0.1), cooldown_s=(8.0, 300.0), heartbeat_timeout_s=5.0))
    cluster.publish(pods(a="0", b="1"))
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(3.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(3.0)
    cluster.cut.add("a")
    cluster.until(lambda: [event["host"] for event in cluster.events("fenced")] == ["a"])
    cluster.publish(pods(a="2", b="1"))
    assert cluster.until(lambda: "b" in cluster.world) < 10.0
    cluster.run(11.0)
    assert "its pod was recreated" in cluster.events("resized")[-1]["lost_because"]

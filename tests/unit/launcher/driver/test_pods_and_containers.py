"""A pod that is recreated under its name, or whose container is started again, is another host.

The job does not wait for the former one, and blocks of the former one do not apply to the new one.
"""

from __future__ import annotations

import io

import pytest

from hvd_elastic_ext.core.hosts import Host, HostSet, follow
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Publication, from_json, to_json
from hvd_elastic_ext.launcher.sources.hosts import HostFeed
from tests.support.clock import ManualClock
from tests.unit.launcher.scenarios import play

LONG = "begin start=2 cooldown_s=(600.0,600.0); "
PODS = LONG + "pods a=0 b=1; until a b; run 1; "
CONTAINERS = LONG + "lives a=1 b=1; until a b; run 1; "
SHORT_PODS = "begin start=2 cooldown_s=(5.0,5.0); pods a=0 b=1; until a b; run 1; "
CUT_OFF_ONCE = SHORT_PODS + "{}; until a; run 20; back b; until a b; run 20; "

RECREATED = {
    "a blocked pod's successor works at once, and the blocked one still does not": PODS
    + """kill b; until a; run 20; world a; pods a=0; gone b; pods a=0 b=2; until a b <20
        is resized.cause start, worker failed, hosts added; pods a=0 b=1; run 20; world a""",
    "a pod that was sent away rests, and not its successor": PODS
    + "sigterm b; pods a=0; gone b; pods a=0 b=2; run 20; world a b",
    "the same pod does rest": PODS + "sigterm b; pods a=0; gone b; pods a=0 b=1; run 20; world a",
    "nobody waits for the silence of one that has a successor": PODS
    + "vanish b; pods a=0 b=2; until a b <10; no struck; is fenced.reason its pod was recreated",
    "one that is listed again keeps its agent": PODS
    + "pods a=0 b=; pods b=1 a=0; run 20; number spawned 2; number resized 1",
    "one that was cut off and is back is not taken for its successor": CUT_OFF_ONCE.format("cut b; dead b")
    + "number struck 4; vanish b; pods a=0 b=2; until a b <10; number struck 4",
    "nobody waits for what a pod held that was made again after it was cut off": """
        begin cooldown_s=(8.0,300.0) heartbeat_timeout_s=5.0; pods a=0 b=1; until a b; run 3; kill b; until a; run 3
        cut a; sees fenced; is fenced.host a; pods a=2 b=1; has b <10; run 11
        says resized.lost_because its pod was recreated""",
}
RESTARTED = {
    "nobody waits for one whose successor is listed": CONTAINERS
    + """container b; run 1.2; lives a=1; run 0.6; lives a=1 b=2; until a <0.1; until a b <10; no struck
        is fenced.reason its container was started again""",
    "nor if it never was off the list": CONTAINERS + "container b; lives a=1 b=2; until a <0.1; until a b; no struck",
    "nor if its connection is lost only after that": CONTAINERS + "lives a=1 b=2; container b; until a <0.1; no struck",
    "an odd list costs a host that is heard nothing": CONTAINERS
    + "lives a=1 b=2; lives a=1 b=1; disconnect b; run 1.5; reconnect b; run 20; number resized 1; no fenced",
    "the new life answers for what it does itself": CONTAINERS
    + "container b; lives a=1 b=2; until a b; kill b; until a; run 20; world a; is struck.host b",
    "an agent on its way to a container that is gone is started again": LONG.replace("start=2", "start=1")
    + "lives a=1; until a; comes b 50; lives a=1 b=1; run 1; comes b 0.3; lives a=1 b=2; until a b <20; no struck",
    "lives that are told from now on are learnt without a change": LONG
    + """lives a= b=; until a b; run 1; lives a=1 b=1; run 20; number resized 1; container b; lives a=1 b=2
        until a <0.1""",
}


@pytest.mark.parametrize("text", RECREATED.values(), ids=RECREATED)
def test_a_recreated_pod_starts_without_the_past_of_the_former_one(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", RESTARTED.values(), ids=RESTARTED)
def test_a_restarted_container_is_replaced_without_blame_or_waiting(text: str) -> None:
    play(text)


def test_what_is_published_of_a_pods_life_reaches_the_launcher() -> None:
    feed = HostFeed(Journal(io.StringIO(), ManualClock()))
    for number, uid in enumerate(("1", "2"), start=1):
        hosts = HostSet((Host("a", 1, uid="0"), Host("b", 1, uid=uid, node=f"node-of-{uid}")))
        before = feed.hosts()
        feed.offer(from_json(to_json(Publication("s", number, hosts)), where="test"))
    _, change = follow(before, feed.hosts())
    assert (change.removed, change.added) == (("b",), ("b",))
    assert feed.hosts().get("b") == Host("b", 1, uid="2", node="node-of-2")


def test_a_successor_that_was_reached_before_it_was_published_is_not_cut_off() -> None:
    """The source of hosts failed while the pod died and was recreated under a name that was still listed."""
    cluster = play(SHORT_PODS + "kill b; lose-agent b; until a; until a b")
    changes = len(cluster.events("resized"))
    cluster.publish(HostSet((Host("a", 1, uid="0", node="node-of-0"), Host("b", 1, uid="2", node="node-of-2"))))
    cluster.run(20.0)
    assert len(cluster.events("resized")) == changes
    assert not [event for event in cluster.events("fenced") if "recreated" in event["reason"]]
    cluster.kill("b", code=1)
    cluster.run(1.0)
    assert [subject.uid for subject in cluster.driver.job.faults.ledger.records if subject.uid][-1] == "2"


def test_whoever_says_nothing_after_its_pod_was_made_again_is_not_held_against_the_new_one() -> None:
    """It is not known whether another agent than before belongs to the same pod."""
    cluster = play(CUT_OFF_ONCE.format("kill b; lose-agent b"))
    struck = len(cluster.events("struck"))
    cluster.vanish("b")  # without a message, like a node that loses its power
    cluster.lose_world("a")
    cluster.publish(HostSet((Host("a", 1, uid="0", node="node-of-0"), Host("b", 1, uid="2", node="node-of-2"))))
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert len(cluster.events("struck")) == struck


def test_an_agent_that_speaks_on_is_kept_whatever_the_list_says_and_is_that_of_the_new_life() -> None:
    cluster = play(CONTAINERS + "lives a=1 b=2; run 0.5; lives a=1 b=1; run 0.5; lives a=1 b=7; run 20; world a b")
    assert len(cluster.events("resized")) == len(cluster.events("spawned")) - 1 == 1
    assert cluster.driver.job.roster.agents["b"].host.life == "7"
    cluster.disconnect("b")  # only the connection breaks, for a moment
    cluster.run(1.5)
    cluster.reconnect("b")
    cluster.run(20.0)
    assert len(cluster.events("resized")) == 1
    assert not cluster.events("fenced")


def test_the_new_life_carries_no_strike_of_the_former_one() -> None:
    cluster = play(CONTAINERS + "kill b; sees struck; container b; run 5; world a; lives a=1 b=2; until a b <20")
    former = Host("b", 1, uid="uid-b", node="n", life="1")
    assert cluster.driver.job.faults.ledger.usable_slots(cluster.clock.mono(), former) == ()

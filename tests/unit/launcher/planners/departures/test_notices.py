"""Hosts that are about to go by a file that their agents read, and may stay after all."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.events import News
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.planners.departures.test_leaving import causes, nobody_is_blamed
from tests.unit.launcher.simulated import Cluster, Rules


def notices(cluster: Cluster) -> list[tuple[str, str]]:
    return [(event["host"], event["reason"]) for event in cluster.events("notice")]


def test_a_host_with_a_notice_leaves_at_the_next_step_and_comes_back_when_that_is_taken_back() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    cluster.write_notice("b", "drained by Ops")
    assert cluster.until(lambda: cluster.world == ["a", "c"] and cluster.driver.job.formed) < 0.2
    assert notices(cluster) == [("b", "drained by Ops")]
    assert cluster.events("notice")[0]["deadline"] is None
    cluster.run(60.0)
    assert cluster.world == ["a", "c"]
    assert not cluster.agents["b"]  # and the agent is there
    cluster.write_notice("b", "")
    cluster.until(lambda: cluster.world == ["a", "c", "b"])
    assert [event["host"] for event in cluster.events("notice_over")] == ["b"]
    cluster.run(30.0)
    assert causes(cluster) == ["start", "hosts removed", "hosts added"]
    assert nobody_is_blamed(cluster)


def test_a_deadline_that_becomes_known_is_heeded_and_the_notice_is_told_of_once() -> None:
    cluster = running("a")
    cluster.run(2.0)
    cluster.write_notice("a", "spot reclaim")
    cluster.run(1.0)
    cluster.write_notice("a", "spot reclaim", 30.0)
    cluster.run(0.1)
    left_s = cluster.driver.job.leaves_by["a"] - cluster.clock.mono()
    assert 29.0 < left_s < 30.0
    assert len(notices(cluster)) == 1


def test_the_only_host_trains_until_it_is_gone_and_that_is_nobodys_fault() -> None:
    cluster = running("a")
    cluster.run(2.0)
    cluster.write_notice("a", "evicted for want of memory", 20.0)
    cluster.run(20.0)
    assert cluster.world == ["a"]
    cluster.kill("a")
    cluster.run(0.1)
    cluster.lose_agent("a")
    cluster.run(1.0)
    assert [event["cause"] for event in cluster.events("exited")] == ["evicted"]
    assert not cluster.events("struck")
    assert not cluster.events("fenced")
    assert cluster.driver.outcome is None


def test_a_host_that_goes_is_not_left_before_its_replacement_has_the_state() -> None:
    cluster = running("a")
    cluster.run(2.0)
    cluster.boot_s["b"] = 5.0
    cluster.write_notice("a", "drained", 60.0)
    cluster.hosts(a=1, b=1)
    cluster.run(4.0)
    assert cluster.world == ["a"]
    cluster.until(lambda: cluster.world == ["b"])
    assert nobody_is_blamed(cluster)


def test_a_notice_that_was_lost_with_its_connection_is_in_the_next_hello_and_so_is_its_end() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    for reason, world in (("drained", ["a"]), ("", ["a", "b"])):
        cluster.mute.add("b")
        cluster.write_notice("b", reason)
        cluster.run(0.5)
        cluster.disconnect("b")
        cluster.run(0.2)
        cluster.reconnect("b")
        cluster.until(lambda world=world: cluster.world == world and cluster.driver.job.formed)
    assert nobody_is_blamed(cluster)


def test_of_the_lists_deadline_and_the_agents_the_earlier_one_counts() -> None:
    cluster = running("a")
    cluster.run(2.0)
    now = cluster.clock.mono()
    for in_s, expected in ((None, 15.0), (5.0, 5.0), (100.0, 15.0)):
        cluster.publish(HostSet.of({}), {"a": ("spot reclaim", now + 15.0)})
        cluster.driver.tell(News("a", {"event": "going", "reason": "drained by Ops", "in_s": in_s}))
        assert cluster.driver.job.leaves_by["a"] - now == pytest.approx(expected)
    assert cluster.world == ["a"]


def test_an_agent_that_is_sent_a_signal_as_well_leaves_and_the_notice_says_why() -> None:
    cluster = running("a", "b", rules=Rules(cooldown_s=(60.0, 300.0)))
    cluster.run(2.0)
    cluster.agents["b"][0].wedged = True
    cluster.write_notice("b", "node drained", 20.0)
    cluster.run(0.1)
    cluster.terminate("b")
    cluster.run(1.0)
    cluster.write_notice("b", "")  # too late: it ends
    cluster.until(lambda: "b" not in cluster.agents)
    assert notices(cluster) == [("b", "node drained"), ("b", "its agent was sent SIGTERM")]
    assert not cluster.events("notice_over")
    assert cluster.world == ["a"]
    assert nobody_is_blamed(cluster)


def test_a_departure_that_the_list_takes_back_is_told_of() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.publish(HostSet.of({"a": 1}), {"b": ("node n-1 has a spot notice", None)})
    cluster.until(lambda: cluster.world == ["a"])
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert [(event["host"], event["reason"]) for event in cluster.events("notice_over")] == [
        ("b", "it is listed as a host again")
    ]
    cluster.publish(HostSet.of({"a": 1}), {"b": ("gone now", None)})
    cluster.hosts(a=1)
    assert len(cluster.events("notice_over")) == 1


def test_advice_is_written_down_and_changes_nothing() -> None:
    cluster = running("a", "b")
    for reason in ("likely to be taken back", None):
        cluster.driver.tell(News("b", {"event": "advised", "reason": reason}))
        cluster.run(5.0)
    assert [(event["host"], event["reason"]) for event in cluster.events("advised")] == [
        ("b", "likely to be taken back"),
        ("b", None),
    ]
    assert causes(cluster) == ["start"]
    assert cluster.world == ["a", "b"]


def test_of_hosts_that_cannot_ask_their_cloud_the_first_is_warned_of_and_all_are_written_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = running("a", "b")
    for host in ("a", "b"):
        for reason in ("Connection refused", None):
            cluster.driver.tell(News(host, {"event": "deaf", "source": "aws", "reason": reason}))
    cluster.run(5.0)
    assert [(event["host"], event["reason"]) for event in cluster.events("deaf")] == [
        (host, reason) for host in ("a", "b") for reason in ("Connection refused", None)
    ]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["a"]
    assert "Connection refused" in caplog.text
    assert nobody_is_blamed(cluster)

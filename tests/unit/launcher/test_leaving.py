"""Processes and hosts on their way out: of a job that ends, and of one that goes on."""

from __future__ import annotations

import signal

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.driver import PATIENCE_S
from tests.unit.launcher.simulated import Cluster, Rules
from tests.unit.launcher.test_driver import running

GRACE_S = 5.0


def evaluating_where_it_is_not_wanted() -> Cluster:
    """The host b was taken out of the list. Its process was told, beats, and will be at no step for a long time."""
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.agents["b"][0].wedged = True
    cluster.ends_s["b"] = GRACE_S
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.driver.worlds.formed and len(cluster.driver.worlds.members) == 1)
    cluster.run(1.0)
    assert 0 in cluster.agents["b"]
    return cluster


def interrupt(cluster: Cluster) -> None:
    cluster.driver.end(Interrupted(signal.SIGINT, "stopped by SIGINT"))


def test_whoever_was_about_to_leave_is_stopped_with_all_the_others_when_the_job_is_told_to_end() -> None:
    cluster = evaluating_where_it_is_not_wanted()
    interrupt(cluster)
    assert cluster.until(lambda: cluster.driver.over) < GRACE_S + 1.0
    assert not cluster.agents


def test_whoever_was_about_to_leave_does_not_hold_up_the_end_of_a_training_that_is_done() -> None:
    cluster = evaluating_where_it_is_not_wanted()
    cluster.says("a", "done")
    cluster.run(0.1)
    cluster.kill("a", code=0)
    assert cluster.until(lambda: cluster.driver.over) < GRACE_S + 1.0
    assert cluster.driver.outcome is None
    assert not cluster.agents


def test_whoever_is_done_and_no_member_of_the_last_world_may_take_its_time_all_the_same() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    cluster.says("b", "done")  # it has a model to write
    cluster.run(0.1)
    cluster.agents["b"][0].wedged = True
    cluster.kill("c")
    cluster.until(lambda: len(cluster.driver.worlds.members) == 1 and cluster.driver.worlds.formed)
    cluster.run(1.0)
    cluster.says("a", "done")
    cluster.run(0.1)
    cluster.kill("a", code=0)
    cluster.run(60.0)
    assert 0 in cluster.agents["b"]
    cluster.kill("b", code=0)
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_agents_that_may_be_told_so_end_even_if_the_end_of_others_is_not_waited_for_any_longer() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.deaf.add("b")
    interrupt(cluster)
    assert PATIENCE_S - 0.1 < cluster.until(lambda: cluster.driver.over) < PATIENCE_S + 1.0
    assert "a" in cluster.agents
    cluster.run(0.1)
    assert list(cluster.agents) == ["b"]


def test_a_host_that_stood_still_and_is_not_wanted_any_more_is_empty_soon_after_it_goes_on() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.cut.add("b")  # as a machine that is paused: its connections survive that
    cluster.until(lambda: cluster.driver.worlds.formed and len(cluster.driver.worlds.members) == 1)
    cluster.hosts(a=1)
    cluster.run(5.0)
    cluster.cut.discard("b")
    assert cluster.until(lambda: "b" not in cluster.agents) < 3.0
    assert cluster.world == ["a"]
    cluster.run(60.0)
    assert [event["cause"] for event in cluster.events("resized")] == ["start", "worker failed"]
    assert len(cluster.events("struck")) == 1


def test_an_end_that_was_told_and_never_taken_in_is_told_again_and_the_others_go_on() -> None:
    cluster = running("a", "b", "c", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.lose_news["exited"] = 1
    cluster.kill("b", code=1)
    assert 3.0 < cluster.until(lambda: len(cluster.driver.worlds.members) == 2 and cluster.driver.worlds.formed) < 6.0
    assert cluster.world == ["a", "c"]
    assert [(event["host"], event["code"]) for event in cluster.events("exited")] == [("b", 1)]
    cluster.until(lambda: cluster.world == ["a", "c", "b"])
    assert not cluster.events("fenced")


def test_the_last_end_of_a_job_that_was_never_taken_in_does_not_keep_the_launcher() -> None:
    cluster = running("a", "b", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.lose_news["exited"] = 2
    cluster.finish()
    cluster.until(lambda: cluster.driver.over, within=10.0)
    assert cluster.driver.outcome is None


def test_a_process_that_takes_long_until_its_first_beat_is_not_missed() -> None:
    cluster = running("a", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.dumb.add("b")
    cluster.boot_s["b"] = 30.0
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert len(cluster.events("spawned")) == 2
    assert cluster.hung_up == 0

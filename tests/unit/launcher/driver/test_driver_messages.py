"""Orders that never arrive, news that come twice, agents that come back: the job ends up where it would have been."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.planners.membership.world import TELL_AGAIN_S
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.driver.test_driver import causes, running
from tests.unit.launcher.simulated import Cluster, Rules


def cut_off_unnoticed(cluster: Cluster, host: str, *, for_s: float) -> None:
    """Lose every order to a host for a while; then its connection breaks, and is made again."""
    cluster.deaf.add(host)
    cluster.run(for_s)
    cluster.disconnect(host)
    cluster.run(0.2)
    cluster.reconnect(host)


def test_a_newcomer_that_was_not_told_to_go_is_told_again_when_its_agent_is_back() -> None:
    cluster = running("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.events("parked")[-1]["host"] == "b")
    cluster.deaf.add("b")
    cluster.until(lambda: cluster.driver.job.generation == 2)
    assert cluster.agents["b"][0].state == "parked"
    cut_off_unnoticed(cluster, "b", for_s=0.3)
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 1.0
    assert causes(cluster) == ["start", "hosts added"]


def test_a_newcomer_that_was_not_told_to_go_is_told_again_in_any_case() -> None:
    cluster = running("a")
    cluster.lose["go"] = cluster.told["go"] + 1
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.driver.job.generation == 2)
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < TELL_AGAIN_S + 1.0


def test_a_process_whose_start_got_lost_is_started_when_its_agent_is_back() -> None:
    cluster = running("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: "b" in cluster.agents)
    cluster.agents["b"].clear()
    cluster.until(lambda: cluster.driver.job.roster.on("b"))
    cluster.disconnect("b")  # the order is on its way
    cluster.run(0.2)
    assert not cluster.agents["b"]
    cluster.reconnect("b")
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 5.0
    assert not cluster.events("struck")


def test_a_parked_process_whose_stop_got_lost_is_stopped_when_its_agent_is_back() -> None:
    cluster = running("a", rules=Rules(Limits(settle_s=20.0)))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.events("parked")[-1]["host"] == "b")
    cluster.deaf.add("b")
    cluster.hosts(a=1)
    cut_off_unnoticed(cluster, "b", for_s=0.3)
    cluster.until(lambda: "b" not in cluster.agents, within=5.0)
    assert causes(cluster) == ["start"]


def test_a_member_that_was_not_told_to_leave_hears_of_it_when_its_agent_is_back() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.deaf.add("b")
    cluster.hosts(a=1)
    cut_off_unnoticed(cluster, "b", for_s=0.3)
    assert cluster.until(lambda: cluster.world == ["a"] and "b" not in cluster.agents) < 1.0
    assert [event["cause"] for event in cluster.events("exited")] == ["told to leave"]


def test_a_silent_process_whose_kill_got_lost_is_killed_when_its_agent_is_back() -> None:
    cluster = running("a", "b", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.stop("b")
    cluster.deaf.add("b")
    cluster.until(lambda: cluster.events("fenced"))
    cut_off_unnoticed(cluster, "b", for_s=0.1)
    assert cluster.until(lambda: [event["cause"] for event in cluster.events("exited")] == ["silent"]) < 1.0


def test_ranks_whose_answer_got_lost_are_told_again_and_nobody_is_interrupted_for_it() -> None:
    cluster = running("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.agents.get("b", {}).get(0) and cluster.agents["b"][0].state == "waiting")
    cluster.deaf.add("b")
    cluster.until(lambda: len(causes(cluster)) == 2)
    assert cluster.agents["b"][0].state == "waiting"
    cut_off_unnoticed(cluster, "b", for_s=0.1)
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 0.5
    cluster.run(5.0)
    assert causes(cluster) == ["start", "hosts added"]
    assert cluster.driver.job.generation == 2


@pytest.mark.parametrize("again_s", [0.02, 0.5, 5.0, 60.0])
def test_news_that_come_twice_change_nothing(again_s: float) -> None:
    cluster = running("a", "b")
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.world == ["a", "b", "c"])
    for host in ("a", "b", "c"):
        cluster.disconnect(host)
        cluster.run(0.05)
        cluster.reconnect(host, again_s=again_s)
    cluster.run(20.0)
    assert cluster.world == ["a", "b", "c"]
    assert causes(cluster) == ["start", "hosts added"]
    cluster.hosts(a=1, b=1)
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 0.25
    assert [event["cause"] for event in cluster.events("exited")] == ["told to leave"]


def test_a_question_that_comes_again_while_a_world_forms_is_one_question() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: any(process.state == "waiting" for process in cluster._all()))
    for host in ("a", "b"):
        cluster.disconnect(host)
        cluster.reconnect(host, again_s=0.5)
    cluster.until(lambda: cluster.world == ["a", "b", "c"])
    cluster.run(10.0)
    assert causes(cluster) == ["start", "hosts added"]


def test_a_newcomer_whose_being_parked_was_never_read_is_let_in_when_its_agent_is_back() -> None:
    cluster = running("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: 0 in cluster.agents.get("b", {}))
    cluster.mute.add("b")
    cluster.until(lambda: cluster.agents["b"][0].state == "parked")
    cluster.run(0.1)
    cluster.disconnect("b")
    cluster.reconnect("b")
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 1.0


def test_members_whose_arrival_was_never_read_count_as_arrived_when_their_agents_are_back() -> None:
    cluster = running("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.mute |= {"a", "b"}
    cluster.run(1.0)
    for host in ("a", "b"):
        cluster.disconnect(host)
        cluster.reconnect(host)
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.world == ["a"], within=15.0)
    assert not cluster.events("struck")


def test_how_a_process_ended_unseen_is_known_from_its_agent() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.disconnect("b")
    cluster.kill("b", code=0)
    cluster.run(0.1)
    cluster.reconnect("b")
    cluster.until(lambda: cluster.world == ["a"])
    assert [(event["code"], event["cause"]) for event in cluster.events("exited")] == [(0, "left")]
    assert not cluster.events("struck")


def test_the_end_of_training_is_not_missed_by_a_connection_that_broke() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.disconnect("a")
    cluster.disconnect("b")
    cluster.finish()
    cluster.run(0.1)
    cluster.reconnect("a")
    cluster.reconnect("b")
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_a_connection_cut_and_made_again_while_nothing_changes_costs_nothing() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    for _ in range(5):
        cut_off_unnoticed(cluster, "b", for_s=1.0)
        cluster.run(1.0)
    assert cluster.world == ["a", "b"]
    assert causes(cluster) == ["start"]
    assert not cluster.events("struck")


def test_a_process_of_which_only_its_agents_account_tells_that_it_runs_is_journalled_as_any_other() -> None:
    cluster = running("a")
    cluster.lose_news["started"] = 1
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: "b" in cluster.agents and cluster.agents["b"])
    cut_off_unnoticed(cluster, "b", for_s=1.0)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert [event["host"] for event in cluster.events("spawned")] == ["a", "b"]


def test_a_process_that_is_just_being_started_when_its_agent_comes_back_is_journalled_once_with_its_number() -> None:
    cluster = running("a")
    cluster.pid = None
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: "b" in cluster.agents and cluster.agents["b"])
    cluster.disconnect("b")
    cluster.run(0.5)
    cluster.reconnect("b")
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert [(event["host"], event["pid"]) for event in cluster.events("spawned")] == [("a", 1), ("b", 1)]


def test_a_start_that_is_refused_is_ordered_again_after_a_while_and_nobody_is_blamed() -> None:
    cluster = running("a")
    cluster.finishing.add("b")  # as after a signal to the agent
    cluster.hosts(a=1, b=1)
    cluster.run(5.0)
    assert not cluster.agents["b"]
    assert not cluster.driver.job.roster.on("b")
    cluster.finishing.discard("b")
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 20.0
    assert not cluster.events("struck")

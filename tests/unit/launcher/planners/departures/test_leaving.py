"""Processes and hosts on their way out: of a job that ends, and of one that goes on."""

from __future__ import annotations

import signal

import pytest

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.driver.events import End, News
from hvd_elastic_ext.launcher.rules.health.causes import announced
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.simulated import Cluster, Rules

GRACE_S = 5.0


def evaluating_where_it_is_not_wanted() -> Cluster:
    """The host b was taken out of the list. Its process was told, beats, and will be at no step for a long time."""
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.agents["b"][0].wedged = True
    cluster.ends_s["b"] = GRACE_S
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.driver.job.formed and len(cluster.driver.job.world.members) == 1)
    cluster.run(1.0)
    assert 0 in cluster.agents["b"]
    return cluster


def interrupt(cluster: Cluster) -> None:
    cluster.driver.tell(End(Interrupted(signal.SIGINT, "stopped by SIGINT")))


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
    cluster.until(lambda: len(cluster.driver.job.world.members) == 1 and cluster.driver.job.formed)
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
    assert 29.9 < cluster.until(lambda: cluster.driver.over) < 31.0
    assert "a" in cluster.agents
    cluster.run(0.1)
    assert list(cluster.agents) == ["b"]


def test_a_host_that_stood_still_and_is_not_wanted_any_more_is_empty_soon_after_it_goes_on() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.cut.add("b")  # as a machine that is paused: its connections survive that
    cluster.until(lambda: cluster.driver.job.formed and len(cluster.driver.job.world.members) == 1)
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
    assert 3.0 < cluster.until(lambda: len(cluster.driver.job.world.members) == 2 and cluster.driver.job.formed) < 6.0
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


def causes(cluster: Cluster) -> list[str]:
    return [event["cause"] for event in cluster.events("resized")]


def nobody_is_blamed(cluster: Cluster) -> bool:
    return not cluster.events("struck") and not cluster.events("fenced") and not cluster.events("rolled_back")


def test_a_host_whose_agent_is_sent_a_signal_leaves_at_the_next_step_and_comes_back_with_another_agent() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    cluster.terminate("b")
    assert cluster.until(lambda: cluster.world == ["a", "c"] and cluster.driver.job.formed) < 0.2
    assert [(event["host"], event["reason"]) for event in cluster.events("notice")] == [
        ("b", "its agent was sent SIGTERM")
    ]
    cluster.until(lambda: cluster.world == ["a", "c", "b"])
    cluster.run(30.0)
    assert causes(cluster) == ["start", "hosts removed", "hosts added"]
    assert [(event["cause"], event["code"]) for event in cluster.events("exited")] == [("told to leave", 0)]
    assert nobody_is_blamed(cluster)


def test_a_host_whose_agent_is_about_to_end_is_not_worked_with_because_a_list_names_it() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.agents["b"][0].wedged = True
    cluster.terminate("b")
    cluster.run(0.5)
    cluster.hosts(a=1, b=2)
    cluster.run(3.0)
    assert cluster.driver.job.leaves_by.keys() == {"b"}
    assert [len(seats) for seats in cluster.agents.values()] == [1, 1]
    cluster.until(lambda: sorted(cluster.world) == ["a", "b", "b"])
    assert not cluster.driver.job.leaves_by
    assert nobody_is_blamed(cluster)


def test_who_does_not_come_to_a_step_before_its_agents_grace_is_over_costs_its_host_nothing() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.agents["b"][0].wedged = True
    cluster.terminate("b")
    cluster.until(lambda: "b" not in cluster.agents)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert [event["code"] for event in cluster.events("exited")] == [143]
    assert nobody_is_blamed(cluster)


def test_the_only_host_trains_until_its_agents_grace_is_over_and_then_with_another_agent() -> None:
    cluster = running("a")
    cluster.run(2.0)
    cluster.terminate("a")
    cluster.run(4.5)
    assert cluster.world == ["a"]
    cluster.until(lambda: not cluster.agents)
    cluster.until(lambda: cluster.world == ["a"])
    assert [event["cause"] for event in cluster.events("exited")] == ["preempted"]
    assert nobody_is_blamed(cluster)


def test_an_agent_that_has_nothing_to_do_and_is_sent_a_signal_is_not_taken_to_have_fallen_silent() -> None:
    cluster = running("a", "b", rules=Rules(cooldown_s=(60.0, 300.0)))
    cluster.run(2.0)
    cluster.kill("b")
    cluster.run(2.0)
    cluster.terminate("b")
    cluster.run(30.0)
    assert "b" not in cluster.agents
    assert not cluster.events("fenced")
    assert len(cluster.events("struck")) == 1


def test_a_notice_that_was_lost_with_its_connection_is_given_again() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.mute.add("b")
    cluster.terminate("b")
    cluster.run(0.5)
    cluster.disconnect("b")
    cluster.run(0.5)
    cluster.reconnect("b")
    assert cluster.until(lambda: cluster.world == ["a"] and cluster.driver.job.formed) < 0.2
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert causes(cluster) == ["start", "hosts removed", "hosts added"]
    assert nobody_is_blamed(cluster)


def test_an_agent_that_is_lost_in_its_grace_leaves_nobody_behind_who_is_waited_for() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.agents["b"][0].wedged = True
    cluster.terminate("b")
    cluster.run(0.5)
    cluster.cut.add("b")
    cluster.dead.add("b")
    cluster.disconnect("b")
    cluster.until(lambda: not cluster.driver.job.roster.on("b"), within=12.0)
    assert cluster.world == ["a"]


def test_what_an_agent_could_not_kill_or_pass_on_is_told(caplog: pytest.LogCaptureFixture) -> None:
    cluster = running("a")
    for news in (
        {"event": "left", "slot": 0, "pids": [71, 72]},
        {"event": "dropped", "output": 1000, "news": 3},
        {"event": "dropped", "slot": 0, "life": 1, "records": 5, "messages": 6},
    ):
        cluster.driver.tell(News("a", news))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "a[0]: processes 71, 72 cannot be killed: another user's, or stuck in the kernel",
        "a has dropped 1000 bytes of output and 3 other news: its buffer was full while no launcher was connected",
        "a has dropped 5 journal entries and 6 other messages of slot 0: its process sends more than is passed on",
    ]


def test_a_departure_without_a_deadline_is_told_of_once_and_blames_nobody() -> None:
    cluster = running("a")
    cluster.run(2.0)
    leaving = {"a": ("node drained by an operator", None)}
    for _ in range(3):  # it has to stay as long as there is nobody else
        cluster.publish(HostSet.of({}), leaving)
        cluster.run(0.5)
    assert len(cluster.events("notice")) == 1
    cluster.publish(HostSet.of({"b": 1}), leaving)
    cluster.run(0.1)
    cluster.kill("a")
    cluster.run(1.0)
    assert [(event["host"], event["cause"]) for event in cluster.events("exited")] == [("a", "drained")]
    assert not cluster.events("struck")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("node drained", "drained"), ("Evicted by the API", "evicted"), ("spot reclaim", "preempted"), ("", "preempted")],
)
def test_the_word_that_a_host_goes_says_why(reason: str, cause: str) -> None:
    assert announced(reason).value == cause


def test_a_command_that_cannot_be_started_is_named_in_the_jobs_last_words() -> None:
    cluster = Cluster()
    cluster.unstartable["a"] = "No such file or directory: 'pyhton'"
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.driver.over, within=120.0)
    assert "could not be started: No such file or directory: 'pyhton'" in str(cluster.driver.outcome)
    assert {event["code"] for event in cluster.events("exited")} == {125}


def test_hosts_of_the_launcher_before_are_known_by_their_pods_as_soon_as_these_are_published() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.publish(HostSet((Host("a", 1, uid="u1", node="n1"), Host("b", 1, uid="u2", node="n1"))))
    cluster.kill("a", code=1)
    cluster.run(1.0)
    assert [event["subject"] for event in cluster.events("struck")] == ["slot 0 of a"]
    (subject,) = cluster.driver.job.faults.ledger.records
    assert subject.uid == "u1"

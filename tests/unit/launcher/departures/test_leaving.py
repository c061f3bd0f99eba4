"""Processes and hosts that leave a job that continues: after a signal or a notice, or by themselves."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.departures.notices import leaves_by
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.health.causes import announced
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster

QUICK = "cooldown_s=(1.0,4.0) failure_budget=2; "
SIGNALLED = {
    "a host leaves at the next step and returns with another agent": """
        train a b c; run 2; sigterm b; formed a c <0.2; is notice.host b; is notice.reason its agent was sent SIGTERM
        until a c b; run 30; is resized.cause start, hosts removed, hosts added; is exited.cause told to leave
        is exited.code 0; blameless""",
    "a process that reaches no step in its grace costs its host no strike": """
        train a b; run 2; wedge b; sigterm b; gone b; until a b; is exited.code 143; blameless""",
    "the only host trains until its grace is over, then with another agent": """
        train a; run 2; sigterm a; run 4.5; world a; gone a; until a; is exited.cause preempted; blameless""",
    "an agent without processes does not count as silent": """
        train a b cooldown_s=(60.0,300.0); run 2; kill b; run 2; sigterm b; run 30; gone b <1; no fenced
        number struck 1""",
    "a paused host that is no longer listed is empty soon after it continues": """
        train a b; run 2; cut b; members a; hosts a; run 5; back b; gone b <3; world a; run 60
        is resized.cause start, worker failed; number struck 1""",
    "a process with a late first heartbeat does not count as missing": """
        train a heartbeat_timeout_s=3; dumb b; boot b 30; hosts a b; until a b; number spawned 2; hung-up 0""",
}
NOTICED = {
    "a host leaves at the next step and returns when its notice is withdrawn": """
        train a b c; run 2; notice b ? drained by Ops; formed a c <0.2; is notice.host b; is notice.deadline None
        is notice.reason drained by Ops; run 60; world a c; stay b; until a c b; is notice_over.host b; run 30
        is resized.cause start, hosts removed, hosts added; blameless""",
    "the only host trains until it is gone, without a strike": """
        train a; run 2; notice a 20 evicted for want of memory; run 20; world a; kill a; run 0.1; lose-agent a; run 1
        is exited.cause evicted; no struck fenced; goes-on""",
    "a host leaves only when its replacement has the state": """
        train a; run 2; boot b 5; notice a 60 drained; hosts a b; run 4; world a; until b; blameless""",
    "with a signal and a notice, the host leaves for the reason of the notice": """
        train a b cooldown_s=(60.0,300.0); run 2; wedge b; notice b 20 node drained; run 0.1; sigterm b; run 1; stay b
        gone b; is notice.reason node drained, its agent was sent SIGTERM; no notice_over; world a; blameless""",
    "a listed host has its departure withdrawn": """
        train a b; run 2; departs b node n-1 has a spot notice / a; until a; hosts a b; until a b; is notice_over.host b
        is notice_over.reason it is listed as a host again; departs b gone now / a; hosts a; number notice_over 1""",
    "a departure without a deadline is journalled once, without a strike": f"""
        train a; run 2; {3 * "departs a node drained by an operator /; run 0.5; "} number notice 1
        departs a node drained by an operator / b; run 0.1; kill a; run 1; is exited.host a; is exited.cause drained
        no struck""",
}
LEAVING = {
    "a process that leaves again and again joins after longer pauses and ends no job": f"train a b {QUICK}"
    + "".join(
        f"run 1; kill b 0; sees spawned {3 + n} <{pause + 1.2}; took {pause - 0.1}; until a b; "
        for n, pause in enumerate((1, 2, 4, 4))
    )
    + "goes-on; no struck",
    "a process that stayed long rests as briefly as the first time": f"""
        train a b {QUICK} run 1; kill b 0; sees spawned 3 <2.1; until a b; run 60; kill b 0; sees spawned 4 <2.1""",
    "a job that all processes leave repeatedly ends with the reason": f"""
        train a b {QUICK} run 1; kill a 143; kill b 143; run 0.1; goes-on; size 2
        run 1; kill a 143; kill b 143; run 0.1; goes-on; size 2; run 1; kill a 143; kill b 143
        fails all processes have left 3 times within an hour, more than --failure-budget allows; took 0 0.1; over
        gone a b; no struck""",
}

TRAIN = "train a b least=2 cooldown_s=(10.0,40.0) failure_budget=0; run 2; "
ALL_LEAVE = {
    "at once": f"{TRAIN} kill a 0; kill b 0; ended-well <0.2; no struck; number resized 1",
    "one second apart, while the others only compute": f"""
        {TRAIN} well a; run 1; goes-on; number spawned 2; well b; ended-well <0.2; number resized 1""",
    "one by one, with enough processes left for another world": """
        train a b c cooldown_s=(0.2,0.2) failure_budget=0; run 2; well a; run 2; well b; run 2; well c; ended-well <0.2
        number resized 1; number spawned 3""",
    "at the same step, long after one another": """
        train a b failure_budget=0; stick b; wedge b; run 2; well a; run 30; goes-on; well b; ended-well <0.2
        number resized 1""",
    "one has returned and the other has left": f"{TRAIN} done a; well b; run 0.2; goes-on; well a; ended-well <1",
    "one has left and the other returns": f"{TRAIN} well a; run 1; done b; run 1; well b; ended-well <1",
    "of the world after one that lost a member": """
        train a b c cooldown_s=(60.0,60.0); run 2; kill b; well a; members c; run 2; goes-on
        well c; ended-well <0.2""",
    "of which only one is left after a failure": """
        train a b cooldown_s=(60.0,60.0) failure_budget=1; run 2; kill b; members a; run 2; well a; ended-well <0.2""",
}
SOME_LEAVE = {
    "the others go on at once if they have lost the world by that": """
        train a b c cooldown_s=(20.0,20.0); run 2; kill a 0; members b c <0.5; is resized.cause start, worker failed
        run 5; number spawned 3; together a b c; goes-on; no struck""",
    "the others are waited for, 10 s at most, if they have not": """
        train a b c cooldown_s=(1.0,1.0); run 2; well a; run 9.5; number resized 1; number spawned 3
        members b c <1; together a b c; goes-on; no struck""",
    "a failure is followed at once, although another one has left before": """
        train a b c cooldown_s=(60.0,60.0); run 2; well a; run 2; kill b; members c <0.5; run 1; goes-on
        is struck.subject slot 0 of b""",
    "a failure is followed at once, although another one leaves after it": """
        train a b c cooldown_s=(60.0,60.0); run 2; kill b; well a; members c <0.5; goes-on
        is struck.subject slot 0 of b""",
    "in a world that formed after another one has left the world before": """
        train a b c cooldown_s=(2.0,2.0); run 2; kill a 0; members b c; run 1; kill b 0; members c; together a b c
        goes-on; no struck""",
    "they leave at different steps, long after one another": """
        train a b least=2 failure_budget=1 cooldown_s=(20.0,20.0); run 2; well a; run 11; well b; run 0.2; goes-on
        together a b""",
}
BETWEEN_CALLS = {
    "a process is killed, and all train on": """
        train a b cooldown_s=(1.0,1.0); run 2; done a b; well b 137; run 0.2; goes-on; is struck.cause crashed
        loop a; together a b; goes-on""",
    "a process fails, and all train on": """
        train a b cooldown_s=(1.0,1.0); run 2; done a b; well b 1; run 0.2; goes-on; loop a; together a b; goes-on""",
    "a process fails, and the others end well": """
        train a b; run 2; done a b; well b 1; run 0.2; goes-on; well a
        fails b[0] crashed: exit code 1, after its training was done""",
    "the only process is killed": """
        train a cooldown_s=(1.0,1.0); run 2; done a; kill a; run 0.2; goes-on; is struck.cause crashed; until a""",
    "the only process fails after its first call": """
        train a; run 2; done a; kill a 1; fails a[0] ended with exit code 1 after training was done""",
    "a process fails after others have ended": """
        train a b; run 2; done a b; well a; run 0.2; well b 1
        fails b[0] ended with exit code 1 after training was done""",
}
MAY_GO_ON = {
    "check_alive() was False on one": "warned b; run 0.1",
    "one host has notice": "notice b 60 drained",
    "one got a SIGTERM that its script handles": "terminated b; run 0.1",
}


@pytest.mark.parametrize("text", ALL_LEAVE.values(), ids=ALL_LEAVE)
def test_training_is_done_if_all_ranks_leave_the_training_function_with_exit_code_0(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", SOME_LEAVE.values(), ids=SOME_LEAVE)
def test_training_goes_on_if_only_some_ranks_leave_the_training_function(text: str) -> None:
    play(text)


def test_a_rank_that_wants_to_leave_and_is_killed_because_its_peers_do_not_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b; run 2")
    cluster.say(cluster.members[0], "left", well=True, step=2)
    cluster.run(0.1)
    cluster.kill("a")
    cluster.run(0.1)
    assert "rank 0 on a[0] left the training function, and others did not: training goes on. To end" in caplog.text


@pytest.mark.parametrize("text", BETWEEN_CALLS.values(), ids=BETWEEN_CALLS)
def test_a_failure_after_a_training_call_is_a_failure_like_any_other_while_training_may_go_on(text: str) -> None:
    play(text)


@pytest.mark.parametrize("told", MAY_GO_ON.values(), ids=MAY_GO_ON)
def test_ranks_that_may_have_left_because_they_were_told_are_replaced(told: str) -> None:
    play(f"train a b; run 2; {told}; kill a 0; kill b 0; run 1; goes-on; sees spawned 3; goes-on")


def test_ranks_that_have_left_while_there_was_no_launcher_may_have_been_told_to_and_are_replaced() -> None:
    play("left a b; well a; well b; expect a b; sees spawned 2 <20; goes-on; until a b; goes-on; no struck")


def test_a_rank_that_failed_while_there_was_no_launcher_has_not_left_with_the_other_one() -> None:
    play("left a b; well a 137; expect a b; run 2; well b; run 0.2; goes-on; sees spawned 2 <20; until a b; goes-on")


@pytest.mark.parametrize("text", SIGNALLED.values(), ids=SIGNALLED)
def test_an_agent_that_is_sent_a_signal(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", NOTICED.values(), ids=NOTICED)
def test_a_host_with_a_notice_leaves_in_time_and_without_blame(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", LEAVING.values(), ids=LEAVING)
def test_processes_that_leave_although_training_is_not_done(text: str) -> None:
    play(text)


def test_a_host_whose_agent_is_about_to_end_is_not_worked_with_because_a_list_names_it() -> None:
    cluster = play("train a b; run 2; wedge b; sigterm b; run 0.5; hosts a b:2; run 3")
    assert leaves_by(cluster.driver.job).keys() == {"b"}
    assert [len(agent.processes) for agent in cluster.agents.values()] == [1, 1]
    cluster.until(lambda: sorted(cluster.world) == ["a", "b", "b"])
    assert not leaves_by(cluster.driver.job)


def test_an_agent_that_is_lost_in_its_grace_leaves_nobody_behind_who_is_waited_for() -> None:
    cluster = play("train a b; run 2; wedge b; sigterm b; run 0.5; cut b; dead b; disconnect b")
    cluster.until(lambda: not cluster.driver.job.roster.on("b"), within=12.0)
    assert cluster.world == ["a"]


def test_the_earliest_deadline_counts_also_one_that_becomes_known_later() -> None:
    cluster = play("train a; run 2; notice a ? spot reclaim; run 1; notice a 30 spot reclaim; run 0.1; number notice 1")
    now = cluster.clock.mono()
    assert 29.0 < leaves_by(cluster.driver.job)["a"] - now < 30.0
    for in_s, expected in ((None, 15.0), (5.0, 5.0), (100.0, 15.0)):
        cluster.publish(HostSet.of({}), {"a": ("spot reclaim", now + 15.0)})
        cluster.driver.tell(News("a", {"event": "going", "reason": "drained by Ops", "in_s": in_s}))
        assert leaves_by(cluster.driver.job)["a"] - now == pytest.approx(expected)
    assert cluster.world == ["a"]


def test_advice_and_hosts_that_cannot_ask_their_cloud_are_written_down_and_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = play("train a b")
    for host in ("a", "b"):
        for reason in ("Connection refused", None):
            cluster.driver.tell(News(host, {"event": "advised", "reason": reason}))
            cluster.driver.tell(News(host, {"event": "notices_unavailable", "source": "aws", "reason": reason}))
    cluster.run(5.0)
    for name in ("advised", "notices_unavailable"):
        assert [(event["host"], event["reason"]) for event in cluster.events(name)] == [
            (host, reason) for host in ("a", "b") for reason in ("Connection refused", None)
        ]
    [warning] = caplog.records  # about the first one only
    assert warning.getMessage().startswith("a: ")
    assert cluster.world == ["a", "b"]
    assert len(cluster.events("resized")) == 1


def test_what_an_agent_could_not_kill_or_pass_on_is_told(caplog: pytest.LogCaptureFixture) -> None:
    cluster = play("train a")
    for news, said in (
        ({"event": "left", "slot": 0, "pids": [71, 72]}, "a[0]: processes 71, 72 cannot be killed"),
        ({"event": "dropped", "output": 1000, "news": 3}, "a has dropped 1000 bytes of output and 3 other news"),
        (
            {"event": "dropped", "slot": 0, "life": 1, "records": 5, "messages": 6},
            "a has dropped 5 journal entries and 6 other messages of slot 0",
        ),
    ):
        cluster.driver.tell(News("a", news))
        assert said in caplog.records[-1].getMessage()


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
    cluster = play("train a b")
    cluster.publish(HostSet((Host("a", 1, uid="u1", node="n1"), Host("b", 1, uid="u2", node="n1"))))
    cluster.kill("a", code=1)
    cluster.run(1.0)
    (subject,) = cluster.driver.job.faults.ledger.records
    assert (str(subject), subject.uid) == ("slot 0 of a", "u1")

"""The newest commit reaches those who train, from wherever it lies; what cannot be had is waited for, and then told."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence
from hvd_elastic_ext.launcher.rules.health.ledger import Subject
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.simulated import Cluster, Rules
from tests.unit.launcher.storing import Storing

LIMITS = Limits(settle_s=0.1)


def lose_host(cluster: Cluster, host: str) -> None:
    """The machine is gone, and the launcher hears nothing of it."""
    cluster.cut.add(host)


def told(cluster: Cluster) -> dict[str, Any]:
    """The newest world, once it has been written about."""
    cluster.run(11.0)
    return cluster.events("resized")[-1]


def test_a_newcomer_that_is_ready_when_all_processes_are_killed_goes_on_with_their_commit() -> None:
    cluster = running("a", "b", rules=Rules(Limits(settle_s=30.0), cooldown_s=(20.0, 60.0)))
    cluster.run(5.0)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: [each["host"] for each in cluster.events("parked")][-1] == "c")
    cluster.kill("a")
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["c"], within=5.0)
    [(_, target, step)] = cluster.transferred
    assert (target, step) == ("c", cluster.memory["a", 0][3])
    assert told(cluster)["steps_lost"] == 0


def test_a_host_that_leaves_the_list_hands_its_newer_commit_to_the_one_that_is_left() -> None:
    cluster = running("a", "b", rules=Rules(LIMITS, cooldown_s=(30.0, 60.0)))
    cluster.run(3.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(10.0)
    cluster.kill("a")
    newest = cluster.memory["a", 0]
    cluster.hosts(b=1)
    cluster.until(lambda: cluster.world == ["b"], within=60.0)
    assert cluster.transferred == [("a", "b", newest[3])]
    assert told(cluster)["steps_lost"] == 0
    assert "a" not in cluster.agents  # nobody needs it any more


def test_two_slots_of_one_host_hand_over_between_them() -> None:
    cluster = Cluster(Rules(Limits(most=1, settle_s=0.1), cooldown_s=(30.0, 60.0)))
    cluster.hosts(a=2)
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(3.0)
    [process] = cluster.training
    cluster.kill("a", process.slot)
    cluster.until(lambda: bool(cluster.world), within=20.0)
    assert [each.slot for each in cluster.training] == [1 - process.slot]
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "a")]


@pytest.mark.parametrize("how", ["blocked by hand", "given notice"])
def test_who_may_not_work_may_hand_over(how: str) -> None:
    cluster = running("a")
    cluster.run(3.0)
    if how == "given notice":
        cluster.write_notice("a", "spot", in_s=30.0)
    else:
        faults = cluster.driver.job.faults
        faults.ledger = faults.ledger.block(Subject("host", "a"), None, "bad fan")
    cluster.kill("a", code=1)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["b"], within=20.0)
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "b")]


def test_what_only_a_host_holds_that_is_about_to_go_is_saved_though_nobody_may_work() -> None:
    cluster = running("a", "b", rules=Rules(LIMITS, cooldown_s=(300.0, 300.0)))
    cluster.run(3.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(5.0)
    cluster.write_notice("a", "spot", in_s=10.0)
    cluster.kill("a")
    cluster.run(2.0)
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "b")]


def test_a_holder_that_cannot_be_reached_is_waited_for_and_then_the_loss_is_told() -> None:
    cluster = running("a", rules=Rules(LIMITS, heartbeat_timeout_s=5.0, orphan_grace_s=5.0, commit_wait_s=30.0))
    cluster.run(8.0)
    lose_host(cluster, "a")
    cluster.hosts(b=1)
    cluster.run(25.0)
    assert "b" not in cluster.world
    cluster.until(lambda: "b" in cluster.world, within=15.0)
    line = told(cluster)
    assert line["steps_lost"] >= 8
    assert line["lost_because"].startswith("a did not come back in time")


def test_a_holder_that_comes_back_in_time_hands_over() -> None:
    cluster = running("a", rules=Rules(LIMITS, heartbeat_timeout_s=5.0, orphan_grace_s=5.0, commit_wait_s=30.0))
    cluster.run(8.0)
    cluster.kill("a")
    cluster.run(0.01)
    lose_host(cluster, "a")
    cluster.hosts(b=1)
    cluster.run(20.0)
    assert cluster.world == []
    cluster.cut.discard("a")
    cluster.until(lambda: cluster.world == ["b"], within=15.0)
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "b")]


def test_nobody_waits_for_an_agent_whose_end_was_told() -> None:
    cluster = running("a")
    cluster.run(8.0)
    cluster.hosts(a=1, b=1)
    cluster.run(0.1)
    cluster.lose_agent("a")
    cluster.until(lambda: cluster.world == ["b"], within=10.0)
    cluster.run(11.0)
    line = cluster.events("resized")[1]
    assert (line["steps_lost"], line["lost_because"]) == (8, "a is gone (its agent ended with exit code 137)")


def test_a_transfer_that_fails_is_tried_again_and_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running("a", rules=Rules(LIMITS, cooldown_s=(300.0, 300.0), commit_wait_s=10.0))
    cluster.run(3.0)

    def failing(host: str, order: Any) -> None:
        if order["do"] == "errand":
            cluster._answer(host, order, {"failed": "no route to host", "for_good": False})

    monkeypatch.setattr(cluster, "_errand", failing)
    cluster.kill("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["b"], within=20.0)
    assert len(cluster.events("not_sent")) > 5
    assert told(cluster)["lost_because"] == "a could not send it in time"


def test_a_connection_that_is_lost_in_a_transfer_begins_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running("a", rules=Rules(LIMITS, cooldown_s=(300.0, 300.0)))
    cluster.run(3.0)
    usual = cluster._errand

    def once(host: str, order: Any) -> None:
        if order["do"] == "errand" and order["request"]["do"] == "receive":
            monkeypatch.setattr(cluster, "_errand", usual)
            cluster.disconnect(host)
            cluster.later(2.0, lambda: cluster.reconnect(host))
        else:
            usual(host, order)

    monkeypatch.setattr(cluster, "_errand", once)
    cluster.kill("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["b"], within=20.0)
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "b")]


def test_a_commit_that_a_memory_does_not_hold_any_more_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running("a", rules=Rules(LIMITS, cooldown_s=(300.0, 300.0)))
    cluster.run(3.0)

    def gone(host: str, order: Any) -> None:
        if order["do"] == "errand":
            cluster._answer(host, order, {"failed": "it is not there", "for_good": True})

    monkeypatch.setattr(cluster, "_errand", gone)
    cluster.kill("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["b"], within=20.0)
    assert len(cluster.events("not_sent")) == 1
    assert told(cluster)["steps_lost"] == 3


@pytest.mark.parametrize("whole", [True, False])
def test_when_all_agents_are_killed_training_goes_on_from_the_newest_checkpoint_that_is_whole(*, whole: bool) -> None:
    cluster = Storing(Cadence(steps=5), limits=LIMITS)
    cluster.answers = {(host, "load"): {} for host in "ab"}
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.world) == 2)
    cluster.until(lambda: cluster.events("sealed"), within=30.0)
    sealed = cluster.events("sealed")[-1]["step"]
    loaded = sealed if whole else sealed - 2
    held = {"path": "/store/x", "step": loaded, "held": [1, 1, loaded, loaded]}
    cluster.answers = {(host, "load"): held for host in "ab"}
    before = len(cluster.of("load"))
    for host in "ab":
        for process in list(cluster.agents[host].values()):
            cluster.kill(host, process.slot)
        cluster.lose_agent(host)
    cluster.until(lambda: len(cluster.events("resized")) == 2, within=60.0)
    assert len(cluster.of("load")) > before
    assert cluster.events("resumed")[-1]["step"] == loaded
    line = cluster.events("resized")[-1]
    assert line["steps_lost"] >= sealed - loaded
    assert ("/store/x could not be loaded" in line.get("lost_because", "")) is not whole


def test_a_launcher_that_was_started_again_waits_for_those_who_held_the_newest_commit() -> None:
    commits = [{"host": "a", "agent": "1", "commit": [1, 1, 40], "step": 40, "reached": 42}]
    cluster = Cluster(Rules(LIMITS, commit_wait_s=20.0), commits=commits)
    cluster.hosts(b=1)
    cluster.run(19.0)
    assert cluster.world == []
    cluster.until(lambda: cluster.world == ["b"], within=5.0)
    line = cluster.events("resized")[-1]
    assert line["steps_lost"] == 42
    assert "since the launcher was started again" in line["lost_because"]


def test_what_the_next_launcher_is_to_know_is_the_newest_commit_of_each_host() -> None:
    cluster = running("a", "b")
    cluster.run(3.0)
    noted = cluster.driver.job.roster.commits.to_json()
    assert {entry["host"] for entry in noted} == {"a", "b"}
    assert all(entry["commit"][:2] == [1, 1] for entry in noted)


def test_nobody_may_train_while_its_memory_is_written() -> None:
    cluster = running("a", rules=Rules(LIMITS, cooldown_s=(300.0, 300.0)))
    cluster.run(3.0)
    cluster.kill("a")
    cluster.hosts(a=1, b=1)
    job = cluster.driver.job
    cluster.until(lambda: job.transferring == {"a", "b"}, within=20.0)
    while job.transferring:
        assert cluster.world == []
        cluster.run(0.01)


def test_an_agent_that_is_sent_a_signal_is_told_to_end_once_nobody_needs_its_commit() -> None:
    cluster = running("a", "b")
    cluster.run(3.0)
    cluster.terminate("b")
    cluster.until(lambda: cluster.world == ["a"], within=2.0)
    cluster.until(lambda: "b" not in cluster.agents, within=1.0)
    assert cluster.transferred == []


def test_an_agent_that_is_sent_a_signal_sends_on_what_only_it_holds_first() -> None:
    cluster = running("a", "b", rules=Rules(LIMITS, cooldown_s=(300.0, 300.0), grace_s=5.0))
    cluster.run(3.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(5.0)
    newest = cluster.training[0].steps
    cluster.terminate("a")
    cluster.kill("a")
    cluster.until(lambda: "a" not in cluster.agents, within=4.0)
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "b")]
    assert cluster.transferred[0][2] >= newest


def alone(**rules: Any) -> Cluster:
    """A trains on alone; B cools down, and holds something older."""
    cluster = running("a", "b", rules=Rules(LIMITS, **{"cooldown_s": (60.0, 60.0), **rules}))
    cluster.run(3.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(10.0)
    return cluster


def test_a_launcher_that_stood_still_gives_a_holder_the_time_it_had_left() -> None:
    cluster = alone()
    cluster.kill("a")
    cluster.disconnect("a")
    cluster.hosts(b=1)
    cluster.run(6.0)
    cluster.standstill(70.0)
    cluster.later(0.05, lambda: cluster.reconnect("a"))
    cluster.until(lambda: cluster.world == ["b"], within=30.0)
    assert told(cluster)["steps_lost"] == 0
    assert cluster.transferred

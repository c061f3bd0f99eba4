"""The newest commit reaches the hosts that train, from any holder. A lost one is waited for, and then journalled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.health.ledger import Subject
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Agent, Cluster, JobOptions
from tests.unit.launcher.simulated_processes import Process

LIMITS = WorldLimits(settle_s=0.1)
ALONE = "train a b cooldown_s=(60.0,60.0); run 3; kill b; until a; run 10; "
"""Host a trains on alone. Host b is in a cooldown, and holds an older commit."""
SHORT_WAIT = "train a heartbeat_timeout_s=5.0 orphan_grace_s=5.0 commit_wait_s=30.0; run 8; "
TOLD = "; run 11; last resized.steps_lost "
LOST = "; ".join(["kill {0}", "lose-agent {0}"])

HANDED_OVER = {
    "to a newcomer that is ready when all processes are killed": """
        train a b settle_s=30 cooldown_s=(20.0,60.0); run 5; hosts a b c; parked c; kill a; kill b; until c <5
        sent a>c"""
    + TOLD + "0",
    "by a host that is no longer listed": ALONE + "kill a; hosts b; until b; sent a>b" + TOLD + "0; gone a <1",
    "between two slots of one host": """
        begin most=1 cooldown_s=(30.0,60.0); hosts a:2; until a; run 3; kill a:0; until a <20; sent a>a""",
    "by a host with a notice": "train a; run 3; notice a 30 spot; kill a 1; hosts a b; until b <20; sent a>b",
    "by a host that cools down": """
        train a; run 3; hosts a b; run 1; kill a 1; until b <9; sent a>b; last resized.steps_lost 0; no isolated""",
    "by a host that cools down, to a host that starts only then": """
        train a most=1; run 3; hosts a b; run 1; kill a 1; until b <9; sent a>b; last resized.steps_lost 0""",
    "by a host with a short notice while no host may work": """
        train a b cooldown_s=(300.0,300.0); run 3; kill b; until a; run 5; notice a 10 spot; kill a; run 2; sent a>b""",
    "by a holder that returns in time": SHORT_WAIT
    + "kill a; run 0.01; cut a; hosts b; run 20; world; back a; until b <15; sent a>b",
    "by an agent that is sent a signal": """
        train a b cooldown_s=(300.0,300.0); run 3; kill b; until a; run 5; sigterm a; kill a; gone a <4; sent a>b""",
    "not where no host needs it": "train a b; run 3; sigterm b; until a <2; gone b <1; sent",
    "in the time that was left when the launcher was paused": ALONE.replace(";", " orphan_grace_s=200.0;", 1)
    + "kill a; disconnect a; hosts b; run 6; standstill 70; run 0.01; reconnect a; until b <30; sent a>b"
    + TOLD + "0",
}  # fmt: skip
LOSSES = {
    "the launcher waits for an unreachable holder, then reports the loss": SHORT_WAIT
    + "cut a; hosts b; run 25; world a; has b <15; run 11; says resized.lost_because a did not come back in time",
    "the launcher does not wait for an agent whose end was reported": """
        train a; run 8; hosts a b; run 0.1; lose-agent a; until b <10; run 11; is resized.steps_lost None, 8, 0
        only resized.lost_because None, a is gone (its agent ended with exit code 137)""",
    "processes of a new agent are never confused with those of the last one": """
        train a:2; run 3; kill a:0; kill a:1; lose-agent a; run 0.5; processes; size 2; processes a:2 a:2""",
    "a third host replaces one of two that boots for long": f"""
        train a b least=2; run 3; {LOST.format("b")}; boot b 500; run 12; hosts a b c; until a c""",
}


@pytest.mark.parametrize("text", HANDED_OVER.values(), ids=HANDED_OVER)
def test_the_newest_commit_is_handed_over(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", LOSSES.values(), ids=LOSSES)
def test_what_is_lost_is_reported_with_its_holder_and_the_reason(text: str) -> None:
    play(text)


def test_a_holder_that_is_blocked_by_hand_hands_over() -> None:
    cluster = play("train a")
    cluster.run(3.0)
    faults = cluster.driver.job.faults
    faults.ledger = faults.ledger.block(Subject("host", "a"), None, "bad fan")
    cluster.hosts(a=1, b=1)
    cluster.kill("a", code=1)
    cluster.until(lambda: cluster.world == ["b"])
    assert [(source, target) for source, target, _ in cluster.helpers.transferred] == [("a", "b")]


def only_holder(helper: Any = None, **options: Any) -> Cluster:
    """Host a holds the newest commit and may not work; host b is starting. ``helper`` replaces the agents' own
    programs."""
    cluster = play("train a cooldown_s=(300.0,300.0)", **options)
    cluster.run(3.0)
    if helper is not None:
        cluster.helpers.program = partial(helper, cluster, cluster.helpers.program)  # type: ignore[method-assign]
    cluster.kill("a")
    cluster.hosts(a=1, b=1)
    return cluster


@pytest.mark.parametrize(
    ("answer", "tries", "lost_because"),
    [
        ({"failed": "no route to host", "for_good": False}, range(6, 99), "a could not send it in time"),
        (
            {"failed": "it is not there", "for_good": True}, range(1, 2),
            "a is gone (its memory does not hold it any more)",
        ),
    ],
    ids=["tried again and given up in the end", "not asked for again"],
)  # fmt: skip
def test_a_commit_that_cannot_be_sent(answer: dict[str, Any], tries: range, lost_because: str) -> None:
    def failing(cluster: Cluster, *_: Any) -> Any:
        return partial(cluster.helpers.answer, answer)

    cluster = only_holder(failing, commit_wait_s=10.0)
    cluster.until(lambda: cluster.world == ["b"], within=20.0)
    assert len(cluster.events("not_sent")) in tries
    cluster.run(11.0)
    assert (cluster.events("resized")[-1]["steps_lost"], cluster.events("resized")[-1]["lost_because"]) == (
        3, lost_because,
    )  # fmt: skip


def cut_for_a_while(cluster: Cluster, agent: Agent, number: int, _: Mapping[str, Any]) -> None:
    cluster.disconnect(agent.host)
    cluster.later(2.0, lambda: cluster.reconnect(agent.host))


def refused(cluster: Cluster, agent: Agent, number: int, request: Mapping[str, Any]) -> None:
    cluster.helpers.answer({"failed": "it is not what was asked for", "for_good": False}, agent, number, request)


@pytest.mark.parametrize("end", ["send", "receive"])
@pytest.mark.parametrize("fails", [cut_for_a_while, refused])
def test_a_transfer_that_fails_changes_nothing_and_is_tried_again(end: str, fails: Any) -> None:
    failed = []

    def once(cluster: Cluster, usual: Any, agent: Agent, request: Mapping[str, Any]) -> Any:
        if failed or request["do"] != end:
            return usual(agent, request)
        failed.append(agent.host)
        return partial(fails, cluster)

    cluster = only_holder(once)
    commits = cluster.driver.job.roster.commits
    cluster.until(lambda: cluster.driver.job.transfers.current is not None, within=20.0)
    held, worlds = commits.noted(), len(cluster.events("resized"))
    cluster.until(lambda: cluster.events("not_sent"), within=20.0)
    assert not cluster.driver.job.transferring
    assert (commits.noted(), commits.gone) == (held, {})
    assert (cluster.helpers.transferred, cluster.world, len(cluster.events("resized"))) == ([], [], worlds)
    cluster.until(lambda: cluster.world == ["b"], within=20.0)
    assert [(source, target) for source, target, _ in cluster.helpers.transferred] == [("a", "b")]
    cluster.run(11.0)
    assert cluster.events("resized")[-1]["steps_lost"] == 0


def test_a_host_that_works_on_a_checkpoint_sends_no_commit_meanwhile() -> None:
    cluster = only_holder()
    cluster.driver.job.helpers[Purpose.SAVE]["a"] = 1
    cluster.run(8.0)
    assert not cluster.helpers.transferred
    cluster.driver.job.helpers[Purpose.SAVE].clear()
    cluster.until(lambda: cluster.world == ["b"], within=20.0)


def test_nobody_may_train_while_its_memory_is_written() -> None:
    cluster = only_holder()
    job = cluster.driver.job
    cluster.until(lambda: job.transferring == {"a", "b"}, within=20.0)
    while job.transferring:
        assert cluster.world == []
        cluster.run(0.01)


@pytest.mark.parametrize("whole", [True, False])
def test_when_all_agents_are_killed_training_goes_on_from_the_newest_checkpoint_that_is_whole(*, whole: bool) -> None:
    cluster = play("train a b every=5; sees sealed <30")
    sealed = cluster.events("sealed")[-1]["step"]
    loaded = sealed if whole else sealed - 2
    held = {"path": "/store/x", "step": loaded, "held": [1, 1, loaded, loaded]}
    cluster.helpers.answers = {(host, "load"): held for host in "ab"}
    before = len(cluster.helpers.of("load"))
    for host in "ab":
        cluster.kill(host)
        cluster.lose_agent(host)
    cluster.until(lambda: len(cluster.events("resized")) == 2, within=60.0)
    assert len(cluster.helpers.of("load")) > before
    assert cluster.events("resumed")[-1]["step"] == loaded
    line = cluster.events("resized")[-1]
    assert line["steps_lost"] >= sealed - loaded
    assert ("/store/x could not be loaded" in line.get("lost_because", "")) is not whole


def test_a_launcher_that_was_started_again_waits_for_those_who_held_the_newest_commit() -> None:
    commits = [NotedCommit("a", "1", (1, 1, 40), 40, 42)]
    cluster = Cluster(JobOptions(LIMITS, commit_wait_s=20.0), commits=commits)
    cluster.hosts(b=1)
    cluster.run(19.0)
    assert cluster.world == []
    cluster.until(lambda: cluster.world == ["b"], within=5.0)
    line = cluster.events("resized")[-1]
    assert line["steps_lost"] == 42
    assert "since the launcher was started again" in line["lost_because"]


@pytest.mark.parametrize("lost", ["a newcomer", "a connection"])
def test_the_last_holder_stays_when_the_world_of_its_replacements_fails_at_once(lost: str) -> None:
    cluster = play("train a b; run 3; hosts c d; begun 2")
    (holder,) = [life.seat.host for life in cluster.driver.job.world.members if life.seat.host in "ab"]
    cluster.run(0.03)
    if lost == "a newcomer":
        cluster.kill("d", code=1)
    else:
        cluster.lose_world("c")
    cluster.until(lambda: cluster.driver.job.generation == 3)
    assert holder in [life.seat.host for life in cluster.driver.job.world.members]
    cluster.until(lambda: set(cluster.world) <= {"c", "d"}, within=60.0)
    assert cluster.events("resized")[-2]["size"] >= 2


def test_a_sync_that_takes_long_is_not_taken_to_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = play("train a; run 3")
    enters = cluster.training.enters

    def slowly(process: Process) -> None:
        cluster.say(process, "entered", generation=process.generation)
        cluster.say(process, "looping")
        cluster.later(40.0, lambda: enters(process))

    monkeypatch.setattr(cluster.training, "enters", slowly)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(1.0)
    cluster.hosts(b=1)
    cluster.run(30.0)
    assert cluster.world == ["a", "b"]  # no other host has the state
    cluster.until(lambda: cluster.world == ["b"], within=30.0)


def test_what_a_process_held_when_it_ended_is_what_its_agent_holds() -> None:
    cluster = play("train a; run 3")
    commits = cluster.driver.job.roster.commits
    before = commits.of_host("a")
    assert before is not None
    cluster.kill("a", code=1)
    newest = [*before[:2], before[2] + 7, before[2] + 7]
    cluster.driver.tell(News("a", {"event": "exited", "slot": 0, "life": 1, "code": 1, "held": newest}))
    assert commits.of_host("a") == tuple(newest[:3])

"""Whoever holds the state is neither forgotten nor let go as long as nobody else has it."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.rules.health.ledger import Subject
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.driver.test_driver import running
from tests.unit.launcher.simulated import Cluster, Rules
from tests.unit.launcher.simulated_processes import Process


def lose_host(cluster: Cluster, host: str) -> None:
    """Agent, processes and all that they held are gone at once, as with their machine."""
    for process in list(cluster.agents[host].values()):
        cluster.kill(host, process.slot)
    cluster.lose_agent(host)


def lives(cluster: Cluster, host: str) -> list[int]:
    return [process.life for process in cluster.training if process.host == host]


def test_processes_of_a_new_agent_are_never_taken_for_those_of_the_one_before() -> None:
    cluster = Cluster(Rules(Limits(start=2, settle_s=0.1)))
    cluster.hosts(a=2)
    cluster.until(lambda: cluster.world == ["a", "a"])
    cluster.run(3.0)
    lose_host(cluster, "a")
    cluster.run(0.5)
    cluster.until(lambda: lives(cluster, "a") == [2, 2], within=60.0)


def test_while_one_of_two_boots_again_for_long_a_third_takes_its_place() -> None:
    cluster = Cluster(Rules(Limits(start=2, least=2, settle_s=0.1)))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(3.0)
    lose_host(cluster, "b")
    cluster.boot_s["b"] = 500.0
    cluster.run(12.0)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.world == ["a", "c"], within=60.0)


@pytest.mark.parametrize("most", [None, 1])
def test_whoever_holds_the_only_commit_and_cools_down_sends_it_to_who_may_work(most: int | None) -> None:
    cluster = running("a", rules=Rules(Limits(most=most, settle_s=0.1)))
    cluster.run(3.0)
    cluster.hosts(a=1, b=1)
    cluster.run(1.0)  # b boots, where there is room for it
    cluster.kill("a", code=1)
    held = cluster.memory["a", 0]
    cluster.until(lambda: cluster.world == ["b"], within=9.0)
    assert cluster.transferred == [("a", "b", held[3])]
    assert cluster.events("resized")[-1]["steps_lost"] == 0
    assert not cluster.events("isolated")


def test_a_holder_that_is_blocked_by_hand_sends_its_commit_on() -> None:
    cluster = running("a")
    cluster.run(3.0)
    faults = cluster.driver.job.faults
    faults.ledger = faults.ledger.block(Subject("host", "a"), None, "bad fan")
    cluster.hosts(a=1, b=1)
    cluster.run(1.0)
    cluster.kill("a", code=1)
    cluster.until(lambda: cluster.world == ["b"], within=60.0)
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "b")]


@pytest.mark.parametrize("lost", ["a newcomer", "a connection"])
def test_the_last_holder_stays_when_the_world_of_its_replacements_fails_at_once(lost: str) -> None:
    cluster = running("a", "b")
    cluster.run(3.0)
    cluster.hosts(c=1, d=1)
    cluster.until(lambda: cluster.driver.job.generation == 2)
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
    cluster = running("a")
    cluster.run(3.0)
    steps = cluster.enter

    def slowly(process: Process) -> None:
        cluster.say(process, "entered", generation=process.generation)
        cluster.say(process, "looping")
        cluster.later(90.0, lambda: steps(process))

    monkeypatch.setattr(cluster, "enter", slowly)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(1.0)
    cluster.hosts(b=1)
    cluster.run(60.0)
    assert cluster.world == ["a", "b"]  # nobody else has the state
    cluster.until(lambda: cluster.world == ["b"], within=60.0)


def test_what_a_process_held_when_it_ended_is_what_its_agent_holds() -> None:
    cluster = running("a")
    cluster.run(3.0)
    roster = cluster.driver.job.roster
    before = roster.commits.of_host("a")
    assert before is not None
    cluster.kill("a", code=1)
    newest = cluster.memory["a", 0] = [*before[:2], before[2] + 7, before[2] + 7]
    cluster.driver.tell(News("a", {"event": "exited", "slot": 0, "life": 1, "code": 1, "held": newest}))
    assert roster.commits.of_host("a") == tuple(newest[:3])

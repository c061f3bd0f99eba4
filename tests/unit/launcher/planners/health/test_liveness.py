"""Processes that beat and stand still, or are slow."""

from __future__ import annotations

import logging

import pytest

from hvd_elastic_ext.launcher.planners.health.liveness import FINISHED_S, STILL_S
from hvd_elastic_ext.launcher.rules.health.stalls import Member, left_waiting, stall
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from tests.unit.launcher.driver.test_driver import causes, running
from tests.unit.launcher.simulated import Cluster, Rules


def member(rank: int, *, still_s: float, waiting: bool = False) -> Member:
    return Member(Life(Seat("abc"[rank], 0), 1), rank, 100.0 - still_s, waiting)


def said(*members: Member) -> str | None:
    found = stall(100.0, members, 30.0)
    return None if found is None else found.reason


def test_a_rank_that_others_have_waited_for_too_long_is_named() -> None:
    waiting = [member(rank, still_s=29.0, waiting=True) for rank in (0, 2)]
    assert said(member(1, still_s=31.0), *waiting) == "no progress for 31 s of rank 1 on b[0]: 2 of 3 wait for it"


def test_nobody_is_stalled_for_whom_nobody_waits() -> None:
    assert said(member(1, still_s=31.0), member(0, still_s=1.0), member(2, still_s=1.0, waiting=True)) is None


def test_who_says_that_it_is_busy_is_not_stalled_however_long_others_wait() -> None:
    assert said(member(0, still_s=1.0), *(member(r, still_s=900.0, waiting=True) for r in (1, 2))) is None


def test_all_may_wait_for_one_another() -> None:
    waiting = [member(rank, still_s=40.0 + rank, waiting=True) for rank in range(3)]
    assert said(*waiting) == "all 3 ranks have waited for one another for 40 s"
    found = stall(100.0, waiting, 30.0)
    assert found is not None
    assert found.lag == ()


def test_all_may_stand_still_with_nobody_waiting() -> None:
    assert said(member(0, still_s=31.0)) == "no progress for 31 s of rank 0 on a[0]: nobody waits for it"


def test_a_world_that_gets_on_is_not_stalled() -> None:
    assert said() is None
    assert said(*(member(rank, still_s=29.9) for rank in range(3))) is None


def stuck(rules: Rules) -> Cluster:
    cluster = running("a", "b", "c", rules=rules)
    cluster.run(3.0)
    cluster.agents["b"][0].stuck = True
    return cluster


def test_a_stall_is_told_once_and_nobody_is_ended_for_it(caplog: pytest.LogCaptureFixture) -> None:
    cluster = stuck(Rules(Limits(settle_s=0.1), progress_timeout_s=5.0))
    took = cluster.until(lambda: cluster.events("stalled"))
    assert 4.0 < took < 8.0
    cluster.run(60.0)
    (told,) = cluster.events("stalled")
    assert (told["ranks"], told["hosts"], told["waiting"]) == ([1], ["b[0]"], 2)
    assert told["since_s"] >= 5.0
    assert not cluster.events("exited")
    with caplog.at_level(logging.WARNING):
        cluster.agents["b"][0].stuck = False
        cluster.run(5.0)
    assert "training makes progress again" in caplog.text
    cluster.agents["b"][0].stuck = True
    cluster.run(10.0)
    assert len(cluster.events("stalled")) == 2


def test_a_stalled_process_is_restarted_where_that_was_asked_for() -> None:
    cluster = stuck(Rules(Limits(settle_s=0.1), progress_timeout_s=5.0, restart_stalled=True))
    cluster.until(lambda: cluster.world == ["a", "c"])
    (end,) = cluster.events("exited")
    assert (end["host"], end["cause"], end["reason"]) == ("b", "stalled", "stalled: killed by the launcher")
    assert [event["subject"] for event in cluster.events("struck")] == ["slot 0 of b"]
    cluster.until(lambda: len(cluster.world) == 3)


def test_without_a_timeout_a_hang_is_told_after_a_minute_and_nobody_is_ended_for_it() -> None:
    cluster = stuck(Rules(Limits(settle_s=0.1)))
    cluster.run(STILL_S - 5.0)
    assert not cluster.events("stalled")
    cluster.run(300.0)
    (told,) = cluster.events("stalled")
    assert told["reason"] == "no progress for 60 s of rank 1 on b[0]: 2 of 3 wait for it"
    assert not cluster.events("exited")


def test_without_a_timeout_long_steps_are_no_hang() -> None:
    cluster = stuck(Rules(Limits(settle_s=0.1)))
    for process in cluster.training:
        process.step_s = 100.0
    cluster.run(200.0)
    assert not cluster.events("stalled")
    cluster.run(200.0)
    assert len(cluster.events("stalled")) == 1


def test_without_a_timeout_all_may_be_busy_for_as_long_as_they_like() -> None:
    assert stall(100.0, [member(rank, still_s=90.0) for rank in range(3)], 60.0, idle=False) is None
    assert stall(100.0, [member(rank, still_s=90.0, waiting=True) for rank in range(3)], 60.0, idle=False) is not None


def test_ranks_that_wait_for_one_whose_training_is_over_are_told_so() -> None:
    waiting, over = [member(rank, still_s=16.0, waiting=True) for rank in (0, 1)], [member(2, still_s=16.0)]
    found = left_waiting(100.0, waiting, over, 15.0)
    assert found is not None
    assert found.reason == (
        "rank 2 (c[0]) has finished training, and ranks 0 and 1 have waited for it for 16 s: "
        "do all ranks do the same number of steps?"
    )
    assert left_waiting(100.0, waiting, over, 17.0) is None
    assert left_waiting(100.0, waiting, [], 15.0) is None
    assert left_waiting(100.0, [], over, 15.0) is None
    assert left_waiting(100.0, [*waiting, member(2, still_s=16.0)], over, 15.0) is None  # that one may free them
    two = left_waiting(100.0, waiting[:1], [member(1, still_s=9.0), member(2, still_s=9.0)], 15.0)
    assert two is not None
    assert two.reason.startswith("ranks 1 and 2 have finished training, and rank 0 (a[0]) has waited for them for 16 s")


@pytest.mark.parametrize("ends", [False, True])
def test_who_has_finished_before_the_others_is_named_by_default_and_nobody_is_ended(ends: bool) -> None:
    cluster = running("a", "b", "c")
    cluster.run(3.0)
    cluster.says("c", "done")
    cluster.run(0.1)
    cluster._held_up = lambda process: True  # type: ignore[method-assign]
    if ends:
        cluster.ends_well("c")
    cluster.run(FINISHED_S + 5.0)
    cluster.run(60.0)
    (told,) = cluster.events("stalled")
    assert (told["finished"], told["waiting"]) == ([2], 2)
    assert told["reason"].startswith("rank 2 (c[0]) has finished training, and ranks 0 and 1 have waited for it for 1")
    assert {event["host"] for event in cluster.events("exited")} <= {"c"}
    assert not cluster.driver.over


def test_a_process_that_calls_heartbeat_may_take_as_long_as_it_likes() -> None:
    cluster = stuck(Rules(Limits(settle_s=0.1), progress_timeout_s=5.0, restart_stalled=True))
    cluster.agents["b"][0].beats = True
    cluster.run(60.0)
    assert not cluster.events("stalled")
    assert cluster.world == ["a", "b", "c"]


def slow(rules: Rules, *names: str) -> Cluster:
    cluster = running(*names, rules=rules)
    for process in cluster.training:
        process.step_s = 0.3 if process.host == "b" else 0.1
    return cluster


def test_a_straggler_is_reported_once_and_left_alone() -> None:
    cluster = slow(Rules(Limits(settle_s=0.1)), "a", "b", "c")
    cluster.run(15.0)
    assert not cluster.events("straggler")  # twenty steps in a row, not fifteen
    cluster.run(60.0)
    (told,) = cluster.events("straggler")
    assert (told["host"], told["slot"], told["rank"], told["drained"]) == ("b", 0, 1, False)
    assert told["step_s"] / told["median_s"] == pytest.approx(3.0, rel=1e-3)
    assert cluster.world == ["a", "b", "c"]


def test_a_straggler_is_drained_once_where_that_was_asked_for() -> None:
    cooldown_s = (10.0, 20.0)
    cluster = slow(Rules(Limits(settle_s=0.1), drain_stragglers=True, cooldown_s=cooldown_s), "a", "b", "c", "d")
    cluster.run(30.0)
    assert cluster.world == ["a", "c", "d"]
    (told,) = cluster.events("straggler")
    assert told["drained"]
    assert not cluster.events("struck")
    assert causes(cluster) == ["start", "hosts removed"]
    assert (
        "slot 0 of b is drained: b[0] takes 0.3 s a step"
        in cluster.driver.job.faults.ledger.blocked(
            cluster.clock.mono(), cluster.driver.job.fleet.hosts.hosts[1]
        ).reason
    )
    cluster.run(30.0)
    assert len(cluster.world) == 4
    for process in cluster.training:
        process.step_s = 0.3 if process.host == "b" else 0.1
    cluster.run(40.0)
    assert [event["drained"] for event in cluster.events("straggler")] == [True, False]
    assert len(cluster.world) == 4


def test_no_straggler_is_drained_where_the_others_would_be_too_few() -> None:
    cluster = slow(Rules(Limits(least=3, settle_s=0.1), drain_stragglers=True), "a", "b", "c")
    cluster.run(60.0)
    assert [event["drained"] for event in cluster.events("straggler")] == [False]
    assert cluster.world == ["a", "b", "c"]


def test_a_drained_slot_works_again_where_nobody_else_is_left() -> None:
    cluster = slow(Rules(Limits(settle_s=0.1), drain_stragglers=True), "a", "b", "c")
    cluster.until(lambda: cluster.world == ["a", "c"])
    cluster.hosts(b=1)
    cluster.run(1.0)
    cluster.kill("a")
    cluster.kill("c")
    cluster.until(lambda: cluster.world == ["b"])


def hang(cluster: Cluster, host: str) -> None:
    """The main thread of its process stands still for good; another one beats."""
    process = next(process for process in cluster.training if process.host == host)
    process.stuck = process.wedged = True


@pytest.mark.parametrize("change", ["a death", "a newcomer"])
def test_one_that_stands_still_is_not_waited_for_by_the_next_world_either(change: str) -> None:
    cluster = running("a", "b", "c", rules=Rules(progress_timeout_s=60.0, restart_stalled=True))
    cluster.run(3.0)
    hang(cluster, "a")
    cluster.run(5.0)
    if change == "a death":
        cluster.kill("c")
    else:
        cluster.hosts(a=1, b=1, c=1, d=1)
    cluster.until(lambda: cluster.events("stalled"), within=70.0)
    assert cluster.events("stalled")[0]["hosts"] == ["a[0]"]
    cluster.until(lambda: "a" not in cluster.world and cluster.driver.job.formed, within=10.0)
    assert len(cluster.events("stalled")) == 1


def test_without_a_limit_it_is_said_once_for_whom_the_next_world_waits_and_nobody_is_killed() -> None:
    cluster = running("a", "b", "c")
    cluster.run(3.0)
    hang(cluster, "a")
    cluster.kill("c")
    cluster.run(300.0)
    assert [event["reason"].partition(",")[0] for event in cluster.events("stalled")] == [
        "the next world waits for a[0]"
    ]
    assert [event["host"] for event in cluster.events("exited")] == ["c"]


def test_a_newcomer_that_was_told_to_go_live_and_does_not_come_is_not_waited_for_long() -> None:
    cluster = running("a")
    cluster.run(3.0)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.events("parked")[1:])
    cluster.agents["b"][0].state = "lost in a callback"
    cluster.until(lambda: cluster.driver.job.generation == 2, within=10.0)
    cluster.until(lambda: cluster.world == ["a"] and cluster.driver.job.formed, within=70.0)
    assert [(event["host"], event["cause"]) for event in cluster.events("struck")] == [("b", "never ready")]

"""Hosts that come and go in awkward orders, in the simulated cluster."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.driver.test_driver import causes, running
from tests.unit.launcher.simulated import Cluster, Rules


def sizes(cluster: Cluster) -> list[int]:
    return [event["size"] for event in cluster.events("resized")]


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.011, 0.013, 0.05, 0.2])
def test_a_second_failure_while_the_world_forms_again_leaves_the_rest_training(after_s: float) -> None:
    cluster = running("a", "b", "c", "d")
    cluster.run(2.0)
    cluster.kill("b")
    cluster.run(after_s)
    cluster.kill("c")
    assert cluster.until(lambda: sizes(cluster)[-1] == 2 and cluster.world == ["a", "d"]) < 1.0
    assert {event["host"] for event in cluster.events("struck")} == {"b", "c"}


def test_a_host_removed_while_its_newcomer_boots_costs_the_others_nothing() -> None:
    cluster = running("a")
    cluster.boot_s["b"] = 20.0
    cluster.hosts(a=1, b=1)
    cluster.run(5.0)
    cluster.hosts(a=1)
    cluster.until(lambda: "b" not in cluster.agents, within=2.0)
    cluster.run(60.0)
    assert causes(cluster) == ["start"]
    assert not cluster.events("struck")


def test_a_parked_newcomer_that_is_removed_costs_the_others_nothing() -> None:
    cluster = running("a", rules=Rules(Limits(settle_s=5.0)))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.events("parked")[-1]["host"] == "b")
    cluster.hosts(a=1)
    cluster.run(60.0)
    assert causes(cluster) == ["start"]
    assert not cluster.events("struck")
    assert "b" not in cluster.agents


def test_a_parked_newcomer_on_its_way_out_is_not_counted_on_when_its_host_comes_back() -> None:
    cluster = running("a", rules=Rules(Limits(settle_s=5.0)))
    cluster.ends_s["b"] = 2.0
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.events("parked")[-1]["host"] == "b")
    cluster.run(4.0)
    cluster.hosts(a=1)
    cluster.run(0.5)
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert sizes(cluster) == [1, 2]


def test_a_host_that_comes_back_while_its_agent_ends_gets_another_one() -> None:
    cluster = running("a", "b")
    cluster.clears_s = 3.0
    cluster.run(2.0)
    cluster.hosts(a=1)
    cluster.until(lambda: "b" in cluster.finishing)
    cluster.hosts(a=1, b=1)
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 10.0
    assert not cluster.events("struck")
    assert not cluster.events("fenced")


def test_a_host_that_comes_and_goes_every_second_interrupts_nobody() -> None:
    cluster = running("a")
    for _ in range(30):
        cluster.hosts(a=1, b=1)
        cluster.run(1.0)
        cluster.hosts(a=1)
        cluster.run(1.0)
    assert causes(cluster) == ["start"]
    assert not cluster.events("struck")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])


def test_a_worker_that_crashes_each_time_it_joins_is_let_in_ever_more_seldom_and_never_ends_the_job() -> None:
    cluster = running("a", "b", rules=Rules(failure_budget=4, cooldown_s=(1.0, 8.0)))
    joined: list[float] = []
    for _ in range(12):
        cluster.until(lambda: cluster.world == ["a", "b"], within=20.0)
        joined.append(cluster.clock.mono())
        cluster.run(0.5)
        cluster.kill("b", code=1)
        cluster.until(lambda: cluster.world == ["a"], within=1.0)
    waits = [after - before for before, after in pairwise(joined)]
    assert [round(wait - 1.0) for wait in waits[:3]] == [4, 5, 7]  # its boot and 1, 2, 4 s, up to 8
    assert all(wait > 8.0 for wait in waits[3:])
    assert not cluster.driver.over


def test_a_newcomer_that_never_gets_ready_is_no_fault_of_the_jobs() -> None:
    cluster = running("a", rules=Rules(failure_budget=2, cooldown_s=(1.0, 4.0)))
    cluster.hosts(a=1, b=1)
    for _ in range(10):
        cluster.until(lambda: 0 in cluster.agents.get("b", {}), within=20.0)
        cluster.run(0.5)
        cluster.kill("b", code=1)
    cluster.run(1.0)
    assert cluster.world == ["a"]
    assert causes(cluster) == ["start"]
    assert cluster.driver.outcome is None


def test_the_same_error_of_one_newcomer_again_and_again_is_no_error_of_every_rank() -> None:
    cluster = running("a", rules=Rules(cooldown_s=(1.0, 4.0)))
    cluster.hosts(a=1, b=1)
    for _ in range(3):
        cluster.until(lambda: 0 in cluster.agents.get("b", {}), within=20.0)
        cluster.run(0.5)
        cluster.fail("b", "its disk is not mounted")
    cluster.run(1.0)
    assert cluster.world == ["a"]
    assert cluster.driver.outcome is None


def test_the_same_error_on_one_host_after_the_other_ends_the_job() -> None:
    cluster = running("a", "b", "c")
    cluster.run(2.0)
    for host in ("a", "b"):
        cluster.fail(host, "division by zero at step 7")
        cluster.run(0.05)
    assert "division by zero at step 7" in str(cluster.driver.outcome)


def test_below_the_smallest_size_the_rest_waits_and_goes_on_with_the_replacement() -> None:
    cluster = running("a", "b", rules=Rules(Limits(start=2, least=2, settle_s=0.1)))
    cluster.run(2.0)
    cluster.kill("b")
    cluster.hosts(a=1)
    cluster.run(20.0)
    assert causes(cluster) == ["start"]
    assert [process.host for process in cluster._all()] == ["a"]
    cluster.hosts(a=1, c=1)
    cluster.until(lambda: cluster.world == ["a", "c"])
    assert sizes(cluster) == [2, 2]


def test_every_host_may_be_replaced_one_by_one() -> None:
    cluster = running("a", "b", "c", rules=Rules(Limits(start=3, least=2, settle_s=0.1)))
    now = ["a", "b", "c"]
    for number in range(3):
        now = [*now[1:], f"n{number}"]
        cluster.hosts(**dict.fromkeys(now, 1))
        cluster.until(lambda now=now: sorted(cluster.world) == sorted(now))  # type: ignore[misc]
    assert not set(cluster.world) & {"a", "b", "c"}
    assert not cluster.events("struck")
    cluster.run(5.0)
    assert set(cluster.agents) == {"n0", "n1", "n2"}


def test_a_newcomer_killed_while_it_goes_live_leaves_the_others_training() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.driver.job.generation == 2)
    cluster.kill("c")
    assert cluster.until(lambda: sizes(cluster) == [2, 2] and cluster.world == ["a", "b"]) < 1.0
    assert {event["host"] for event in cluster.events("struck")} == {"c"}


def test_a_host_that_comes_back_does_not_push_out_who_has_taken_its_place() -> None:
    cluster = Cluster(Rules(Limits(start=2, most=2, settle_s=0.1), cooldown_s=(5.0, 5.0)))
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(1.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a", "c"])
    cluster.run(60.0)
    assert cluster.world == ["a", "c"]
    assert len(cluster.events("resized")) == 3  # the start, the loss, and the replacement


def test_a_survivor_that_waits_for_a_lost_peer_in_vain_is_ended_and_comes_back_and_nobody_is_to_blame() -> None:
    cluster = running("a", "b", "c")
    cluster.run(1.0)
    next(process for process in cluster.training if process.host == "b").wedged = True
    cluster.run(1.0)
    cluster.kill("c")
    cluster.until(lambda: cluster.world == ["a"] and cluster.driver.job.formed, within=12.0)
    assert [event["cause"] for event in cluster.events("exited")] == ["crashed", "peer lost"]
    assert [event["host"] for event in cluster.events("struck")] == ["c"]
    cluster.until(lambda: cluster.world[:2] == ["a", "b"], within=12.0)


def test_a_survivor_that_is_busy_with_something_else_is_waited_for() -> None:
    cluster = running("a", "b", "c")
    cluster.run(1.0)
    busy = next(process for process in cluster.training if process.host == "b")
    busy.stuck = busy.wedged = True
    cluster.run(1.0)
    cluster.kill("c")
    cluster.run(60.0)
    assert [event["host"] for event in cluster.events("exited")] == ["c"]


def test_ranks_go_by_what_is_said_when_they_are_asked_for_and_not_by_whose_beat_was_the_last() -> None:
    cluster = running("a", "b", "c")
    cluster.run(3.0)
    for host, number in (("a", 100), ("b", 101), ("c", 104)):
        beat = {"commit": [1, 1, number], "step": number}
        cluster.driver.tell(News(host, {"event": "beats", "slots": {"0": {"life": 1, "age": 0.0, "beat": beat}}}))
    cluster.sealed = [1, 1, 105]
    cluster.hosts(a=1, b=1, c=1, d=1)
    cluster.until(lambda: len(cluster.events("resized")) == 2)
    assert [process.rank for host in "abc" for process in cluster.training if process.host == host] == [0, 1, 2]

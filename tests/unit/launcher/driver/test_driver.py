"""The driver, in a cluster that exists in memory: what happens, in which order, and for what reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.events import End
from hvd_elastic_ext.launcher.planners.membership.world import TELL_AGAIN_S
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from tests.unit.launcher.simulated import Cluster, Rules


def running(*names: str, rules: Rules | None = None) -> Cluster:
    """A cluster that trains on these hosts, one slot each."""
    cluster = Cluster(rules or Rules())
    cluster.rules.limits = replace(cluster.rules.limits, start=len(names))
    cluster.hosts(**dict.fromkeys(names, 1))
    cluster.until(lambda: cluster.world == list(names))
    return cluster


def causes(cluster: Cluster) -> list[str]:
    return [event["cause"] for event in cluster.events("resized")]


def test_the_first_world_forms_when_all_are_ready() -> None:
    cluster = running("a", "b", "c")
    assert causes(cluster) == ["start"]
    assert cluster.driver.job.generation == 1


def test_hosts_of_equal_standing_get_ranks_in_the_order_of_the_list() -> None:
    shown: dict[str, int] = {}

    class Watched(Cluster):
        def send(self, host: str, order: Mapping[str, Any]) -> bool:
            if order.get("message", {}).get("tell") == "go":
                shown[host] = int(order["message"]["env"]["HOROVOD_RANK"])
            return super().send(host, order)

    cluster = Watched(Rules(Limits(start=3, settle_s=0.1)))
    cluster.hosts(b=1, c=1, a=1)
    cluster.until(lambda: cluster.training)
    assert cluster.world == ["b", "c", "a"]
    assert shown == {"b": 0, "c": 1, "a": 2}  # before they ask


def test_a_newcomer_is_let_in_when_it_stands_ready_and_survivors_are_interrupted_once() -> None:
    cluster = running("a")
    cluster.boot_s["b"] = 20.0
    cluster.hosts(a=1, b=1)
    cluster.run(15.0)
    assert cluster.world == ["a"]
    assert cluster.driver.job.generation == 1
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert causes(cluster) == ["start", "hosts added"]


def test_a_newcomer_that_refuses_ssh_costs_the_others_nothing() -> None:
    cluster = running("a", "b")
    cluster.dead.add("c")
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(60.0)
    assert cluster.world == ["a", "b"]
    assert cluster.driver.job.generation == 1
    assert [strike["cause"] for strike in cluster.events("struck")][:2] == ["unreachable", "unreachable"]


def test_a_host_that_does_not_fit_starts_nothing_until_it_does() -> None:
    cluster = running("a")
    cluster.misfits["b"] = "it has another torch"
    cluster.hosts(a=1, b=1)
    cluster.run(40.0)
    assert [event["host"] for event in cluster.events("spawned")] == ["a"]
    assert {event["reason"] for event in cluster.events("struck")} == {"it has another torch"}
    del cluster.misfits["b"]
    cluster.until(lambda: cluster.world == ["a", "b"])


def test_a_killed_worker_is_missed_for_a_moment_and_comes_back_after_its_cooldown() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.kill("b")
    assert cluster.until(lambda: cluster.world == ["a"]) < 0.2
    back = cluster.until(lambda: cluster.world == ["a", "b"])
    assert 10.0 < back < 16.0
    assert causes(cluster) == ["start", "worker failed", "cooldown over"]


def test_rank_0_is_given_to_a_holder_of_the_newest_commit() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.kill("a")
    cluster.until(lambda: cluster.world == ["b"])
    cluster.until(lambda: len(cluster.world) == 2)
    assert cluster.world == ["b", "a"]


def test_a_host_that_is_removed_goes_at_the_next_step() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.hosts(a=1)
    assert cluster.until(lambda: cluster.world == ["a"]) < 0.25
    cluster.run(3.0)
    assert "b" not in cluster.agents
    assert [event["cause"] for event in cluster.events("exited")] == ["told to leave"]
    assert not cluster.events("struck")


def test_every_host_may_be_replaced_in_one_publication() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.hosts(c=1, d=1)
    cluster.run(2.0)
    assert cluster.world == ["a", "b"]  # they train on while the others boot
    cluster.until(lambda: cluster.world == ["c", "d"])
    sizes = [event["size"] for event in cluster.events("resized")]
    assert sizes == [2, 3, 2]  # one who holds the state takes the others in
    assert not cluster.events("struck")


def test_a_removal_that_would_leave_too_few_waits_for_the_replacement() -> None:
    cluster = running("a", "b", rules=Rules(Limits(start=2, least=2, settle_s=0.1)))
    cluster.run(2.0)
    cluster.hosts(a=1, c=1)
    cluster.run(2.0)
    assert cluster.world == ["a", "b"]
    cluster.until(lambda: cluster.world == ["a", "c"])
    assert cluster.driver.job.generation == 2


def test_all_workers_may_be_killed_at_once() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.kill("a")
    cluster.kill("b")
    cluster.until(lambda: len(cluster.world) == 2)
    assert not cluster.driver.over


def test_a_stopped_process_is_killed_and_the_others_go_on() -> None:
    cluster = running("a", "b", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.stop("b")
    assert cluster.until(lambda: cluster.world == ["a"]) < 5.5
    assert [event["cause"] for event in cluster.events("exited")] == ["silent"]


def test_a_host_that_falls_silent_is_cut_off_and_its_peers_go_on() -> None:
    cluster = running("a", "b", "c", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.cut.add("c")
    assert (
        cluster.until(
            lambda: (
                cluster.world == ["a", "b"]
                and cluster.driver.job.rendezvous.formed
                and cluster.driver.job.generation == 2
            )
        )
        < 4.5
    )
    assert [event["host"] for event in cluster.events("fenced")] == ["c"]


def test_nobody_waits_for_a_host_that_was_to_leave_and_falls_silent_before_it_has() -> None:
    cluster = running("a", "b", "c", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.cut.add("c")
    cluster.hosts(a=1, b=1)
    went_on = cluster.until(lambda: cluster.world == ["a", "b"] and cluster.driver.job.rendezvous.formed)
    assert 2.0 < went_on < 4.5
    assert causes(cluster) == ["start", "hosts removed"]


def test_nobody_waits_for_a_host_that_was_to_leave_and_falls_silent_while_another_joins() -> None:
    cluster = running("a", "b", "c", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.hosts(a=1, b=1, c=1, d=1)
    cluster.until(lambda: cluster.events("parked")[-1]["host"] == "d")
    cluster.cut.add("c")
    cluster.hosts(a=1, b=1, d=1)
    assert cluster.until(lambda: cluster.world == ["a", "b", "d"] and cluster.driver.job.rendezvous.formed) < 4.5


def test_a_host_that_is_listed_no_more_is_not_waited_for_when_its_connection_is_lost() -> None:
    for listed, waited_s in ({"a": 1, "b": 1, "c": 1}, 10.0), ({"a": 1, "b": 1}, 2.0):
        cluster = running("a", "b", "c")
        cluster.run(2.0)
        cluster.cut.add("c")
        cluster.disconnect("c")
        cluster.hosts(**listed)
        took = cluster.until(lambda: len(cluster.events("fenced")) == 1)  # noqa: B023
        assert waited_s - 1.5 < took < waited_s + 0.5
        cluster.until(lambda: cluster.world == ["a", "b"])  # noqa: B023


def test_hosts_that_arrive_one_after_the_other_make_one_resize() -> None:
    cluster = running("h0", rules=Rules(Limits(settle_s=3.0)))
    hosts = {"h0": 1}
    for number in range(1, 9):
        hosts[f"h{number}"] = 1
        cluster.hosts(**hosts)
        cluster.run(2.5)
    cluster.until(lambda: len(cluster.world) == 9)
    assert causes(cluster) == ["start", "hosts added"]


def test_a_late_newcomer_does_not_hold_up_one_that_is_ready() -> None:
    cluster = running("a", rules=Rules(Limits(settle_s=3.0)))
    cluster.boot_s["c"] = 100.0
    cluster.hosts(a=1, b=1, c=1)
    assert cluster.until(lambda: cluster.world == ["a", "b"]) < 8.0


def test_only_allowed_sizes_are_formed() -> None:
    cluster = Cluster(Rules(Limits(allowed=(2, 4), settle_s=0.1)))
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(10.0)
    assert cluster.world == ["a", "b"]
    cluster.hosts(a=1, b=1, c=1, d=1)
    cluster.until(lambda: cluster.world == ["a", "b", "c", "d"])


def test_training_that_is_done_ends_the_job_well() -> None:
    cluster = running("a", "b")
    cluster.run(1.0)
    cluster.finish()
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_a_worker_that_is_done_may_take_its_time_to_end_and_one_that_never_ends_does_not_spoil_the_result() -> None:
    cluster = running("a", "b", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(1.0)
    cluster.finish(hanging="b")  # in the interpreter's last lines
    cluster.run(30.0)
    assert not cluster.events("fenced")
    cluster.until(lambda: cluster.driver.over)
    assert [event["cause"] for event in cluster.events("exited")] == ["done", "silent"]
    assert cluster.driver.outcome is None


def test_a_worker_that_ends_with_0_before_training_is_done_is_a_departure() -> None:
    cluster = running("a", "b")
    cluster.run(1.0)
    cluster.kill("b", code=0)
    cluster.until(lambda: cluster.world == ["a"])
    assert not cluster.driver.over
    assert not cluster.events("struck")


def test_too_few_hosts_for_too_long_end_the_job_with_the_reason() -> None:
    cluster = Cluster(Rules(Limits(start=2, least=2, settle_s=0.1), elastic_timeout_s=30.0))
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.driver.over)
    assert "processes ready: 1, needed: 2" in str(cluster.driver.outcome)


def test_below_the_minimum_the_job_fails_at_once_if_it_was_asked_to() -> None:
    cluster = running("a", "b", rules=Rules(Limits(least=2, settle_s=0.1), below_min="fail"))
    cluster.run(2.0)
    cluster.kill("b")
    assert cluster.until(lambda: cluster.driver.outcome) < 0.5
    assert "slots needed to go on: 2, usable: 1 (a, b); --below-min is fail: lost b[0]" in str(cluster.driver.outcome)
    cluster.until(lambda: cluster.driver.over)
    assert not cluster.agents


def test_below_the_minimum_the_job_waits_unless_it_was_asked_to_fail() -> None:
    cluster = running("a", "b", rules=Rules(Limits(least=2, settle_s=0.1)))
    cluster.run(2.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.driver.job.generation == 2 and len(cluster.world) == 2)
    assert cluster.driver.outcome is None


def test_who_only_has_to_be_started_again_is_not_missing() -> None:
    cluster = running("a", "b", rules=Rules(Limits(settle_s=0.1), below_min="fail"))
    cluster.run(2.0)
    cluster.kill("a")
    cluster.kill("b")
    cluster.until(lambda: len(cluster.world) == 2)
    assert cluster.driver.outcome is None


def test_a_job_that_is_told_to_stop_leaves_nothing() -> None:
    cluster = running("a", "b")
    cluster.driver.tell(End(JobFailed("told to")))
    cluster.until(lambda: cluster.driver.over)
    assert not cluster.agents


def test_a_veteran_killed_right_after_a_join_does_not_stop_the_others() -> None:
    cluster = running("a", "b")
    cluster.run(1.0)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.world == ["a", "b", "c"])
    cluster.kill("a")
    cluster.until(lambda: cluster.world == ["b", "c"])


def test_two_failures_back_to_back() -> None:
    cluster = running("a", "b", "c")
    cluster.run(1.0)
    cluster.kill("a")
    cluster.run(0.02)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["c"])


def test_an_empty_list_interrupts_nobody_it_is_not_even_accepted() -> None:
    cluster = running("a", "b")
    cluster.publish(HostSet())
    cluster.run(5.0)
    assert cluster.world == ["a", "b"]


def test_members_that_did_not_hear_of_a_change_are_told_again_and_nobody_once_all_have_come() -> None:
    cluster = running("a", "b")
    cluster.run(2.0)
    cluster.lose["update"] = 3  # both, and one of them once more: ranks agree, so that one who heard it is enough
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.told["update"] == 2)
    assert TELL_AGAIN_S - 0.1 < cluster.until(lambda: cluster.world == ["a", "b", "c"]) < TELL_AGAIN_S + 1.0
    said = cluster.told["update"]
    cluster.run(4 * TELL_AGAIN_S)
    assert cluster.told["update"] == said


def test_a_host_that_was_cut_off_comes_back_when_it_can_be_reached_with_a_new_process() -> None:
    cluster = running("a", "b", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(2.0)
    cluster.cut.add("b")
    cluster.dead.add("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(20.0)
    cluster.cut.discard("b")
    cluster.dead.discard("b")  # its process has noticed nothing, and its seat is wanted again
    cluster.until(lambda: causes(cluster)[-1] == "cooldown over")
    assert cluster.world == ["a", "b"]
    assert causes(cluster) == ["start", "worker failed", "cooldown over"]
    assert [event["cause"] for event in cluster.events("exited")] == ["told to leave"]


def test_a_worker_that_was_sent_away_may_take_its_time_to_end_when_nobody_waits_for_it() -> None:
    cluster = running("a", "b", rules=Rules(heartbeat_timeout_s=3.0))
    cluster.run(1.0)
    cluster.stop("b")  # in the interpreter's last lines
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.driver.job.generation == 2 and cluster.driver.job.rendezvous.formed)
    cluster.run(20.0)
    assert not cluster.events("fenced")
    assert not cluster.events("struck")


def test_nobody_is_cut_off_for_a_time_in_which_the_launcher_itself_stood_still() -> None:
    cluster = running("a", "b")
    cluster.run(3.0)
    cluster.standstill(15.0)
    cluster.run(20.0)
    assert not cluster.events("fenced") + cluster.events("struck") + cluster.events("isolated")
    cluster.cut.add("b")  # and who falls silent then is noticed in its time
    cluster.until(lambda: cluster.events("fenced"), within=cluster.rules.heartbeat_timeout_s + 2.0)

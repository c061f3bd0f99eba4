"""Jobs whose processes keep their places: a changed world is other processes, which go on from the last commit."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.slot_protocol import START_AGAIN, TERMINATED
from hvd_elastic_ext.launcher.driver.events import Expected, WorldNotBegun
from hvd_elastic_ext.launcher.options import settings
from hvd_elastic_ext.launcher.planners.engines.engine import ENGINES
from hvd_elastic_ext.launcher.planners.engines.restarting import BEHIND_S, NOTICE_S, STARTS_S
from hvd_elastic_ext.launcher.rules.membership.membership import Limits, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.rules.membership.world_change import BACK_S, Move, decide
from hvd_elastic_ext.launcher.state import resize_report
from tests.unit.launcher.rules.membership.test_membership import LIMITS, process, situation
from tests.unit.launcher.simulated import Cluster, Rules
from tests.unit.launcher.simulated_processes import Process
from tests.unit.launcher.state.test_resize_report import first_step


class Restarted(Cluster):
    """Whoever has been in a world and is to leave it ends, with ``leaves_with``; ``deaf_hosts`` never notice.

    ``loops`` is False for scripts without an elastic loop: they hear nothing, and say nothing.
    """

    def __init__(self, *, leaves_with: int = START_AGAIN, loops: bool = True, **rules: Any) -> None:
        super().__init__(Rules(engine="torchrun", **rules))
        self.boot_s = dict.fromkeys("abcd", 0.2)
        self.leaves_with, self.loops = leaves_with, loops
        self.deaf_hosts: set[str] = set()
        self.begun: list[tuple[int, list[str]]] = []
        self.driver.executor.begin_world = lambda generation, hosts: self.begun.append((generation, hosts))

    def _ask(self, process: Process) -> None:
        if not process.generation:
            super()._ask(process)
        elif process.host not in self.deaf_hosts and self.loops:
            process.interrupted = True
            self._end(process, self.leaves_with)

    def enter(self, process: Process) -> None:
        if self.loops:
            super().enter(process)
        else:
            self.say(process, "entered", generation=process.generation)

    def trains(self, *hosts: str, within: float = 60.0) -> float:
        """Wait for a world of just these to have been begun; how long that took."""

        def begun() -> bool:
            there = [host for host in self.world if host not in self.cut]
            return bool(self.begun) and self.begun[-1][1] == list(hosts) == there

        return self.until(begun, within=within)

    def ends(self) -> dict[str, str]:
        """How the last process of each host ended."""
        return {entry["host"]: entry["cause"] for entry in self.events("exited")}


def resized(cluster: Cluster) -> dict[str, Any]:
    """The last change, once it was written down."""
    cluster.ask(resize_report.close)
    return cluster.events("resized")[-1]


def begun(*hosts: str, **more: Any) -> Restarted:
    cluster = Restarted(**more)
    cluster.hosts(**dict.fromkeys(hosts, 1))
    cluster.trains(*hosts)
    cluster.run(1.0)
    return cluster


def test_hosts_that_are_added_have_all_leave_at_one_step_and_come_back_with_the_newcomers() -> None:
    cluster = begun("a", "b")
    cluster.hosts(a=1, b=1, c=1)
    cluster.trains("a", "b", "c")
    assert cluster.ends() == {"a": "told to leave", "b": "told to leave"}
    assert (resized(cluster)["cause"], resized(cluster)["added"], resized(cluster)["failed"]) == (
        "hosts added",
        ["c"],
        {},
    )
    assert not cluster.events("struck")


def test_the_time_in_which_nobody_trained_is_told_when_the_next_world_has_done_its_first_step() -> None:
    cluster = begun("a", "b")
    first_step(cluster, cluster.training[0], pause_s=None)
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: len(cluster.events("exited")) == 2)
    stopped_at = cluster.events("exited")[0]["mono"]
    cluster.trains("a", "b", "c")
    cluster.run(30.0)
    first_step(cluster, cluster.training[0], pause_s=None)
    change = cluster.events("resized")[-1]
    assert (change["cause"], change["steps_lost"]) == ("hosts added", 0)
    assert change["downtime_s"] == pytest.approx(cluster.clock.mono() - stopped_at, abs=0.01)


def test_a_process_that_is_killed_is_blamed_alone_and_the_others_go_on_at_once() -> None:
    cluster = begun("a", "b", "c")
    cluster.kill("b")
    assert cluster.trains("a", "c", within=3.0) < 3.0
    assert cluster.ends() == {"a": "peer lost", "b": "crashed", "c": "peer lost"}
    assert [entry["subject"] for entry in cluster.events("struck")] == ["slot 0 of b"]
    assert (resized(cluster)["cause"], resized(cluster)["failed"]) == ("worker failed", {"b": 1})
    cluster.trains("a", "c", "b")  # rank 0 holds the newest commit
    assert resized(cluster)["cause"] == "cooldown over"


def test_what_mpirun_ends_when_a_rank_has_failed_is_not_blamed() -> None:
    cluster = begun("a", "b", leaves_with=TERMINATED)
    cluster.kill("b", code=1)
    cluster.trains("a")
    assert cluster.ends() == {"a": "peer lost", "b": "crashed"}
    assert len(cluster.events("struck")) == 1


def test_a_script_that_ended_with_an_error_because_of_another_one_is_not_blamed() -> None:
    cluster = begun("a", "b", leaves_with=1)
    cluster.kill("b")
    cluster.trains("a")
    assert cluster.ends() == {"a": "peer lost", "b": "crashed"}


def test_whoever_has_to_load_for_long_is_waited_for_however_short_the_settle_time() -> None:
    cluster = begun("a", "b")
    cluster.boot_s["a"] = 5.0
    cluster.hosts(a=1, b=1, c=1)
    cluster.trains("a", "b", "c")
    assert [hosts for _, hosts in cluster.begun] == [["a", "b"], ["a", "b", "c"]]


def test_a_host_that_is_removed_leaves_in_good_order() -> None:
    cluster = begun("a", "b", "c")
    cluster.hosts(a=1, c=1)
    cluster.trains("a", "c")
    assert set(cluster.ends().values()) == {"told to leave"}
    assert resized(cluster)["cause"] == "hosts removed"


def test_a_host_that_is_given_notice_is_left_before_it_goes() -> None:
    cluster = begun("a", "b")
    cluster.write_notice("b", "spot reclaim", in_s=30.0)
    assert cluster.trains("a", within=10.0) < 10.0
    assert cluster.ends() == {"a": "told to leave", "b": "told to leave"}
    assert not cluster.events("struck")


def test_whoever_is_replaced_by_others_sends_them_its_commit_and_is_in_no_other_world() -> None:
    cluster = begun("a")
    cluster.hosts(b=1)
    cluster.trains("b")
    assert [hosts for _, hosts in cluster.begun] == [["a"], ["b"]]
    assert [(source, target) for source, target, _ in cluster.transferred] == [("a", "b")]
    cluster.until(lambda: "a" not in cluster.agents, within=5.0)


def test_below_the_minimum_those_that_are_left_end_too_and_all_begin_again_together() -> None:
    cluster = begun("a", "b", limits=Limits(start=2, least=2, settle_s=0.1))
    cluster.kill("b")
    cluster.until(lambda: not cluster.world)
    cluster.run(5.0)
    assert not cluster.world
    cluster.trains("a", "b")
    assert resized(cluster)["cause"] == "worker failed"


@pytest.mark.parametrize(("drains", "after"), [(True, BEHIND_S), (False, NOTICE_S)])
def test_a_process_that_does_not_leave_is_ended_when_the_others_have_long_gone(drains: bool, after: float) -> None:
    cluster = begun("a", "b", "c")
    cluster.deaf_hosts = {"a"}
    if drains:
        cluster.hosts(a=1, b=1, c=1, d=1)
    else:
        cluster.kill("c")
    cluster.until(lambda: not any(each.host == "b" for each in cluster.training))
    cluster.run(after - 1.0)
    assert cluster.agents["a"][0].life == 1
    assert len(cluster.begun) == 1
    cluster.trains("a", "b", *("cd" if drains else ""))


def test_scripts_without_an_elastic_loop_are_ended_for_a_change() -> None:
    cluster = begun("a", "b", loops=False)
    cluster.run(STARTS_S)
    cluster.hosts(a=1, b=1, c=1)
    cluster.trains("a", "b", "c")
    assert cluster.ends() == {"a": "told to leave", "b": "told to leave"}


def test_processes_that_have_not_come_as_far_as_training_are_not_begun_again_for_newcomers() -> None:
    cluster = begun("a", "b", loops=False)
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(STARTS_S - 10.0)
    assert cluster.world == ["a", "b"]
    cluster.trains("a", "b", "c")


def test_scripts_without_an_elastic_loop_may_end_well_one_after_the_other() -> None:
    cluster = begun("a", "b", loops=False)
    cluster.run(STARTS_S)
    cluster.ends_well("a")
    cluster.run(40.0)
    assert (cluster.world, len(cluster.begun)) == (["b"], 1)
    cluster.ends_well("b")
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_one_that_fails_while_all_leave_for_newcomers_is_blamed_and_nobody_waits_for_it() -> None:
    cluster = begun("a", "b")
    cluster.deaf_hosts = {"a", "b"}
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: cluster.driver.job.restarting.change is not None)
    cluster.kill("b")
    cluster.trains("a", "c", within=NOTICE_S + 3.0)
    assert cluster.ends()["b"] == "crashed"
    assert resized(cluster)["cause"] == "worker failed"


def test_a_host_that_is_gone_is_the_reason_for_the_ends_of_the_others() -> None:
    cluster = begun("a", "b", failure_budget=0)
    cluster.cut.add("b")
    cluster.lose_world("a")
    cluster.trains("a", within=20.0)
    assert cluster.driver.outcome is None


def test_worlds_that_end_again_and_again_without_anybody_saying_why_end_the_job() -> None:
    cluster = begun("a", "b", failure_budget=1)
    for _ in range(2):
        cluster.lose_world("a")
        cluster.lose_world("b")
        cluster.until(lambda: not cluster.world)
        cluster.until(lambda: len(cluster.world) == 2 or cluster.driver.over)
        cluster.run(1.0)
    assert "the world has ended 2 times within an hour without a process that says why" in str(cluster.driver.outcome)


def test_ranks_that_mpirun_could_not_start_are_started_again_within_the_budget() -> None:
    cluster = Restarted(failure_budget=2)
    cluster.enter = lambda process: None  # type: ignore[method-assign]
    cluster.hosts(a=1, b=1)
    for number in (1, 2, 3):
        cluster.until(lambda number=number: len(cluster.begun) == number)
        cluster.driver.tell(WorldNotBegun(cluster.begun[-1][0], "mpirun has ended with exit code 1: no route to host"))
    cluster.until(lambda: cluster.driver.over)
    assert "last: mpirun has ended with exit code 1: no route to host" in str(cluster.driver.outcome)


def test_an_end_of_mpirun_after_all_have_begun_is_for_the_processes_to_explain() -> None:
    cluster = begun("a", "b")
    cluster.driver.tell(WorldNotBegun(cluster.begun[-1][0], "mpirun has ended with exit code 0"))
    cluster.run(5.0)
    assert cluster.world == ["a", "b"]
    assert len(cluster.begun) == 1


def test_a_world_of_another_launcher_goes_on_and_is_not_begun_again() -> None:
    cluster = Restarted()
    hosts = cluster.inherit("a", "b")
    cluster.driver.tell(Expected(tuple(hosts), 60.0))
    cluster.publish(HostSet.of({"a": 1, "b": 1}))
    cluster.run(5.0)
    assert cluster.world == ["a", "b"]
    assert not cluster.begun
    cluster.hosts(a=1, b=1, c=1)
    cluster.trains("a", "b", "c")
    assert [hosts for _, hosts in cluster.begun] == [["a", "b", "c"]]


# --- the decision itself


def test_newcomers_that_are_ready_drain_the_world_once_the_settle_time_is_over() -> None:
    ready = process("b", Stage.PARKED, since=5.0)
    seen = situation("ab", [process("a"), ready], "a")
    assert decide(6.0, seen, LIMITS).move is Move.NOTHING
    verdict = decide(9.0, seen, LIMITS)
    assert (verdict.move, verdict.decision.cause, verdict.decision.members) == (Move.DRAIN, "hosts added", None)


def test_a_loss_ends_the_world_also_where_too_few_are_left_for_another() -> None:
    seen = situation("ab", [process("a")], "ab")
    assert decide(5.0, seen, LIMITS).move is Move.END
    assert decide(5.0, seen, Limits(least=2)).move is Move.END


def test_the_next_world_waits_for_seats_that_are_being_filled_but_not_for_ever() -> None:
    ready = process("b", Stage.PARKED, since=0.0)
    seen = situation("ab", [ready], "ab")
    ended = {Seat("a", 0): 10.0}
    verdict = decide(20.0, seen, LIMITS, ended=ended)
    assert (verdict.move, verdict.decision.again_at) == (Move.NOTHING, 10.0 + BACK_S)
    assert decide(20.0, seen, LIMITS).move is Move.FORM
    assert decide(11.0 + BACK_S, seen, LIMITS, ended=ended).move is Move.FORM


def test_members_that_ended_well_end_nobody_elses_world() -> None:
    seen = situation("ab", [process("a")], "ab")
    assert decide(5.0, seen, LIMITS, done={Life(Seat("b", 0), 1)}).move is Move.NOTHING
    failed_beside = decide(5.0, situation("abc", [process("a")], "abc"), LIMITS, done={Life(Seat("b", 0), 1)})
    assert failed_beside.move is Move.NOTHING  # the job has failed then, but who is about to end may do so


def test_a_rank_that_fails_when_another_has_ended_well_fails_the_job_and_begins_nothing_again() -> None:
    cluster = begun("a", "b", loops=False)
    cluster.run(STARTS_S)
    cluster.ends_well("b")
    cluster.run(0.1)
    cluster.kill("a", code=1)
    cluster.until(lambda: cluster.driver.over)
    assert str(cluster.driver.outcome) == "rank 0 on a[0] crashed: exit code 1; 1 of 2 processes ended well"
    assert len(cluster.begun) == 1


def test_every_engine_that_can_be_chosen_is_in_the_table() -> None:
    assert set(settings.ENGINES) == set(ENGINES)

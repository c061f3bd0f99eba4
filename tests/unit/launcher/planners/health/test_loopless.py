"""Scripts without an elastic loop, and jobs of which nothing is left, in a cluster that exists in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver.events import Expected
from hvd_elastic_ext.launcher.rules.membership.membership import Limits
from hvd_elastic_ext.launcher.state.job import SYNC_S
from tests.unit.launcher.simulated import Cluster, Rules
from tests.unit.launcher.simulated_processes import Process


class Plain(Cluster):
    """Processes that enter a world once, hear nothing, keep nothing, and fail when they lose it unless ``alone``."""

    alone = False
    commits = loops = False
    cut_off: Sequence[str] = ()

    def enter(self, process: Process) -> None:
        self.say(process, "entered", generation=process.generation)

    def _leave_world(self, process: Process) -> None:
        return

    def _lose(self, process: Process, generation: int | None = None) -> None:
        if process.state == "training" and generation in (None, process.generation) and not self.alone:
            process.interrupted = True  # all of them lose it at once
            self.later(0.1, lambda: self._end(process, 1))

    def _commit(self, process: Process) -> None:
        return

    def _told(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "fence":
            self.cut_off = [*self.cut_off, process.host]
        super()._told(process, message)


class Silent(Plain):
    """Nothing of ours sees it do a step."""

    def _train(self, process: Process) -> None:
        return


class Stock(Plain):
    """The same with Horovod's own loop and State."""

    loops = True

    def enter(self, process: Process) -> None:
        super().enter(process)
        self.say(process, "looping")
        self.say(process, "synced")

    def _leave_world(self, process: Process) -> None:
        Cluster._leave_world(self, process)

    def _lose(self, process: Process, generation: int | None = None) -> None:
        Cluster._lose(self, process, generation)


def started(cluster: Cluster, *hosts: str) -> None:
    cluster.hosts(**dict.fromkeys(hosts, 1))
    cluster.until(lambda: cluster.world == list(hosts))
    cluster.run(3.0)


def plain(*hosts: str, alone: bool = False, **rules: bool) -> Plain:
    cluster = Plain(Rules(Limits(start=len(hosts), settle_s=0.1), **rules))  # type: ignore[arg-type]
    cluster.alone = alone
    started(cluster, *hosts)
    return cluster


def stock(*hosts: str, **rules: bool) -> Stock:
    cluster = Stock(Rules(Limits(start=len(hosts), settle_s=0.1), **rules))  # type: ignore[arg-type]
    started(cluster, *hosts)
    return cluster


def test_a_script_is_done_when_all_its_processes_have_ended_well_however_long_the_last_one_takes() -> None:
    cluster = plain("a", "b")
    cluster.ends_well("b")
    cluster.run(3000.0)
    assert not cluster.driver.over
    cluster.ends_well("a")
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_rank_that_fails_beside_one_that_ended_well_fails_the_job(first: str) -> None:
    cluster = plain("a", "b", alone=True)
    for host in (first, "ba".replace(first, "")):
        if host == "a":
            cluster.kill("a", code=7)
        else:
            cluster.ends_well("b")
        cluster.run(2.0)
    cluster.until(lambda: cluster.driver.over)
    assert str(cluster.driver.outcome) == "rank 0 on a[0] crashed: exit code 7; 1 of 2 processes ended well"


def test_hosts_that_are_added_to_it_wait_and_do_not_train_it_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = plain("a", "b")
    with caplog.at_level(logging.WARNING):
        cluster.hosts(a=1, b=1, c=1)
        cluster.run(SYNC_S + 5.0)
        cluster.hosts(a=1, b=1, c=1, d=1)
        cluster.run(30.0)
    (held,) = cluster.events("not_resized")
    assert held["cause"] == "hosts added"
    assert caplog.text.count("no process has begun an elastic loop") == 1
    cluster.ends_well("a")
    cluster.run(5.0)
    cluster.ends_well("b")
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None
    assert cluster.driver.job.generation == 1


def test_hosts_that_were_added_before_the_loop_begins_are_let_in_then() -> None:
    cluster = plain("a", "b")
    cluster.hosts(a=1, b=1, c=1)
    cluster.run(30.0)
    assert cluster.world == ["a", "b"]
    for process in cluster.training:
        cluster.say(process, "looping")
        cluster.say(process, "synced")
    cluster.until(lambda: cluster.driver.job.generation == 2)


def test_a_script_without_a_loop_that_loses_a_rank_has_failed_and_is_not_begun_again() -> None:
    cluster = plain("a", "b")
    cluster.kill("b")
    cluster.until(lambda: cluster.driver.over)
    assert "no process is left that has trained" in str(cluster.driver.outcome)
    assert "the script has no elastic loop" in str(cluster.driver.outcome)
    assert cluster.driver.job.generation == 1


def test_processes_that_fail_before_any_step_are_started_again() -> None:
    cluster = Plain(Rules(Limits(start=2, settle_s=0.1)))
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.kill("a")
    cluster.until(lambda: cluster.driver.job.generation == 2 and cluster.world)
    assert cluster.driver.outcome is None


def test_where_all_who_trained_are_lost_with_their_state_the_job_fails_and_says_what_would_have_kept_it() -> None:
    cluster = stock("a", "b")
    cluster.kill("a")
    cluster.kill("b")
    cluster.until(lambda: cluster.driver.over)
    assert "--adopt, keeps commits when processes die" in str(cluster.driver.outcome)
    assert "--restart-from-scratch would start the script again" in str(cluster.driver.outcome)


def test_it_begins_anew_where_that_was_asked_for_and_each_time_is_counted() -> None:
    cluster = stock("a", "b", restart_from_scratch=True)
    for number in (1, 2):
        cluster.kill("a")
        cluster.kill("b")
        cluster.until(lambda number=number: len(cluster.events("begun_anew")) == number and len(cluster.world) == 2)
        cluster.run(5.0)
    assert [event["number"] for event in cluster.events("begun_anew")] == [1, 2]
    assert all(event["steps_lost"] >= 2 for event in cluster.events("begun_anew"))
    assert cluster.driver.outcome is None


def test_where_one_that_trained_is_left_the_others_have_its_state() -> None:
    cluster = stock("a", "b", "c")
    cluster.kill("a")
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["c"])
    cluster.until(lambda: len(cluster.world) == 3, within=60.0)
    assert cluster.world[0] == "c"
    assert cluster.driver.outcome is None


def test_a_rank_that_fails_in_its_last_steps_fails_the_job_though_the_others_are_done() -> None:
    cluster = stock("a", "b")
    cluster.says("a", "done")
    cluster.run(0.1)
    cluster.ends_well("a")
    cluster.run(0.004)
    cluster.kill("b", code=1)
    cluster.until(lambda: cluster.driver.over)
    assert "b[0] crashed: exit code 1, before its training was done; that of others is" in str(cluster.driver.outcome)


def boots(*hosts: str) -> Cluster:
    """Programs that never ask for a world."""
    cluster = Cluster(Rules(Limits(start=len(hosts), settle_s=0.1)))
    cluster.boot_s = dict.fromkeys("abc", 1e6)
    cluster.hosts(**dict.fromkeys(hosts, 1))
    cluster.until(lambda: all(cluster.agents.get(host) for host in hosts))
    return cluster


@pytest.mark.parametrize("first", ["a", "b"])
def test_programs_that_ask_for_no_world_have_failed_if_one_of_them_has(first: str) -> None:
    cluster = boots("a", "b")
    for host in (first, "ba".replace(first, "")):
        cluster.kill(host, code=7 if host == "a" else 0)
        cluster.run(0.5)
    cluster.until(lambda: cluster.driver.over, within=5.0)
    assert str(cluster.driver.outcome) == "rank 0 on a[0] crashed: exit code 7; 1 of 2 processes ended well"


def test_programs_that_ask_for_no_world_run_once() -> None:
    cluster = boots("a", "b")
    cluster.kill("a", code=0)
    cluster.run(400.0)  # the other one takes longer than any rest
    assert len([event for event in cluster.events("spawned") if event["host"] == "a"]) == 1
    cluster.kill("b", code=0)
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_a_script_that_saw_that_it_had_to_save_what_it_has_is_started_again() -> None:
    """It has saved that by itself, as scripts for other elastic runtimes do, and goes on from there."""
    cluster = stock("a", "b")
    for host in "ab":
        cluster.warned(host)
    for host in "ab":
        cluster.kill(host, code=255)
    cluster.until(lambda: cluster.world == ["a", "b"])
    assert not cluster.driver.over
    assert not cluster.events("begun_anew")


@pytest.mark.parametrize("going", ["ab", "b"])
def test_a_script_that_ends_well_on_hosts_that_are_about_to_go_has_ended_well(going: str) -> None:
    cluster = plain("a", "b")
    for host in going:
        cluster.write_notice(host, "spot reclaim", 3600.0)
    cluster.run(1.0)
    cluster.ends_well("a")
    cluster.run(1.0)
    cluster.ends_well("b")
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_one_that_has_just_agreed_with_who_is_lost_has_what_was_trained() -> None:
    """It had told of no step, and of no commit: a State of Horovod's tells of neither until it has done one."""
    cluster = stock("a")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(0.05)
    cluster.kill("a")
    cluster.until(lambda: cluster.world == ["b"])
    cluster.run(3.0)
    assert cluster.driver.outcome is None


def test_processes_that_are_left_of_a_script_without_a_loop_may_take_as_long_as_they_need() -> None:
    cluster = plain("a", "b", alone=True)
    cluster.kill("b")
    cluster.run(3000.0)
    assert not cluster.driver.over
    cluster.ends_well("a")
    cluster.until(lambda: cluster.driver.over)
    assert "rank 1 on b[0] crashed" in str(cluster.driver.outcome)


def test_who_waits_for_a_host_that_fell_silent_is_cut_off_from_it() -> None:
    cluster = plain("a", "b", alone=True)
    cluster.cut.add("b")
    cluster.until(lambda: bool(cluster.events("fenced")))
    cluster.run(1.0)
    assert cluster.cut_off == ["a"]


def test_a_script_that_tells_of_no_step_is_started_again_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Silent(Rules(Limits(start=2, settle_s=0.1)))
    started(cluster, "a", "b")
    with caplog.at_level(logging.WARNING):
        cluster.kill("a", code=7)
        cluster.run(60.0)
    assert caplog.text.count("none has told of a step or of a commit: the script is started again") == 1
    assert cluster.driver.job.generation == 2
    assert not cluster.driver.over


# --- ends of which no launcher has heard


def left_behind(kind: type[Plain], *hosts: str) -> Plain:
    """A world that the last launcher formed, and that is to be taken over."""
    cluster = kind(Rules(Limits(start=len(hosts), settle_s=0.1)))
    cluster.alone = True
    cluster.hosts(**dict.fromkeys(hosts, 1))
    cluster.inherit(*hosts)
    return cluster


def taken_over(cluster: Plain, *hosts: str) -> Plain:
    cluster.driver.tell(Expected(tuple([Host(name, 1) for name in hosts]), cluster.clock.mono() + 60.0))
    cluster.run(20.0)
    return cluster


def test_a_script_that_has_ended_while_there_was_no_launcher_is_done_and_not_run_again() -> None:
    cluster = left_behind(Plain, "a", "b")
    cluster.ends_well("a")
    cluster.ends_well("b")
    taken_over(cluster, "a", "b")
    assert (cluster.driver.over, cluster.driver.outcome) == (True, None)
    assert cluster.events("spawned") == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_rank_that_failed_while_there_was_no_launcher_fails_the_job(*, before: bool) -> None:
    cluster = left_behind(Plain, "a", "b")
    cluster.kill("a", code=7)
    if before:
        cluster.ends_well("b")
    taken_over(cluster, "a", "b")
    if not before:
        assert not cluster.driver.over
        cluster.ends_well("b")
        cluster.until(lambda: cluster.driver.over)
    assert str(cluster.driver.outcome) == "rank 0 on a[0] crashed: exit code 7; 1 of 2 processes ended well"


def test_a_script_whose_last_rank_ends_under_the_next_launcher_is_done() -> None:
    cluster = left_behind(Plain, "a", "b")
    cluster.ends_well("a")
    taken_over(cluster, "a", "b")
    assert not cluster.driver.over
    cluster.ends_well("b")
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None
    assert cluster.events("spawned") == []


def test_training_that_was_done_while_there_was_no_launcher_is_not_done_again() -> None:
    cluster = left_behind(Stock, "a", "b")
    cluster.finish()
    taken_over(cluster, "a", "b")
    assert (cluster.driver.over, cluster.driver.outcome) == (True, None)
    assert cluster.events("spawned") == []


def test_an_end_in_an_earlier_world_than_the_one_that_is_taken_over_counts_for_nothing() -> None:
    cluster = left_behind(Plain, "a", "b")
    cluster.kill("b", code=7)
    for process in cluster.training:
        process.generation = process.agreed = 8
    taken_over(cluster, "a", "b")
    cluster.ends_well("a")
    cluster.until(lambda: cluster.driver.over)
    assert cluster.driver.outcome is None


def test_what_was_lost_with_all_processes_while_there_was_no_launcher_is_told_by_the_next_one() -> None:
    cluster = left_behind(Stock, "a", "b")
    for process in cluster.training:
        process.steps = 300
        cluster.kill(process.host)
    taken_over(cluster, "a", "b")
    assert "no process is left that has trained" in str(cluster.driver.outcome)
    assert "300 steps were kept nowhere" in str(cluster.driver.outcome)


def test_an_end_that_was_heard_is_not_heard_again_when_its_agents_connection_is_back() -> None:
    cluster = Plain(Rules(Limits(start=2, settle_s=0.1)))
    cluster.alone = True
    started(cluster, "a", "b")
    cluster.kill("a", code=7)
    cluster.run(1.0)
    cluster.disconnect("a")
    cluster.reconnect("a")
    cluster.run(2.0)
    assert [event["host"] for event in cluster.events("exited")] == ["a"]
    cluster.ends_well("b")
    cluster.until(lambda: cluster.driver.over)
    assert [event["host"] for event in cluster.events("exited")] == ["a", "b"]

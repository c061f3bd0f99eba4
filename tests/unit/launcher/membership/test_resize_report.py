"""The journal line of a change of the world has its cost."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.driver.events import News
from hvd_elastic_ext.launcher.folder import state_json
from hvd_elastic_ext.launcher.folder.handover import write_noted_change
from hvd_elastic_ext.launcher.folder.state_json import Saved, saved_of
from hvd_elastic_ext.launcher.membership import resizes
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.membership.resizes import Change
from tests.support.clock import ManualClock
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.simulated_cluster import Cluster
from tests.unit.launcher.simulated_processes import Process


def causes(cluster: Cluster) -> list[str]:
    return [event["cause"] for event in cluster.events("resized")]


def said(cluster: Cluster, process: Process, message: dict[str, Any]) -> None:
    cluster.driver.tell(
        News(process.host, {"event": "said", "slot": process.slot, "life": process.life, "message": message})
    )


def first_step(cluster: Cluster, process: Process, *, pause_s: float | None) -> None:
    said(cluster, process, {"say": "first_step", "pause_s": pause_s})


def rolled_back(cluster: Cluster, process: Process, steps: int) -> None:
    said(cluster, process, {"say": "record", "event": "rolled_back", "fields": {"steps_lost": steps}})


def training(*names: str) -> Cluster:
    cluster = play(f"train {' '.join(names)}")
    cluster.run(1.0)
    for process in cluster.members:
        first_step(cluster, process, pause_s=None)
    return cluster


def test_the_line_of_a_change_waits_for_the_first_step_and_keeps_the_time_of_the_change() -> None:
    cluster = training("a", "b", "c")
    cluster.run(1.0)
    cluster.kill("c")
    cluster.run(0.02)
    rolled_back(cluster, cluster.agents["a"].processes[0], 3)
    rolled_back(cluster, cluster.agents["b"].processes[0], 5)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(0.2)
    formed = cluster.clock.mono()
    assert causes(cluster) == ["start"]
    cluster.run(1.0)
    first_step(cluster, cluster.members[1], pause_s=0.75)
    first_step(cluster, cluster.members[0], pause_s=0.5)
    start, lost = cluster.events("resized")
    assert (start["downtime_s"], start["steps_lost"]) == (None, None)
    assert (lost["cause"], lost["downtime_s"], lost["steps_lost"]) == ("worker failed", 0.75, 5)
    assert lost["mono"] < formed
    assert lost["generation"] == 2


def test_a_change_in_good_order_loses_no_steps() -> None:
    cluster = training("a", "b")
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(0.2)
    first_step(cluster, cluster.members[0], pause_s=0.125)
    (_, removed) = cluster.events("resized")
    assert (removed["downtime_s"], removed["steps_lost"]) == (0.125, 0)


@pytest.mark.parametrize("averages", [False, True])
def test_ranks_that_train_alone_between_averages_lose_no_steps_by_the_loss_of_one_that_was_ahead(
    averages: bool,
) -> None:
    cluster = training("a", "b", "c")
    for process in cluster.members:
        process.averages = averages
        process.agent._times = replace(process.agent._times, averages=float(averages))
    cluster.run(1.5)
    held = cluster.driver.job.roster.commits.held
    (ahead,) = (each for seat, each in held.items() if seat.host == "c")
    cluster.kill("c")
    ahead.reached = ahead.step + 9  # since the last average
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.run(0.2)
    for process in cluster.members:
        first_step(cluster, process, pause_s=0.1)
    assert (cluster.events("resized")[-1]["steps_lost"] == 0) == averages


def test_a_world_that_does_no_step_is_told_in_the_end_with_what_is_known() -> None:
    cluster = training("a", "b")
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(9.0)
    assert causes(cluster) == ["start"]
    cluster.run(2.0)
    (_, lost) = cluster.events("resized")
    assert (lost["downtime_s"], lost["steps_lost"]) == (None, 0)


def test_where_all_were_lost_the_time_from_the_first_end_to_the_first_step_is_the_downtime() -> None:
    cluster = training("a")
    cluster.kill("a")
    ended = cluster.clock.mono()
    cluster.until(lambda: cluster.world == ["a"] and cluster.driver.job.generation == 2, within=30.0)
    cluster.run(12.0)  # longer than the limit for former members
    assert causes(cluster) == ["start"]
    first_step(cluster, cluster.members[0], pause_s=None)
    (_, lost) = cluster.events("resized")
    assert lost["cause"] == "all were lost"
    assert lost["downtime_s"] == pytest.approx(cluster.clock.mono() - ended, abs=0.01)


def test_a_rank_0_that_is_new_does_not_hide_the_downtime_that_others_report() -> None:
    cluster = training("a", "b")
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(0.2)
    job = cluster.driver.job
    assert job.resize.change is not None
    (worker,) = job.roster.workers.values()
    new = job.resize.change.first = ProcessId(Seat("c", 0), 1)
    resizes.first_step(job, replace(worker, life=new), {"pause_s": None})
    assert job.resize.change is not None
    first_step(cluster, cluster.members[0], pause_s=0.75)
    assert cluster.events("resized")[1]["downtime_s"] == 0.75


@pytest.mark.parametrize(("step_s", "waits_s"), [(0.0, 10.0), (0.5, 10.0), (20.0, 60.0)])
def test_a_line_waits_longer_for_the_first_step_where_steps_are_long(step_s: float, waits_s: float) -> None:
    assert Change(100.0, 2, ProcessId(Seat("a", 0), 1), {}, step_s=step_s).report_due == 100.0 + waits_s


def test_the_next_change_and_the_end_write_what_is_open() -> None:
    cluster = training("a", "b", "c")
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: cluster.world == ["a", "b"])
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(0.5)
    assert causes(cluster) == ["start", "hosts removed"]
    cluster.training.finish()
    cluster.until(lambda: cluster.driver.over)
    assert causes(cluster) == ["start", "hosts removed", "hosts removed"]


def test_where_nobody_tells_of_steps_a_change_is_written_at_once() -> None:
    cluster = play("train a b")
    cluster.hosts(a=1)
    cluster.until(lambda: cluster.world == ["a"])
    assert causes(cluster) == ["start", "hosts removed"]


def test_a_start_says_where_it_is_planned_and_an_end_says_why() -> None:
    cluster = play("train a b")
    assert [(event["host"], event["rank"]) for event in cluster.events("spawned")] == [("a", 0), ("b", 1)]
    cluster.kill("b")
    cluster.until(lambda: cluster.events("exited"))
    assert cluster.events("exited")[0]["reason"] == "crashed: killed by SIGKILL"


def test_a_line_that_a_launcher_had_not_written_when_it_ended_is_written_by_the_next_one() -> None:
    cluster = training("a", "b")
    cluster.run(1.0)
    cluster.kill("b")
    cluster.until(lambda: cluster.world == ["a"])
    cluster.run(0.2)
    assert causes(cluster) == ["start"]
    saved = saved_of(cluster.driver.job, incarnation=1, ports={}, wall=5000.0, run=None)
    cluster.run(3.0)
    lines = io.StringIO()
    clock = ManualClock(mono=7.0, wall=5003.5)
    again = state_json.from_text(state_json.to_text(saved))
    write_noted_change(again, journal=Journal(lines, clock), clock=clock)
    [line] = [json.loads(each) for each in lines.getvalue().splitlines()]
    assert (line["event"], line["generation"], line["cause"], line["size"]) == ("resized", 2, "worker failed", 1)
    assert 5003.5 - line["t"] == pytest.approx(3.7, abs=0.1)


def test_nothing_is_told_where_nothing_was_noted() -> None:
    lines = io.StringIO()
    write_noted_change(Saved(1, 2), journal=Journal(lines, ManualClock()), clock=ManualClock())
    assert not lines.getvalue()

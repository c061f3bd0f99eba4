"""How many calls of commit() there are for one commit: the launcher chooses, sends, and repeats that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvd_elastic_ext.launcher.checkpoints.attempt import AHEAD_S
from hvd_elastic_ext.launcher.checkpoints.schedule import AUTO, Cadence
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId
from hvd_elastic_ext.launcher.membership.reports import take_heartbeat
from tests.unit.launcher.simulated_cluster import Cluster, JobOptions, storing
from tests.unit.launcher.simulated_processes import Process, Training


class Committing(Training):
    """Processes that report commits of ``commit_s`` and calls every ``call_s``, and that obey the launcher."""

    commit_s, call_s = 0.065, 0.2

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.goes_by: dict[tuple[ProcessId, int], int] = {}
        self.heard: list[int] = []

    def hears(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "commit_interval":
            self.heard.append(message["every"])
            self.goes_by[process.id, process.generation] = message["every"]
        super().hears(process, message)

    def beat_of(self, process: Process) -> dict[str, Any]:
        every = self.goes_by.get((process.id, process.generation), 1)
        return {**super().beat_of(process), "every": every, "commit_s": self.commit_s}

    @property
    def now_by(self) -> set[int]:
        return {self.goes_by.get((process.id, process.generation), 1) for process in self.members}


def committing(every: Cadence | None, *, commit_s: float = 0.065) -> Cluster:
    cluster = Cluster(JobOptions(commit_every=every), training=Committing)
    cluster.training.commit_s = commit_s
    cluster.hosts(a=1, b=1)
    cluster.until(lambda: len(cluster.members) == 2)
    return cluster


@pytest.mark.parametrize("every", [None, Cadence(steps=1)])
def test_without_the_option_nothing_is_said(every: Cadence | None) -> None:
    cluster = committing(every)
    cluster.run(60.0)
    assert cluster.training.heard == []
    assert cluster.events("interval") == []


def test_a_number_of_calls_is_told_to_all_once() -> None:
    cluster = committing(Cadence(steps=7))
    cluster.run(60.0)
    assert cluster.training.heard == [7, 7]
    assert cluster.events("interval") == []


def test_who_did_not_hear_it_and_who_enters_a_new_world_is_told_again() -> None:
    cluster = committing(Cadence(steps=7))
    cluster.training.lose["commit_interval"] = 2
    cluster.run(30.0)
    assert cluster.training.now_by == {7}
    cluster.hosts(a=1, b=1, c=1)
    cluster.until(lambda: len(cluster.members) == 3)
    assert cluster.training.now_by == {1}
    cluster.run(15.0)
    assert cluster.training.now_by == {7}


def test_a_launcher_that_takes_over_without_the_option_has_all_commits_made() -> None:
    cluster = committing(None)
    for process in cluster.members:
        cluster.training.goes_by[process.id, process.generation] = 40
    cluster.run(15.0)
    assert cluster.training.now_by == {1}


def test_auto_thins_commits_that_cost_more_than_a_hundredth_and_says_by_what() -> None:
    cluster = committing(AUTO)
    cluster.run(60.0)
    [line] = cluster.events("interval")
    assert line["calls"] == 33
    assert line["reason"].startswith("one in 33 calls of commit() commits: a commit takes 0.065 s and a step 0.2 s; ")
    assert cluster.training.now_by == {33}


def test_auto_says_that_cheap_commits_are_all_made() -> None:
    cluster = committing(AUTO, commit_s=0.001)
    cluster.run(60.0)
    [line] = cluster.events("interval")
    assert line["calls"] == 1
    assert line["reason"].startswith("all calls of commit() commit: ")
    assert cluster.training.heard == []


def test_auto_leaves_none_out_before_enough_were_measured() -> None:
    cluster = committing(AUTO)
    cluster.until(lambda: cluster.events("interval"))
    newest = max(worker.step for worker in cluster.driver.job.roster.workers.values())
    assert newest >= 5


def test_where_worlds_are_lost_often_fewer_are_left_out() -> None:
    cluster = committing(AUTO, commit_s=0.2)
    cluster.run(60.0)
    first = cluster.events("interval")[-1]["calls"]
    for number in range(5):
        cluster.lose_world("b")
        cluster.until(lambda number=number: cluster.driver.job.world.rollbacks == number + 1)
        cluster.run(12.0)
    last = cluster.events("interval")[-1]
    assert last["calls"] < first == 100
    assert "seen" in last["reason"]
    assert cluster.training.now_by == {last["calls"]}


class Sealed(Training):
    """Five calls of commit() a second, one in 33 of which commits. ``named``: how far ahead the named commits were."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.named: list[int] = []

    def beat_of(self, process: Process) -> dict[str, Any]:
        return {**super().beat_of(process), "every": 33, "commit_s": 0.1, "call_s": 0.2}

    def hears(self, process: Process, message: Mapping[str, Any]) -> None:
        if message["tell"] == "keep" and message["commit"] is not None:
            self.named.append(message["commit"][2] - process.batch)
        super().hears(process, message)


def test_a_commit_to_keep_is_named_as_far_ahead_as_all_calls_that_commit_then() -> None:
    cluster = Cluster(storing("30"), training=Sealed)
    cluster.hosts(a=1, b=1)
    cluster.run(60.0)
    assert cluster.events("sealed")
    assert min(cluster.training.named) > 5 * AHEAD_S  # by the number of commits, one a second, it would be 2


@pytest.mark.parametrize("text", ["33", 1.5, None, True, []])
def test_a_beat_with_odd_numbers_is_none(text: object) -> None:
    worker = Worker.__new__(Worker)
    worker.step = worker.progress = 0
    worker.holds = None
    take_heartbeat(worker, {"every": text, "commit_s": str(text), "call_s": None}, 0.0)
    assert worker.every is None
    assert worker.commit_s is None
    assert worker.commits_per_s == 0.0


def test_the_time_between_calls_says_how_far_ahead_a_commit_is_named() -> None:
    worker = Worker.__new__(Worker)
    worker.step = worker.progress = 0
    worker.holds = None
    take_heartbeat(worker, {"every": 33, "commit_s": 0.05, "call_s": 0.2}, 0.0)
    assert worker.commits_per_s == 4.0

"""The state of a job is one value: a copy is equal to it, and the driver treats both in the same way."""

from __future__ import annotations

import copy

import pytest

from hvd_elastic_ext.launcher.checkpoints import save_then_stop
from hvd_elastic_ext.launcher.custody import custody
from hvd_elastic_ext.launcher.driver import plan
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health import link_loss, pace
from hvd_elastic_ext.launcher.membership import processes, shortage
from hvd_elastic_ext.launcher.membership.rendezvous import TOO_LARGE, ProcessId, RendezvousAnswer, Seat
from hvd_elastic_ext.launcher.reporting import all_waits
from tests.unit.launcher.scenarios import play
from tests.unit.launcher.state_changes import small_job

SITUATIONS = {
    "no host": "begin start=2",
    "agents and processes start": "start a b",
    "training": "train a b; run 10",
    "a member is lost": "train a b; run 3; kill a",
    "a host is blamed": "train a b c; run 3; kill b; run 5",
}


@pytest.fixture(params=SITUATIONS.values(), ids=list(SITUATIONS))
def job(request: pytest.FixtureRequest) -> JobState:
    state: JobState = play(request.param, every="5s").driver.job
    return state


def test_a_copy_is_equal_and_the_next_look_at_it_does_the_same(job: JobState) -> None:
    copied = copy.deepcopy(job)
    assert copied == job
    job.now = copied.now = job.now + 1.0
    assert plan.look(copied) == plan.look(job)
    assert copied == job
    assert copied.to_do == job.to_do
    copied.faults.first = "only in the copy"
    assert copied != job


def test_facts_change_nothing(job: JobState) -> None:
    before = copy.deepcopy(job)
    for fact in (
        all_waits.waits_for,
        all_waits.status,
        link_loss.link_is_back_by,
        save_then_stop.next_look,
        pace.pause_of,
        shortage.why_short,
        custody.is_awaited,
        custody.candidates,
        custody.next_look,
    ):
        fact(job)
    custody.is_needed_of(job, "a")
    processes.starting(job, job.now)
    assert job == before
    assert not job.to_do


def test_processes_that_ended_are_not_kept_among_those_with_refused_values() -> None:
    job = small_job()
    lives = [worker.life for worker in job.roster.workers.values()]
    for life in lives:
        job.answer([RendezvousAnswer(life, 1, TOO_LARGE, b"")])
    assert job.excessive == {*lives}
    job.roster.remove(job.roster.on("a")[0])
    job.roster.remove(job.roster.on("b")[0])
    job.answer([RendezvousAnswer(ProcessId(Seat("a", 0), 3), 1, TOO_LARGE, b"")])
    assert job.excessive == {lives[2], ProcessId(Seat("a", 0), 3)}

"""What heartbeats tell of the length of steps."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.membership.reports import take_heartbeat
from hvd_elastic_ext.launcher.membership.world_change import Stage
from hvd_elastic_ext.worker.process.link import Status


@pytest.fixture
def worker() -> Worker:
    return Worker(ProcessId(Seat("a", 0), 1), Host("a", 1), Stage.LIVE, 0.0)


def beat(worker: Worker, at: float, **fields: object) -> None:
    take_heartbeat(worker, fields, at)


def test_no_iteration_is_shorter_than_its_step_however_late_heartbeats_come(worker: Worker) -> None:
    """Each step takes 0.1 s. On a busy machine heartbeats are late, and are sent between a step and its commit."""
    for steps, committed, sent in ((10, 10, 1.0), (20, 19, 2.9), (27, 27, 3.1), (30, 25, 3.9)):
        stepped = (steps, 500.0 + 0.1 * steps)
        beat(worker, sent, progress=2 * steps, step=committed, stepped=list(stepped), stepped_at=stepped[1])
        assert worker.iteration_s is None or worker.iteration_s == pytest.approx(0.1)
    assert worker.iteration_s is not None


def test_a_commit_without_a_step_is_not_an_iteration(worker: Worker) -> None:
    beat(worker, 1.0, progress=1, step=1, stepped=[1, 1.0])
    beat(worker, 2.0, progress=2, step=2, stepped=[2, 1.5])
    beat(worker, 2.1, progress=3, step=2, stepped=[2, 1.5])
    assert worker.iteration_s == 0.5


def test_the_first_step_in_a_world_is_not_measured_because_it_waits_for_others(worker: Worker) -> None:
    beat(worker, 1.0, progress=1, stepped=[1, 1.0])
    worker.generation, worker.moved_at = 2, 0.0  # as when it enters the next world
    beat(worker, 9.0, progress=2, stepped=[1, 1.0])
    beat(worker, 10.0, progress=3, stepped=[2, 10.0])
    assert worker.iteration_s is None
    beat(worker, 11.0, progress=4, stepped=[4, 10.5])
    assert worker.iteration_s == 0.25


@pytest.mark.parametrize("stepped", [None, 3, [1], [1, "x"], ["x", 1.0], [1, 2, 3], {}])
def test_a_malformed_report_of_steps_is_not_one(worker: Worker, stepped: object) -> None:
    beat(worker, 1.0, progress=1, stepped=stepped)
    assert worker.stepped is None


def test_the_number_of_steps_and_the_time_of_the_last_one_are_set_at_once() -> None:
    status = Status()
    status.step_ended(1.0)
    status.step_ended(1.5)
    assert status.stepped == (2, 1.5)

"""Training continues from the newest commit that any agent holds, even if no process of that agent takes part."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.chaos.checker import violations
from tests.faults.chaos.job import COMMIT_EVERY, Job
from tests.faults.chaos.lines import Line
from tests.support import marks
from tests.support.waiting import wait_until

BESIDE = "127.0.0.1"
THIRD = "127.0.0.2"
MORE = 40
"""Steps that are done after all faults."""


def kill(job: Job, *hosts: str) -> None:
    """Kill the training processes of these hosts with SIGKILL, all at once."""
    victims = [each.pid for each in job.processes() if each.host in hosts]
    assert len(victims) == len(hosts)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(marks.start_time, victims)), what="their ends")


def kill_at_once(job: Job, first: str, second: str) -> None:
    """Kill the processes of both hosts of the world at the same moment."""
    kill(job, first, second)


def kill_in_turn(job: Job, first: str, second: str) -> None:
    """Kill one process. Kill the other one when the launcher has noticed and is about to form a world without the
    first.

    The other one is stopped meanwhile: otherwise it might be in that world before it is killed.
    """
    [other] = [each.pid for each in job.processes() if each.host == second]
    os.kill(other, signal.SIGSTOP)
    kill(job, first)
    wait_until(lambda: job.records("exited"), what="its end in the journal", interval=0.05)
    kill(job, second)


def committed(job: Job, host: str) -> int:
    """Return the newest commit that a host's agent was seen to hold; 0 if there is none."""
    job.watch.look()
    agent = job.watch.on(host)
    return 0 if agent is None else agent.step


def check_to_the_end(job: Job, *, held: int, entries: int) -> Line:
    """Check the entry after ``entries`` entries: training continues at a commit, loses nothing else, journals the loss,
    and ends well. Return that entry."""
    job.wait_for("another world", lambda: len(job.entries()) > entries)
    entry = job.entries()[entries]
    assert held <= entry.number, job.details()
    shown = job.last_step(until=entry.at)
    assert shown - COMMIT_EVERY <= entry.number <= shown
    goal = job.set_goal(MORE)
    assert job.wait(90.0) == 0, job.details()
    assert violations(job.seen(goal=goal)) == []
    _, *later = job.records("resized")
    lost = [record.get("steps_lost") for record in later]
    assert lost
    assert all(isinstance(steps, int) and 0 <= steps <= COMMIT_EVERY for steps in lost), lost
    assert not job.left_behind()
    return entry


@pytest.mark.timeout(300)
@pytest.mark.soak
@pytest.mark.parametrize("kill_both", [kill_at_once, kill_in_turn])
def test_when_all_processes_are_killed_a_parked_newcomer_continues_from_their_last_commit(
    tmp_path: Path, kill_both: Callable[[Job, str, str], None]
) -> None:
    options = ("-np", "2", "--min-np", "1", "--settle", "30", "--blacklist-cooldown-range", "3", "10")
    with Job(tmp_path, f"{tmp_path.name}-{os.getpid()}", *options) as job:
        job.set_hosts(f"localhost:1\n{BESIDE}:1\n")
        job.start()
        job.wait_for("steps of both", lambda: job.last_step(size=2) > 20)
        job.set_hosts(f"localhost:1\n{BESIDE}:1\n{THIRD}:1\n")
        job.wait_for("a parked newcomer", lambda: [r for r in job.records("parked") if r.get("host") == THIRD])
        assert [line.number for line in job.entries()] == [0, 0]
        held = max(committed(job, "localhost"), committed(job, BESIDE))
        assert held > 20
        kill_both(job, "localhost", BESIDE)
        check_to_the_end(job, held=held, entries=2)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_training_continues_from_the_newest_commit_even_of_a_host_that_is_not_listed(
    tmp_path: Path,
) -> None:
    options = ("-np", "2", "--min-np", "1", "--settle", "0.2", "--blacklist-cooldown-range", "60", "60")
    with Job(tmp_path, f"{tmp_path.name}-{os.getpid()}", *options) as job:
        job.set_hosts(f"localhost:1\n{BESIDE}:1\n")
        job.start()
        job.wait_for("steps of both", lambda: job.last_step(size=2) > 20)
        kill(job, BESIDE)
        older = committed(job, BESIDE)
        job.wait_for("steps of one alone", lambda: job.last_step(size=1) > older + 80)
        assert 20 <= committed(job, BESIDE) <= older + COMMIT_EVERY
        held, entries = committed(job, "localhost"), len(job.entries())
        kill(job, "localhost")
        job.wait_for("its next process", lambda: any(each.host == "localhost" for each in job.processes()))
        job.set_hosts(f"{BESIDE}:1\n")
        entry = check_to_the_end(job, held=held, entries=entries)
        assert entry.fields["host"] == BESIDE or entry.number_of("size") > 1


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_process_killed_at_its_start_does_not_end_a_job_that_trained_before(
    tmp_path: Path,
) -> None:
    options = ("-np", "1", "--min-np", "1", "--settle", "0.2", "--blacklist-cooldown-range", "2", "10")
    with Job(tmp_path, f"{tmp_path.name}-{os.getpid()}", *options) as job:
        job.set_hosts("localhost:1\n")
        job.start()
        job.wait_for("steps", lambda: job.last_step() > 20)
        held = committed(job, "localhost")
        job.kill_launcher()
        kill(job, "localhost")
        job.start()
        job.wait_for("another process", job.processes)
        kill(job, "localhost")
        check_to_the_end(job, held=held, entries=1)

"""A host's agent gets a signal, reads a notice, or is stopped with all its processes and continues."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.agent.prestop import notice_files
from tests.faults.launcher.stepping_jobs import Training, training
from tests.support import marks
from tests.support.waiting import wait_until

__all__ = ["training"]

BESIDE = "127.0.0.1"


def agent_of(training: Training, host: str) -> int:
    """Return a host's agent: the parent of the supervisor of a training process."""
    return marks.parent(marks.parent(training.pids()[host]))


def gone(*pids: int) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@contextlib.contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Stop processes for a while, like a paused virtual machine: their connections stay open."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_host_leaves_without_loss_by_a_signal_or_a_notice_file_and_returns(
    training: Training, tmp_path: Path
) -> None:
    named = tmp_path / "annotations"
    training.set_hosts("localhost:1", f"{BESIDE}:1")
    env = {"HVD_ELASTIC_NOTICE_FILE": str(named)}
    with training.train("-np", "2", "--heartbeat-timeout", "20", env=env) as process:
        training.wait_for_size(2)
        signalled = agent_of(training, BESIDE)
        os.kill(signalled, signal.SIGTERM)
        training.wait_for("a world without it", lambda: training.causes()[-1] == "hosts removed")
        assert training.last("notice").get("host") == BESIDE
        training.wait_for_size(1)
        wait_until(lambda: gone(signalled), what="the end of the agent", timeout=60)
        training.wait_for("its return", lambda: training.causes()[-1] == "hosts added")
        training.wait_for_size(2)
        assert training.events("exited")[0].get("cause") == "told to leave"

        agent = agent_of(training, BESIDE)
        assert agent != signalled
        (path,) = map(Path, notice_files(agent))
        path.write_text("drained by Ops\n")
        training.wait_for("a world without it", lambda: training.causes()[-1] == "hosts removed")
        assert training.last("notice").get("reason") == "drained by Ops"
        training.wait_for_size(1)
        path.unlink()
        training.wait_for("its return", lambda: training.causes()[-1] == "hosts added")
        training.wait_for_size(2)
        assert agent_of(training, BESIDE) == agent
        training.check_uninterrupted("localhost")
        moves = ["start", *2 * ["hosts removed", "hosts added"]]
        assert training.causes() == moves
        assert [record.get("steps_lost") for record in training.events("resized")[1:]] == [0, 0, 0, 0]

        before = len(training.events("notice"))
        named.write_text("maintenance")  # on every host
        training.wait_for("both notices", lambda: len(training.events("notice")) == before + 2)
        shown = len(training.shown())
        # The host with the first notice may have left by then.
        training.wait_for("further steps", lambda: len(training.shown()) > shown + 20)
        assert process.returncode is None
    training.check_steps()
    assert training.causes() in (moves, [*moves, "hosts removed"])
    assert not training.events("struck", "fenced", "rolled_back")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_paused_host_that_is_no_longer_listed_keeps_nothing_when_it_continues(training: Training) -> None:
    training.set_hosts("localhost:1", f"{BESIDE}:1")
    with training.train("-np", "2", "--heartbeat-timeout", "6") as process:
        training.wait_for_size(2)
        worker = training.pids()[BESIDE]
        supervisor = marks.parent(worker)
        there = (marks.parent(supervisor), supervisor, worker)
        with paused(*there):
            training.wait_for("a world without it", lambda: training.causes()[-1] == "worker failed")
            training.set_hosts("localhost:1")
            training.wait_for_size(1, more=20)
            assert not gone(*there)
        wait_until(lambda: gone(*there), what="the end of what stood still", timeout=60, show=lambda: process.output)
        training.wait_for_size(1)
        assert process.returncode is None
    training.check_steps()
    assert training.causes() == ["start", "worker failed"]

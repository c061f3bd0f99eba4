"""One script, every launcher."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.comms.conftest import without_mpi
from tests.integration.anywhere.script_runs import (
    BESIDE,
    COMMIT_EVERY,
    QUIET,
    SCRIPT,
    assert_finished_alike,
    events,
    script,
    torchrun,
)
from tests.support import marks
from tests.support.ports import free_port
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

STEPS = 250
"""Under torchrun: far more than are done until the test has seen what it wanted and lets the rest pass quickly."""

EACH_ROUND_A_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torch 2.13 cannot take in another node: see docs/comms.md."""


@pytest.mark.soak
def test_the_same_script_trains_to_its_end_under_hvd_elastic_run(tmp_path):
    hosts = ["-np", "2", "-H", "localhost:1,127.0.0.1:1", "--journal", str(tmp_path / "journal")]
    command = [BESIDE / "hvd-elastic", "run", *hosts, sys.executable, *script(tmp_path, steps=60, pause=0)]
    with run_process(command, env=QUIET, cwd=tmp_path) as job:
        assert job.wait(timeout=100) == 0, job.output
    assert_finished_alike(events(tmp_path, "done"), ranks=2, steps=60)


@pytest.mark.soak
@pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))
def test_the_same_script_trains_to_its_end_under_mpirun(tmp_path):
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
    with run_process([*start, *script(tmp_path, steps=60, pause=0)], env=QUIET) as job:
        assert job.wait(timeout=100) == 0, job.output
    assert_finished_alike(events(tmp_path, "done"), ranks=2, steps=60)


@pytest.mark.soak
def test_the_same_script_trains_to_its_end_alone(tmp_path):
    with run_process([sys.executable, *script(tmp_path, steps=60, pause=0)], env=QUIET) as job:
        assert job.wait(timeout=100) == 0, job.output
    assert_finished_alike(events(tmp_path, "done"), ranks=1, steps=60)


def said(directory, event, **facts):
    return [found for found in events(directory, event) if facts.items() <= found.items()]


def wait_for(jobs, directory, event, *, at_least, **facts):
    """Wait until an event of that kind tells of so many steps."""
    return wait_until(
        lambda: [found for found in said(directory, event, **facts) if found["step"] >= at_least],
        what=f"{event} {facts} at step {at_least} or later",
        timeout=60,
        show=lambda: "\n".join(job.output for job in jobs),
    )[0]


def begun(directory: Path) -> list[dict[str, Any]]:
    """Beginnings, but for those of a round that is over already: see :func:`finish`."""
    return [event for event in said(directory, "begin") if event["step"] < STEPS]


def steps_lost(directory: Path) -> Iterator[int]:
    """For each later beginning: how far the job had come, less where it went on. Rank 0's steps tell."""
    beginnings = sorted({event["step"] for event in begun(directory)})
    told = {event["pid"]: 0 for event in events(directory)}
    for event in said(directory, "step"):
        told[event["pid"]] = max(told[event["pid"]], event["step"])
    for start in beginnings[1:]:
        before = [event["pid"] for event in begun(directory) if event["step"] < start]
        yield max(told[pid] for pid in before) - start


@pytest.fixture
def runtime():
    """A folder for the keepers' sockets, with a short name; empty again at the end."""
    with tempfile.TemporaryDirectory(prefix="hvdt-") as folder:
        yield Path(folder)
        wait_until(lambda: not list(Path(folder).iterdir()), what="the keepers' end")


def agent(
    directory: Path, endpoint: int, env: dict[str, str], *, last_call: float
) -> AbstractContextManager[RunningProcess]:
    command = [*torchrun(endpoint, last_call=last_call), SCRIPT, directory, str(STEPS), "0.1"]
    return run_process(command, env={**QUIET, **env})


def kill(victims, jobs, directory):
    """Kill workers, and wait until others are at work in a world of two."""
    before = {event["pid"] for event in events(directory)}
    marks.kill(victims)
    wait_until(
        lambda: {event["pid"] for event in said(directory, "committed", size=2)} - before,
        what="a commit of the next world",
        timeout=100,
        show=lambda: "\n".join(job.output for job in jobs),
    )


def finish(jobs, directory):
    (directory / "hurry").touch()
    for job in jobs:
        assert job.wait(timeout=100) == 0, job.output
        # An agent whose store lived in the other one, which has ended already, logs that; it ends well all the same.
        assert "Traceback" not in re.sub(r".*elastic/agent/server/api\.py:.*", "", job.output)
    # Of those that began and were killed, or ended to begin again, none was there at the end.
    # But a round that is over may be begun again where torchrun sees only then that a node waits; it ends alike.
    done = said(directory, "done")
    assert_finished_alike(list({event["rank"]: event for event in done}.values()), ranks=2, steps=STEPS)
    assert len({event["fingerprint"] for event in done}) == 1


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_under_torchrun_a_killed_worker_goes_on_from_its_commit(tmp_path, runtime):
    """Two agents from the start, as torchrun comes: with one store for all its rounds."""
    endpoint, env = free_port(), {"XDG_RUNTIME_DIR": str(runtime)}
    both = (agent(tmp_path, endpoint, env, last_call=60) for _ in range(2))  # no world of one, however slow one is
    with next(both) as one, next(both) as other:
        jobs = (one, other)
        victim = wait_for(jobs, tmp_path, "committed", rank=1, at_least=2 * COMMIT_EVERY)
        kill([victim["pid"]], jobs, tmp_path)
        finish(jobs, tmp_path)
    assert {event["step"] % COMMIT_EVERY for event in begun(tmp_path)} == {0}
    (lost,) = steps_lost(tmp_path)
    assert 0 <= lost <= COMMIT_EVERY
    assert len(begun(tmp_path)) == 4


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_under_torchrun_a_node_joins_and_its_killed_worker_joins_again(tmp_path, runtime):
    endpoint, env = free_port(), {**EACH_ROUND_A_STORE, "XDG_RUNTIME_DIR": str(runtime)}
    with agent(tmp_path, endpoint, env, last_call=1) as one:
        wait_for([one], tmp_path, "committed", size=1, at_least=COMMIT_EVERY)
        with agent(tmp_path, endpoint, env, last_call=1) as other:
            jobs = (one, other)
            joined = wait_for(jobs, tmp_path, "committed", size=2, at_least=COMMIT_EVERY)
            newcomer = said(tmp_path, "begin", pid=joined["pid"])[0]
            assert newcomer["step"] >= COMMIT_EVERY, "the first one's commit was lost"
            victims = [event["pid"] for event in said(tmp_path, "begin", size=2, rank=1)]
            kill(victims, jobs, tmp_path)
            finish(jobs, tmp_path)
    lost = list(steps_lost(tmp_path))
    assert len(lost) >= 2  # a slow agent may miss a round, which makes one more
    assert all(0 <= steps <= COMMIT_EVERY for steps in lost)

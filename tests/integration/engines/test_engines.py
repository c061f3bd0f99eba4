"""Real jobs of torchrun's way and of Debian's ``mpirun``: hosts come and go, ranks are killed, everything is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys

import psutil
import pytest

from tests.contract.comms.conftest import without_mpi
from tests.integration.engines.conftest import LEARNER, Job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
needs_mpi = pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi()))
COMMIT_EVERY = 5
"""Steps of the learner from one commit to the next."""
ENGINES = ("torch", "torchrun", pytest.param("mpirun", marks=needs_mpi))


def ranks_of(job: Job, size: int) -> dict[int, int]:
    """Process of each rank of the newest world of that size."""
    found = re.findall(rf"\[(\d+)\]<stdout>:goes on count=\d+ size={size} pid=(\d+)", job.process.output)
    return {int(rank): int(pid) for rank, pid in found[-size:]}


def check_is_the_newest_commit(job: Job, step: int, *, size: int, begun_at: int) -> None:
    """It is the last commit that rank 0 of that world has told of, or the next one, of which it had not told yet."""
    known = max((r.get("step") for r in job.events("committed") if r.get("size") == size), default=begun_at)
    done = max((r.get("step") for r in job.events("stepped") if r.get("size") == size), default=begun_at)
    coming = (known // COMMIT_EVERY + 1) * COMMIT_EVERY
    assert step == known or (step == coming and step - 1 <= done <= step), (step, known, done)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_grows_without_losing_a_step_and_goes_on_from_the_last_commit_when_a_rank_is_killed(
    job: Job, engine: str
) -> None:
    job.set_hosts("a:1", "b:1")
    with job.run(*job.command(engine)):
        assert job.wait_for_world(2) == 0
        job.set_hosts("a:1", "b:1", "c:1")
        grown_at = job.wait_for_world(3)
        drained = [r for r in job.events("committed", "stepped") if r.get("size") == 2]
        assert grown_at == max(record.get("step") for record in drained)
        job.wait_for("its first step", lambda: job.events("resized")[1:])
        os.kill(ranks_of(job, 3)[2], signal.SIGKILL)
        mended_at = job.wait_for_world(2, number=2)
        check_is_the_newest_commit(job, mended_at, size=3, begun_at=grown_at)
        done = re.findall(r"done count=(\d+) fingerprint=(\w+)", job.stop())
    assert len(done) == 2
    assert len(set(done)) == 1
    causes = [record.get("cause") for record in job.events("resized")]
    assert causes == ["start", "hosts added", "worker failed"]
    assert [record.get("subject") for record in job.events("struck")] == ["slot 0 of c"]
    assert job.events("resized")[1].get("steps_lost") == 0
    assert job.events("resized")[1].get("downtime_s") > 0


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_of_which_everything_is_lost_goes_on_from_its_durable_checkpoint(job: Job, engine: str) -> None:
    job.set_hosts("a:2")
    durable = ("--checkpoint-dir", str(job.directory / "checkpoints"), "--checkpoint-every", "20")
    with job.run(*job.command(engine, *durable)):
        job.wait_for_world(2)
        job.wait_for("a checkpoint", lambda: job.counted("sealed"), timeout=120.0)
        below = psutil.Process(job.process.pid).children(recursive=True)
        mpiruns = [each for each in below if each.name() == "mpirun"]  # which clears away what its ranks leave
        for each in [psutil.Process(job.process.pid), *below]:
            if each not in mpiruns:
                with contextlib.suppress(psutil.NoSuchProcess):  # what writes a checkpoint ends by itself
                    each.kill()
        job.process.wait(60)
        psutil.wait_procs(mpiruns, timeout=60)
    sealed = job.counted("sealed")[-1]
    (job.directory / "state").rename(job.directory / "lost")
    with job.run(*job.command(engine, *durable)):
        resumed_at = job.wait_for_world(2)
        job.stop()
    assert resumed_at >= sealed > 0
    assert [record.get("step") for record in job.events("resumed")] == [resumed_at]


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_a_world_outlives_its_launcher_and_the_next_one_goes_on_with_it(job: Job, engine: str) -> None:
    job.set_hosts("a:1")
    with job.run(*job.command(engine, processes=1)) as first:
        job.wait_for_world(1)
        [pid] = ranks_of(job, 1).values()
        first.kill()
        first.wait(60)
        known = len(job.events("stepped"))
        with job.run(*job.command(engine, processes=1)):
            job.wait_for("steps told to the next launcher", lambda: len(job.events("stepped")) > known + 3)
            assert psutil.pid_exists(pid)
            assert not job.events("exited")
            job.set_hosts("a:1", "b:1")
            assert job.wait_for_world(2) > 0
            job.stop()
    assert [record.get("cause") for record in job.events("resized")] == ["start", "hosts added"]


OF_MPI4PY = "from mpi4py import MPI; w = MPI.COMM_WORLD; print('sum', w.allreduce(w.rank + 1), w.rank, w.size)"
OF_TORCH = (
    "import torch, torch.distributed as d; d.init_process_group('gloo'); x = torch.ones(1) + d.get_rank(); "
    "d.all_reduce(x); print('sum', int(x), d.get_rank(), d.get_world_size()); "
    "d.barrier(); d.destroy_process_group()"  # else torch may abort at the end of a process
)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("engine", "script"), [pytest.param("mpirun", OF_MPI4PY, marks=needs_mpi), ("torchrun", OF_TORCH)]
)
def test_a_script_that_does_not_know_us_runs_as_under_its_own_launcher(job: Job, engine: str, script: str) -> None:
    job.set_hosts("a:1", "b:1")
    with job.run(*job.command(engine, script=(sys.executable, "-c", script))) as process:
        assert process.wait(200) == 0, process.output
    assert sorted(re.findall(r"\[(\d)\]<stdout>:(sum .*)", process.output)) == [("0", "sum 3 0 2"), ("1", "sum 3 1 2")]


@pytest.mark.soak
def test_a_script_of_horovods_is_told_what_to_call_instead(job: Job) -> None:
    job.set_hosts("a:1")
    script = (sys.executable, "-c", "import horovod.torch as hvd; hvd.init()")
    with job.run(*job.command("torchrun", "--failure-budget", "0", processes=1, script=script)) as process:
        assert process.wait(200) == 1
    assert "hvd.init(): with --engine torchrun Horovod has no world; call elastic.init() instead" in process.output


def test_without_mpirun_that_is_said_in_one_line(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    job.set_hosts("a:1")
    with job.run(*job.command("mpirun", script=(sys.executable, str(LEARNER), "1"), processes=1)) as process:
        assert process.wait(120) == 2
    assert process.stderr.count("\n") == 1 + process.stderr.count("starting for")
    assert "--engine mpirun: there is no mpirun on this machine; apt-get install openmpi-bin" in process.stderr


def agent_of(job: Job, host: str) -> int:
    """Process of the agent on a host: what the launcher has started and the host's ranks are below."""
    pids = {record.get("host"): record.get("pid") for record in job.events("spawned")}
    mine = {child.pid for child in psutil.Process(job.process.pid).children()}
    return next(parent.pid for parent in psutil.Process(pids[host]).parents() if parent.pid in mine)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_below_its_minimum_such_a_job_sleeps_and_wakes_at_its_last_commit(job: Job, engine: str) -> None:
    job.set_hosts("a:1", "b:1")
    sleeps = (
        "--below-min",
        "sleep",
        "--sleep-after",
        "2",
        "--settle",
        "0.5",
        "--min-np",
        "2",
        "--blacklist-cooldown-range",
        "1",
        "1",
    )
    durable = ("--checkpoint-dir", str(job.directory / "checkpoints"), "--checkpoint-every", "notice")
    with job.run(*job.command(engine, *sleeps, *durable)) as process:
        job.wait_for_world(2)
        job.wait_for("a commit", lambda: any(step > 0 for step in job.counted("committed")))
        lost = psutil.Process(agent_of(job, "b"))
        for each in [lost, *lost.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        job.set_hosts("a:1")
        job.wait_for("the job to sleep", lambda: job.events("slept"), timeout=120.0)
        [night] = job.events("slept")
        wait_until(lambda: process.tree() == [], what="no process but the launcher", timeout=30.0)
        job.set_hosts("a:1", "b:1")
        woken_at = job.wait_for_world(2, number=2)
        job.stop()
    assert woken_at == night.get("step") > 0


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
def test_the_end_of_training_is_in_the_last_checkpoint_and_the_same_command_starts_nothing(
    job: Job, engine: str
) -> None:
    job.set_hosts("a:2")
    durable = ("--checkpoint-dir", str(job.directory / "checkpoints"), "--checkpoint-every", "notice")
    command = job.command(engine, *durable, script=(sys.executable, str(LEARNER), "60"))
    with job.run(*command) as first:
        assert first.wait(240) == 0, first.output
    assert job.counted("sealed") == [60]
    spawned = len(job.events("spawned"))
    with job.run(*command) as again:
        assert again.wait(120) == 0, again.output
        assert "the job is done: step 60" in again.output
    assert len(job.events("spawned")) == spawned

"""Faults around durable checkpoints: training continues, no process waits for ever, and a later checkpoint is
sealed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from hvd_elastic_ext.core.journal import Record
from tests.faults.launcher.checkpointed import Checkpointed, job, wait_until_gone
from tests.faults.launcher.stepping_jobs import COMMIT_EVERY
from tests.faults.launcher.test_agent_faults import agent_of
from tests.support import marks
from tests.support.pages import Answer, read_back
from tests.support.waiting import wait_until

__all__ = ["job"]

BESIDE = "127.0.0.1"
THIRD = "127.0.0.2"
HOSTS = ("localhost:1", f"{BESIDE}:1")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_after_a_launcher_is_killed_during_a_checkpoint_the_next_one_seals_another(
    job: Checkpointed,
) -> None:
    job.set_hosts(*HOSTS)
    with job.go() as first:
        job.wait_for_sealed()
        written = job.stopped_helpers(2)
        pids, before = job.pids(), job.sealed()
        first.kill()
        first.wait()
        with job.go():
            job.wait_for_sealed(2)
            wait_until_gone(written)
            assert job.pids() == pids
            assert job.sealed()[-1] > before[-1]
            job.wait_for_size(2)
    job.check_never_interrupted()
    assert job.causes() == ["start"]
    job.check_whole()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_processes_that_stay_for_a_last_checkpoint_train_on_with_the_next_launcher(
    job: Checkpointed,
) -> None:
    job.every = "notice"
    job.set_hosts(*HOSTS)
    with job.go() as first:
        job.wait_for_size(2)
        written = job.stopped_helpers(2, after=lambda: first.send_signal(signal.SIGTERM))
        pids = job.pids()
        first.kill()
        first.wait()
        with job.go() as second:
            job.wait_for_size(2)
            assert job.pids() == pids
            wait_until_gone(written)
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 143, second.output
    [sealed] = job.sealed()
    job.check_never_interrupted()
    assert job.steps()[-1] == sealed
    job.check_whole(sealed)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_agent_killed_while_its_helper_writes_costs_that_checkpoint_and_no_other(job: Checkpointed) -> None:
    job.set_hosts(*HOSTS)
    with job.go() as process:
        for host in (BESIDE, "localhost"):
            job.wait_for_sealed()
            written = job.stopped_helpers(2)
            agent, known = agent_of(job, host), len(job.causes())
            assert agent in [helper.agent for helper in written]
            os.kill(agent, signal.SIGKILL)
            wait_until(lambda agent=agent: marks.start_time(agent) is None, what="the end of the agent")
            before = job.sealed()[-1]
            job.check_whole(before)
            job.wait_for("a world without it", lambda known=known: "worker failed" in job.causes()[known:])
            wait_until_gone(written)
            job.wait_for("a later checkpoint", lambda before=before: job.sealed()[-1] > before)
            job.wait_for("its return", lambda: job.causes()[-1] == "cooldown over")
            job.wait_for_size(2)
        job.wait_for_sealed()
        assert process.returncode is None
    job.check_steps()
    job.check_whole()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_process_after_one_killed_during_a_write_does_not_change_that_commit(
    job: Checkpointed,
) -> None:
    job.set_hosts(*HOSTS)
    with job.go() as process:
        job.wait_for_sealed()
        written = job.stopped_helpers(2)
        [helper] = [helper for helper in written if helper.agent == agent_of(job, BESIDE)]
        side = helper.kept_side()
        job.wait_for_size(2, more=20)  # enough steps for every side to be used again
        assert side.spoiled() is None
        assert side.is_kept
        pid, before, spoiled = job.pids()[BESIDE], job.sealed()[-1], list[str]()
        dropped: list[bool] = []
        os.kill(pid, signal.SIGKILL)

        def later() -> bool:
            if not dropped:  # from then on it is free, and may be kept for another commit
                spoiled.extend(filter(None, [side.spoiled()]))
                dropped.extend([] if side.is_kept else [True])
            return job.sealed()[-1] > before and job.causes()[-1] == "cooldown over"

        job.wait_for("its return, and a later checkpoint", later)
        side.close()
        assert not spoiled
        assert job.pids()[BESIDE] != pid
        wait_until_gone(written)
        job.wait_for_size(2)
        job.wait_for_sealed()
        assert process.returncode is None
    job.check_steps()
    job.check_whole()


class Disk:
    """A small file system for the job's storage, in a mount namespace of its launcher's."""

    def __init__(self, job: Checkpointed) -> None:
        script = 'mount -t tmpfs -o size=256k,mode=0755 tmpfs "$0" || exit 77; exec "$@"'
        self._job = job
        self._place = job.checkpoints.parent
        self.wrap = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(self._place))

    @property
    def inside(self) -> Path:
        """The folder as the job sees it."""
        return Path(f"/proc/{self._job.process.pid}/root{self._place}")

    def fill(self) -> None:
        with (self.inside / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                return

    def empty(self) -> None:
        (self.inside / "filler").unlink()

    def forbid(self) -> None:
        self._remount("ro")

    def allow(self) -> None:
        self._remount("rw")

    def _remount(self, how: str) -> None:
        pid = str(self._job.process.pid)
        mount = ["mount", "-o", f"remount,{how}", str(self._place)]
        enter = ["nsenter", "--user", "--mount", "--target", pid, "--preserve-credentials"]
        # The remount is refused while a file is open for writing, for example one of a checkpoint.
        wait_until(lambda: subprocess.run([*enter, *mount], check=False).returncode == 0, what=f"a disk that is {how}")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_training_continues_on_full_storage_and_a_checkpoint_is_sealed_once_there_is_room(
    job: Checkpointed,
) -> None:
    disk = Disk(job)
    probe = subprocess.run([*disk.wrap, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip("needs a mount namespace of its own: run as root, or allow unprivileged user namespaces")

    def wait_for_failures(reason: str) -> list[Record]:
        known = len(job.events("not_sealed"))
        job.wait_for("two attempts", lambda: len(job.events("not_sealed")) >= known + 2)
        failed = job.events("not_sealed")[known + 1 :]  # the first attempt may have begun before
        assert all(reason in record.get("reason") and "\n" not in record.get("reason") for record in failed), failed
        return failed

    job.set_hosts(*HOSTS)
    with job.go(wrap=disk.wrap) as process:
        wait_until(lambda: os.path.ismount(disk.inside), what="the disk", timeout=60)
        disk.fill()  # full from the start
        wait_for_failures("No space left on device")
        why = Answer("", "No space left on device", "Make room there: `hvd-elastic checkpoints prune")
        read_back(job.journal, why, folder=job.state_dir)
        disk.empty()
        job.wait_for_sealed()
        disk.forbid()
        failed = wait_for_failures("Read-only file system")
        before = job.sealed()[-1]
        disk.allow()
        job.wait_for_sealed()
        assert job.sealed()[-1] > before
        for host in ("localhost", BESIDE):
            job.check_uninterrupted(host)
            assert job.longest_pause(host, since=failed[0].mono - 5) < 5
        assert process.returncode is None
        shutil.copytree(disk.inside / job.checkpoints.name, job.checkpoints)
    assert job.causes() == ["start"]
    job.check_whole(job.sealed()[-1])


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_job_that_is_told_to_end_does_not_wait_for_ever_for_storage_that_hangs(job: Checkpointed) -> None:
    job.set_hosts(*HOSTS)
    with job.go() as process:
        job.wait_for_sealed()
        written = job.stopped_helpers(2, after=lambda: process.send_signal(signal.SIGTERM))
        before = job.sealed()
        assert process.wait(60) == 143, process.output
        wait_until_gone(written)
        assert [marks.command_line(pid) for pid in process.tree()] == []
        assert "no last checkpoint" in process.stderr
    assert job.sealed() == before
    job.check_whole(before[-1])
    with job.go():
        job.wait_for_size(2)
        assert [record.get("step") for record in job.events("resumed")] == [before[-1]]


def _a_host_comes(job: Checkpointed) -> None:
    """A newcomer is starting when the job is told to end."""
    job.set_hosts(*HOSTS, f"{THIRD}:1")
    job.wait_for("a newcomer", lambda: job.events("standby"))


def _a_host_is_let_in(job: Checkpointed) -> None:
    """The world has just learned that another world will follow."""
    job.set_hosts(*HOSTS, f"{THIRD}:1")
    job.wait_for("a newcomer that is ready", lambda: [r for r in job.events("parked") if r.get("host") == THIRD])


def _a_host_goes(job: Checkpointed) -> None:
    job.set_hosts(HOSTS[0])
    job.wait_for("the list", lambda: len(job.events("published")) >= 2)


def _a_host_is_lost(job: Checkpointed) -> None:
    os.kill(agent_of(job, BESIDE), signal.SIGKILL)


def _a_process_is_lost(job: Checkpointed) -> None:
    os.kill(job.pids()["localhost"], signal.SIGKILL)


def _every_host_is_replaced(job: Checkpointed) -> None:
    job.set_hosts(f"{THIRD}:1", "127.0.0.3:1")
    job.wait_for("newcomers", lambda: len(job.events("standby")) >= 2)


CHANGES = (_a_host_comes, _a_host_is_let_in, _a_host_goes, _a_host_is_lost, _a_process_is_lost, _every_host_is_replaced)
LOSSES = {_a_host_is_lost: BESIDE, _a_process_is_lost: None}
"""Changes that may cost a step, with the host whose memory is lost, too."""


def _check_sealed_after_a_loss(job: Checkpointed, sealed: int, *, before: int, lost: str | None) -> None:
    """Check that the last step of the world after the loss is sealed; without such a world, the newest commit.

    ``before``: the generation of the lost world. A step after the last commit of that world is lost with it.
    """
    after = [record for record in job.events("synced", "stepped") if record.generation > before]
    if after:
        newest = max(record.generation for record in after)
        assert sealed == [record.get("step") for record in after if record.generation == newest][-1], after
        return
    shown = max(step.count for step in job.shown())
    # Each rank makes all commits that are due before it takes part in a later step.
    assert (shown - 1) // COMMIT_EVERY * COMMIT_EVERY <= sealed <= shown
    assert sealed % COMMIT_EVERY == 0
    known = [record.get("step") for record in job.events("committed") if record.get("host") != lost]
    assert sealed >= max(known, default=0)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_that_is_told_to_end_while_hosts_change_resumes_at_the_same_step(job: Checkpointed) -> None:
    job.every = "notice"
    for change in (*CHANGES, None):
        if job.journal.exists():
            job.journal.unlink()
        last = max(job.sealed_steps(), default=0)
        job.set_hosts(*HOSTS)
        with job.go("--elastic-timeout", "60") as process:
            job.wait_for_size(2, more=15)
            assert [record.get("step") for record in job.events("resumed")] == [last] * bool(last)
            if change is None:
                job.check_steps(first=last + 1)
                return
            world = job.last("synced").generation
            change(job)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143, process.output
            assert [marks.command_line(pid) for pid in process.tree()] == []
            job.check_steps(first=last + 1)
        [sealed] = job.sealed()
        if change in LOSSES:
            _check_sealed_after_a_loss(job, sealed, before=world, lost=LOSSES[change])
        else:
            assert job.steps()[-1] == sealed, change
        told = [record.get("reason") for record in job.events("exited")]
        assert not [reason for reason in told if "by the launcher" in reason], told  # only SIGTERM may end them
        job.check_whole(sealed)

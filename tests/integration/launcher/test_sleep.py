"""Real jobs below their minimum: everything ends but a small launcher, and comes back where it was."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from hvd_elastic_ext.checkpoint.archive import catalog
from hvd_elastic_ext.checkpoint.stores.store import open_store
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.launcher.folder.state_folder import SOCKET
from hvd_elastic_ext.launcher.job import admin_socket
from tests.integration.launcher.conftest import Launched, alive
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

LEARNER = Path(__file__).with_name("learner.py")
TWO = ("localhost:1", "127.0.0.1:1")
SMALL = 60 << 20


def job(launched: Launched, *options: object, steps: int = 10**6, every: str = "notice") -> list[object]:
    where = ["--state-dir", launched.directory / "state", "--checkpoint-dir", launched.directory / "checkpoints"]
    # Whoever was lost may come back before the next sleep would begin.
    sleeps = ["--below-min", "sleep", "--sleep-after", "2", "--settle", "0.5", "--blacklist-cooldown-range", "1", "1"]
    what = ["--checkpoint-every", every, *sleeps, *options, sys.executable, LEARNER, steps]
    return ["-np", 2, *where, *what]


def lose(launched: Launched, process: RunningProcess, *hosts: str) -> None:
    """What runs on these hosts is killed at one moment, and they are listed no more."""
    agents = {child.pid for child in psutil.Process(process.pid).children()}
    owners = {}
    for host, pid in launched.pids().items():
        owners[host] = next(parent.pid for parent in psutil.Process(pid).parents() if parent.pid in agents)
    lost = [pid for host in hosts for pid in (owners[host], *_below(owners[host]))]
    left = [line for line in TWO if line.partition(":")[0] not in hosts]
    if not left:  # first, or one of them, which can be reached after all, is used again before the list is read
        launched.set_hosts()
        launched.wait_for("the list", lambda: not launched.events("published")[-1].get("hosts"))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in lost:
            with contextlib.suppress(ProcessLookupError):  # what writes a checkpoint ends by itself
                os.kill(pid, number)
    launched.set_hosts(*left)


def _below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def slept(launched: Launched, times: int = 1) -> Record:
    launched.wait_for("the job to sleep", lambda: len(launched.events("slept")) >= times)
    return launched.events("slept")[-1]


def is_the_last_commit(launched: Launched, night: Record) -> bool:
    """The learner commits after every fifth step."""
    done = max(record.get("step") for record in launched.events("stepped"))
    return bool(done - 5 <= night.get("step") <= done)


@pytest.mark.soak
def test_a_job_below_its_minimum_sleeps_and_resumes_at_the_same_step(
    launched: Launched,
) -> None:
    launched.set_hosts(*TWO)
    with launched.run(*job(launched)) as process:
        launched.wait_for_steps(2)
        lose(launched, process, "127.0.0.1")
        night = slept(launched)
        assert is_the_last_commit(launched, night)
        wait_until(lambda: process.tree() == [], what="no process but the launcher")
        memory = psutil.Process(process.pid).memory_info().rss
        assert memory <= SMALL, f"{memory >> 20} MiB"
        launched.set_hosts(*TWO)
        launched.wait_for("training again", lambda: launched.events("inherited"))
        [resumed] = launched.events("resumed")
        assert (resumed.get("step"), resumed.get("path")) == (night.get("step"), night.get("path"))
        assert {record.get("step") for record in launched.events("inherited")} == {night.get("step")}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, process.output


@pytest.mark.soak
def test_a_job_that_loses_all_hosts_at_once_resumes_from_its_newest_checkpoint(launched: Launched) -> None:
    launched.set_hosts(*TWO)
    with launched.run(*job(launched, steps=300, every="20")) as process:
        launched.wait_for("two checkpoints", lambda: len(launched.events("sealed")) >= 2)
        lose(launched, process, "127.0.0.1", "localhost")
        night = slept(launched)
        known = launched.events("sealed")[-1]
        assert (night.get("step"), night.get("path")) == (known.get("step"), known.get("path"))
        listed = catalog.listing(open_store(str(launched.directory / "checkpoints")))
        newest = next(entry for entry in listed if entry.sealed)  # it may have been complete before anybody said so
        assert newest.step >= known.get("step")
        launched.set_hosts(*TWO)
        assert process.wait(120) == 0, process.output
        assert process.stdout.count("done 300") == 2
    [resumed] = launched.events("resumed")
    assert resumed.get("step") == newest.step


@pytest.mark.soak
def test_a_job_that_sleeps_too_long_ends_with_75_and_the_same_command_resumes_it(launched: Launched) -> None:
    launched.set_hosts(*TWO)
    with launched.run(*job(launched, "--max-wait-time", 1)) as process:
        launched.wait_for_steps(2)
        lose(launched, process, "localhost")
        assert process.wait(60) == 75, process.output
        assert "--max-wait-time 1 s" in process.stderr
        assert "Traceback" not in process.output
    night = launched.events("slept")[-1]
    assert launched.events("finished")[-1].get("code") == 75
    with launched.run(*job(launched)) as process:
        again = slept(launched, times=2)  # there are not enough to begin with either
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 75, process.output
        assert again.get("step") in (None, night.get("step"))
    launched.set_hosts(*TWO)
    with launched.run(*job(launched)) as process:
        launched.wait_for("training", lambda: launched.events("resumed"))
        assert launched.events("resumed")[-1].get("step") == night.get("step")
        process.kill()


@pytest.mark.soak
def test_after_notices_to_too_many_hosts_a_job_sleeps_without_a_step_lost(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = launched.directory / "notice"
    monkeypatch.setenv("HVD_ELASTIC_NOTICE_FILE", str(notice))
    launched.set_hosts(*TWO)
    with launched.run(*job(launched, steps=300)) as whole:
        assert whole.wait(120) == 0, whole.output
        done = sorted(line for line in whole.stdout.splitlines() if "done" in line)
    shutil.rmtree(launched.directory / "state")
    shutil.rmtree(launched.directory / "checkpoints")  # by them the job is done
    launched.journal.unlink()
    with launched.run(*job(launched, steps=300)) as process:
        launched.wait_for_steps(2)
        notice.write_text(json.dumps({"reason": "spot reclaim", "deadline": time.time() + 12}))
        launched.wait_for("the last checkpoint", lambda: launched.events("sealed"))
        [last] = launched.events("sealed")
        pids = launched.pids()
        lose(launched, process, "localhost", "127.0.0.1")
        night = slept(launched)
        assert night.get("step") == last.get("step")
        assert not any(alive(pid) for pid in pids.values())
        notice.unlink()
        launched.set_hosts(*TWO)
        assert process.wait(120) == 0, process.output
        assert sorted(line for line in process.stdout.splitlines() if "done" in line) == done


@pytest.mark.soak
def test_a_job_that_is_told_to_end_while_its_world_is_broken_saves_what_memory_holds(launched: Launched) -> None:
    launched.set_hosts(*TWO)
    with launched.run(*job(launched, "--below-min", "wait")) as process:
        launched.wait_for_steps(2)
        lose(launched, process, "127.0.0.1")
        launched.wait_for("the broken world", lambda: launched.events("rolled_back"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, process.output
    [sealed] = launched.events("sealed")
    assert is_the_last_commit(launched, sealed)


@pytest.mark.soak
def test_storage_that_fails_keeps_the_job_awake_until_it_can_sleep(launched: Launched) -> None:
    launched.set_hosts(*TWO)
    with launched.run(*job(launched)) as process:
        launched.wait_for_steps(2)
        folder = launched.directory / "checkpoints"
        folder.rename(folder.with_suffix(".away")) if folder.exists() else None
        folder.write_text("no folder")
        lose(launched, process, "127.0.0.1")
        launched.wait_for("that it cannot sleep", lambda: launched.events("not_slept", "not_sealed"))
        assert not launched.events("slept")
        [survivor] = [pid for host, pid in launched.pids().items() if host == "localhost"]
        assert alive(survivor)
        folder.unlink()
        night = slept(launched)
        assert is_the_last_commit(launched, night)


@pytest.mark.soak
def test_a_failed_job_is_restarted_up_to_the_backoff_limit(launched: Launched) -> None:
    script = launched.directory / "fails.py"
    script.write_text("raise SystemExit(3)\n")
    launched.set_hosts("localhost:1")
    policy = ["--job-restart-policy", "OnFailure", "--job-backoff-limit", 1, "--failure-budget", 0]
    with launched.run("-np", 1, *policy, sys.executable, script) as process:
        assert process.wait(120) == 1, process.output
        assert process.stderr.count("waiting: for the restart of the job; at most ") >= 1
    assert [record.get("number") for record in launched.events("job_restarted")] == [1]
    assert launched.events("finished")[-1].get("code") == 1


@pytest.mark.soak
def test_a_host_that_is_blocked_while_the_job_sleeps_stays_blocked_when_it_wakes(launched: Launched) -> None:
    launched.set_hosts()  # nobody, from the beginning
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with launched.run("-np", 1, *job(launched, "--sleep-after", 1)[2:-3], *sleeper) as process:
        slept(launched)
        said = admin_socket.ask(
            launched.directory / "state" / SOCKET, {"do": "block", "host": "localhost", "for": None}
        )
        assert "host localhost is blocked" in said["said"]
        launched.set_hosts(*TWO)
        launched.wait_for("a process", lambda: launched.events("spawned"), timeout=240.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 143, process.output
        assert "Traceback" not in process.output
    assert {record.get("host") for record in launched.events("spawned")} == {"127.0.0.1"}


@pytest.mark.soak
def test_a_failed_job_restarts_with_the_minimum_of_hosts(launched: Launched) -> None:
    """Often one of them was why it failed."""
    script, step = launched.directory / "fails.py", "        state.count += 1\n"
    fails = f"{step}        assert state.count < 20 or hvd.size() == 1\n"
    script.write_text(LEARNER.read_text().replace(step, fails))
    launched.set_hosts(*TWO)
    policy = ["--min-np", 1, "--below-min", "wait", "--job-restart-policy", "OnFailure", "--failure-budget", 0]
    with launched.run(*job(launched, *policy, every="5")[:-3], sys.executable, script, 60) as process:
        launched.wait_for("the failure", lambda: launched.events("job_restarted"), timeout=240.0)
        launched.set_hosts(TWO[0])
        assert process.wait(240) == 0, process.output
    assert [record.get("size") for record in launched.events("resized")] == [2, 1]

"""Checkpoints of real jobs: everything is lost but them, and the same command goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvd_elastic_ext.checkpoint.format.manifest import RESULTS
from hvd_elastic_ext.checkpoint.programs import cli
from hvd_elastic_ext.core.journal import read
from tests.integration.launcher.conftest import Launched, records
from tests.integration.launcher.test_over_ssh import command
from tests.support import marks
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

LEARNER = Path(__file__).with_name("learner.py")


def results(process: RunningProcess) -> dict[str, str]:
    """What each rank printed in the end."""
    return dict(re.findall(r"\[(\d+)\]<stdout>:(done .*)", process.output))


def shown(process: RunningProcess) -> dict[tuple[str, str], str]:
    """What each rank had come to at each of its commits."""
    found = re.findall(r"\[(\d+)\]<stdout>:at (\d+) (\w+)", process.output)
    return {(rank, step): digest for rank, step, digest in found}


def went_on_as_before(process: RunningProcess, before: RunningProcess) -> None:
    """A resumed job comes to the same, on every rank, in steps that the lost one had done, too."""
    once, again = shown(before), shown(process)
    both = once.keys() & again.keys()
    assert {rank for rank, _ in both} == set(results(process))
    assert {key: again[key] for key in both} == {key: once[key] for key in both}


def job(
    launched: Launched,
    *,
    steps: int,
    every: str = "20",
    processes: int = 2,
    state: str = "state",
) -> list[object]:
    where = ["--state-dir", launched.directory / state, "--checkpoint-dir", launched.directory / "checkpoints"]
    return ["-np", processes, *where, "--checkpoint-every", every, sys.executable, LEARNER, steps]


def lose_everything(launched: Launched, state: str = "state") -> None:
    """Launcher, agents and processes are killed at one moment, and what the launcher knew is gone."""
    below = psutil.Process(launched.process.pid).children(recursive=True)
    mpiruns = [each for each in below if each.name() == "mpirun"]  # they remove what their ranks leave, and end
    pids = [launched.process.pid, *(each.pid for each in below if each not in mpiruns)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # one may have ended by itself
                os.kill(pid, number)
    launched.process.wait(60)
    psutil.wait_procs(mpiruns, timeout=60)
    shutil.rmtree(launched.directory / state)
    launched.journal.rename(launched.journal.with_suffix(".lost"))


def sealed_steps(launched: Launched) -> list[int]:
    return [record.get("step") for record in launched.events("sealed")]


def first_two(launched: Launched) -> list[Path]:
    """The two oldest checkpoints, once later ones, which a slow machine has written before all was killed, are gone.

    One of those may not be complete.
    """
    checkpoints = launched.directory / "checkpoints"
    two = sorted(path.parent for path in checkpoints.glob("*/manifest.json"))[:2]
    for late in [path for path in checkpoints.iterdir() if path.is_dir() and path not in two and path.name != RESULTS]:
        shutil.rmtree(late)
    return two


def stored(launched: Launched, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What `checkpoints list` tells, the newest first."""
    capsys.readouterr()
    assert cli.main(["list", str(launched.directory / "checkpoints"), "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_job_of_which_only_checkpoints_are_left_trains_on_to_the_same_bytes(
    launched: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    launched.set_hosts("localhost:2")
    checkpoints = launched.directory / "checkpoints"
    with launched.run(*job(launched, steps=10**6)) as first:
        launched.wait_for("two checkpoints", lambda: len(sealed_steps(launched)) >= 2)
        lose_everything(launched)
    older, newest = first_two(launched)
    steps = stored(launched, capsys)[0]["step"] + 13  # a slow machine is further
    shutil.copytree(checkpoints, launched.directory / "none-whole")
    shard = next(newest.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[-9] ^= 1
    shard.write_bytes(data)
    command = job(launched, steps=steps)
    with launched.run(*command) as resumed:
        assert resumed.wait(120) == 0, resumed.output
    went_on_as_before(resumed, first)
    [line] = launched.events("resumed")
    assert line.get("path") == str(older), "a damaged one gives way to the one before"
    assert newest.name in launched.events("checkpoint_skipped")[0].get("reason")
    assert {record.get("step") for record in launched.events("inherited")} == {line.get("step")}

    last = stored(launched, capsys)[0]
    assert (last["step"], sealed_steps(launched)[-1]) == (steps, steps), (
        "the last state of a job that succeeds is sealed"
    )
    spawned = len(launched.events("spawned"))
    with launched.run(*command) as again:
        assert again.wait(110) == 0, again.output
    # On a busy machine the launcher may have looked in vain, and then an agent looks: more lines, the same end.
    [said] = [line for line in again.output.splitlines() if "the job is done" in line] or [again.output]
    assert all(each in said for each in (last["name"], "--train-on"))
    assert len(launched.events("spawned")) == spawned, "the same command starts nothing"
    launched.set_hosts("localhost:1")
    with launched.run(*job(launched, steps=steps + 17, processes=1)) as further:
        assert further.wait(110) == 0, further.output
        assert results(further)["0"].startswith(f"done {steps + 17} ")
    assert launched.events("resumed")[-1].get("step") == steps
    assert stored(launched, capsys)[0]["step"] == steps + 17

    shutil.rmtree(checkpoints)
    (launched.directory / "none-whole").rename(checkpoints)
    for shard in checkpoints.glob("*/shard-*"):
        shard.write_bytes(b"")
    shutil.rmtree(launched.directory / "state")
    launched.journal.unlink()
    with launched.run(*job(launched, steps=10**6, processes=1)) as refused:
        assert refused.wait(60) == 1, refused.output
    assert "none is whole" in launched.events("finished")[-1].get("reason")
    assert launched.events("spawned") == [], "training does not begin anew over checkpoints"


@pytest.mark.parametrize("sizes", [[1], pytest.param([1, 2], marks=pytest.mark.soak)])
def test_a_notice_to_the_only_host_costs_no_step_and_neither_does_the_end_of_a_job(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    notice = launched.directory / "notice"
    monkeypatch.setenv("HVD_ELASTIC_NOTICE_FILE", str(notice))
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, steps=10**6, every="notice")):
        launched.wait_for_steps(2)
        notice.write_text(json.dumps({"reason": "spot reclaim", "deadline": time.time() + 15}))
        launched.wait_for("the last checkpoint", lambda: sealed_steps(launched))
        [last] = sealed_steps(launched)
        lose_everything(launched)
        with launched.journal.with_suffix(".lost").open() as lines:
            steps = [record.get("step") for record in read(lines) if record.event == "stepped"]
        assert max(steps) == last
    notice.unlink()
    for processes in sizes:
        launched.journal.unlink(missing_ok=True)
        launched.set_hosts(f"localhost:{processes}")
        with launched.run(*job(launched, steps=10**6, every="notice", processes=processes)) as again:
            launched.wait_for_steps(processes)
            assert [record.get("step") for record in launched.events("resumed")] == [last]
            again.send_signal(signal.SIGTERM)
            assert again.wait(60) == 143, again.output
        before, [last] = last, sealed_steps(launched)
        assert last > before
        assert launched.events("sealed")[-1].get("path") in again.stderr.splitlines()[-1]
        assert not [record for record in launched.events("committed") if record.get("step") > last]


@pytest.mark.soak
@pytest.mark.parametrize("storage", ["shared", "each its own"])
def test_hosts_write_checkpoints_over_ssh_and_resume_without_the_launchers_folder(
    nethosts: Callable[[int], NetHosts], tmp_path: Path, storage: str
) -> None:
    hosts = nethosts(2)
    place = tmp_path / "checkpoints" if storage == "shared" else Path("/run/checkpoints")  # each host has a /run
    (tmp_path / "hosts").write_text("h1:1\nh2:1\n")
    where = ["--checkpoint-dir", place, "--checkpoint-every", "20"]
    words = ["-np", "2", *where, sys.executable, LEARNER, "1000000"]
    journal = tmp_path / "journal.jsonl"

    def run(state: str) -> AbstractContextManager[RunningProcess]:
        options = ["--state-dir", str(tmp_path / state), *map(str, words)]
        return hosts.launcher.popen(command(hosts, tmp_path, *options), cwd=tmp_path, env={"HVD_ELASTIC_SAMPLE": "0"})

    def steps_of(event: str) -> list[int]:
        return [record.get("step") for record in records(journal, event)]

    with run("state1") as first:
        wait_until(lambda: len(steps_of("sealed")) >= 2, what="checkpoints", timeout=90, show=lambda: first.output)
        if storage == "shared":
            manifest = sorted(place.glob("*/manifest.json"))[-1]
            assert len(list(manifest.parent.glob("shard-*-of-00002-*"))) == 2
        else:
            assert "not the same storage on all hosts" in first.output
        for pid in [pid for host in hosts for pid in host.pids() if "hvd_elastic_ext" in marks.command_line(pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        first.kill()
    newest = steps_of("sealed")[-1]
    journal.unlink()
    with run("state2") as second:
        wait_until(lambda: len(steps_of("stepped")) > 5, what="steps", timeout=90, show=lambda: second.output)
        assert steps_of("resumed")[0] >= newest
        wait_until(lambda: len(records(journal, "inherited")) == 2, what="both ranks", timeout=30)
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 143

"""One fault at a time, with real Horovod: it has happened, and training goes on from the right step and host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import COUNTER, ELASTIC, Launched, launched
from tests.support.waiting import wait_until

__all__ = ["launched"]

QUICK = ("--settle", "0.2", "--blacklist-cooldown-range", "2", "10", "--min-np", "1")
TRAIN = (sys.executable, str(COUNTER))
BESIDE = "127.0.0.1"
THIRD = "127.0.0.2"


def causes(job: Launched) -> list[str]:
    return [record.get("cause") for record in job.events("resized")]


def longest_pause(job: Launched, host: str, *, since: float) -> float:
    """Of one host's process, between two of its steps."""
    times = [record.mono for record in job.events("stepped") if record.get("host") == host and record.mono >= since]
    return max((after - before for before, after in pairwise(times)), default=0.0)


def counts(job: Launched) -> list[int]:
    return [record.get("step") for record in job.events("stepped") if record.get("rank") == 0]


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_killed_worker_costs_the_others_its_last_steps_only(launched: Launched, rank: int) -> None:
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, *TRAIN):
        launched.wait_for_steps(2)
        victim = list(launched.events("resized")[-1].get("hosts"))[rank]  # in the order of ranks
        os.kill(launched.pids()[victim], signal.SIGKILL)
        launched.wait_for_steps(1)
        back = [record.get("steps_lost") for record in launched.events("rolled_back")]
        assert back
        assert max(back) <= 5
        launched.wait_for("its return", lambda: causes(launched)[-1] == "cooldown over")
        launched.wait_for_steps(2)
    assert causes(launched)[:3] == ["start", "worker failed", "cooldown over"]


@pytest.mark.soak
def test_a_stopped_worker_is_killed_and_its_peer_goes_on(launched: Launched) -> None:
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", "--heartbeat-timeout", "4", *QUICK, *TRAIN):
        launched.wait_for_steps(2)
        os.kill(launched.pids()[BESIDE], signal.SIGSTOP)
        launched.wait_for("a world of one", lambda: launched.events("resized")[-1].get("size") == 1, timeout=15)
        launched.wait_for_steps(1)
    assert launched.events("exited")[0].get("cause") == "silent"


@pytest.mark.soak
def test_a_newcomer_that_crashes_at_import_costs_nobody_anything(launched: Launched) -> None:
    script = launched.directory / "train.py"
    crash = f"import os\nif os.environ['HOROVOD_HOSTNAME'] == {THIRD!r}: raise ImportError('no such module here')\n"
    script.write_text(crash + COUNTER.read_text())
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, sys.executable, script) as process:
        launched.wait_for_steps(2)
        launched.set_hosts("localhost:1", f"{BESIDE}:1", f"{THIRD}:1")
        launched.wait_for("two strikes", lambda: len(launched.events("struck")) >= 2)
        assert "no such module here" in process.stderr
        launched.wait_for_steps(2)
    assert causes(launched) == ["start"]


@pytest.mark.soak
def test_survivors_train_on_while_a_newcomer_boots(launched: Launched) -> None:
    script = launched.directory / "train.py"
    slow = f"import os, time\nif os.environ['HOROVOD_HOSTNAME'] == {THIRD!r}: time.sleep(6)\n"
    script.write_text(slow + COUNTER.read_text())
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", *QUICK, sys.executable, script):
        launched.wait_for_steps(1)
        came = launched.events("published")[-1].mono
        launched.set_hosts("localhost:1", f"{THIRD}:1")
        launched.wait_for_steps(2)
        parked = launched.events("parked")[-1].mono
    assert parked - came > 6
    assert longest_pause(launched, "localhost", since=came) < 3  # Horovod's own makes it wait for all of these seconds


@pytest.mark.soak
def test_every_host_may_be_replaced_at_once(launched: Launched) -> None:
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, *TRAIN):
        launched.wait_for_steps(2)
        launched.set_hosts(f"{THIRD}:1", "127.0.0.3:1")
        launched.wait_for(
            "a world of the others", lambda: launched.events("resized")[-1].get("hosts").keys() == {THIRD, "127.0.0.3"}
        )
        launched.wait_for_steps(2)
        launched.wait_for("the end of both", lambda: len(launched.events("exited")) >= 2)
    seen = counts(launched)
    assert all(after - before <= 1 for before, after in pairwise(seen))  # nothing is skipped
    assert {record.get("cause") for record in launched.events("exited")} == {"told to leave"}
    assert not launched.events("struck")
    assert not launched.events("rolled_back")


@pytest.mark.soak
def test_when_all_workers_are_killed_at_once_they_go_on_from_their_commits(launched: Launched) -> None:
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, *TRAIN):
        launched.wait_for_steps(2)
        wait_until(lambda: max(counts(launched)) > 20, what="some commits")
        for pid in launched.pids().values():
            os.kill(pid, signal.SIGKILL)
        before = max(counts(launched))
        launched.wait_for("another world", lambda: len(launched.events("resized")) == 2)
        launched.wait_for("steps", lambda: launched.events("stepped")[-1].mono > launched.events("resized")[-1].mono)
        again = [r.get("step") for r in launched.events("stepped") if r.mono > launched.events("resized")[-1].mono]
        assert before - 10 <= again[0] <= before + 5


@pytest.mark.soak
def test_a_worker_that_ends_with_0_on_sigterm_is_a_departure(launched: Launched) -> None:
    script = launched.directory / "train.py"
    script.write_text(
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + COUNTER.read_text()
    )
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, sys.executable, script) as process:
        launched.wait_for_steps(2)
        os.kill(launched.pids()[BESIDE], signal.SIGTERM)
        launched.wait_for("a world of one", lambda: launched.events("resized")[-1].get("size") == 1)
        launched.wait_for_steps(1)
        assert process.popen.poll() is None
    assert not launched.events("struck")


@pytest.mark.soak
def test_a_launcher_may_be_killed_and_started_again(launched: Launched) -> None:
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, *TRAIN) as first:
        launched.wait_for_steps(2)
        pids = launched.pids()
        first.kill()
        steps = len(launched.events("stepped"))
        with launched.run("-np", "2", *QUICK, *TRAIN):
            launched.wait_for("steps under the second one", lambda: len(launched.events("stepped")) > steps + 10)
            assert launched.pids() == pids
            launched.set_hosts("localhost:1")
            launched.wait_for("a world of one", lambda: launched.events("resized")[-1].get("size") == 1)
            launched.wait_for_steps(1)
            generations = [record.generation for record in launched.events("resized")]
            assert generations == sorted(generations)


@pytest.mark.soak
def test_a_blocked_host_goes_and_a_cleared_one_comes_back(launched: Launched) -> None:
    def hosts(*words: str) -> str:
        command = [*ELASTIC, "hosts", *words, "--job", "counter"]
        return subprocess.run(command, cwd=launched.directory, check=True, capture_output=True, text=True).stdout

    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, *TRAIN):
        launched.wait_for_steps(2)
        hosts("block", BESIDE, "--reason", "its fan is loud")
        launched.wait_for("a world of one", lambda: launched.events("resized")[-1].get("size") == 1)
        assert "its fan is loud" in hosts("list")
        hosts("clear", BESIDE)
        launched.wait_for_steps(2)


def test_training_that_is_done_ends_the_job_with_0_and_leaves_nothing(launched: Launched) -> None:
    launched.set_hosts("localhost:1", f"{BESIDE}:1")
    with launched.run("-np", "2", *QUICK, *TRAIN, "30") as process:
        assert process.wait(60) == 0, process.output
        assert process.stdout.count("done 30") == 2
        assert process.tree() == []
    assert not Path(launched.directory / ".hvd-elastic" / "counter" / "key").exists()

"""Real jobs that make every n-th commit only: what is left out, and what is not for all that."""

from __future__ import annotations

import os
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched

COMMITTER = Path(__file__).with_name("committer.py")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def job(launched: Launched, every: str, *, processes: int = 2) -> list[object]:
    options = ["-np", processes, "--min-np", 1, "--max-np", 3, "--state-dir", launched.directory / "state"]
    return [*options, "--commit-every", every, "--checkpoint-every", "notice", sys.executable, COMMITTER, 10**6]


def newest(launched: Launched) -> int:
    """The newest world whose members have agreed on their state; 0 before the first one."""
    return max((record.get("world") for record in launched.events("synced")), default=0)


def committed(launched: Launched) -> list[int]:
    """Steps after which rank 0 has committed in the newest world."""
    world = newest(launched)
    return [record.get("step") for record in launched.events("committed") if record.get("world") == world]


def commits_every(launched: Launched, every: int, *, timeout: float = 200.0) -> None:
    """Wait for three commits in a row that lie ``every`` steps apart."""

    def found() -> bool:
        return [b - a for a, b in pairwise(committed(launched)[-4:])] == [every] * 3

    launched.wait_for(f"commits every {every} steps", found, timeout=timeout)


def test_only_commits_that_are_not_needed_are_left_out(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, "9")) as process:
        commits_every(launched, 9)
        # A resize loses no step: whoever stops for it commits.
        launched.set_hosts("localhost:3")
        launched.wait_for_steps(3, timeout=200)
        last = [record for record in launched.events("stepped") if record.get("size") == 2][-1]
        first = next(record for record in launched.events("synced") if record.get("size") == 3)
        assert first.get("step") == last.get("step")
        commits_every(launched, 9)
        # A process that is killed costs no more than what lies between two commits.
        world = newest(launched)
        os.kill(next(record.get("pid") for record in reversed(launched.events("spawned"))), signal.SIGKILL)
        launched.wait_for("the roll-back", lambda: launched.events("rolled_back"), timeout=120)
        assert {record.get("steps_lost") <= 9 for record in launched.events("rolled_back")} == {True}
        # Nor does the end of the job: the last checkpoint is of the last step, soon after the signal.
        launched.wait_for("the next world", lambda: newest(launched) > world, timeout=120)
        commits_every(launched, 9)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143, process.output
    [sealed] = launched.events("sealed")
    assert max(record.get("step") for record in launched.events("stepped")) == sealed.get("step")


def test_with_adopt_commits_of_a_script_for_horovods_state_are_made_at_an_interval(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIN", "1")
    launched.set_hosts("localhost:2")
    with launched.run("--adopt", *job(launched, "4")) as process:
        commits_every(launched, 4)
        process.kill()


def test_the_best_commit_interval_is_measured_and_journalled(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPY_S", "0.05")
    monkeypatch.setenv("STEP_S", "0.05")
    launched.set_hosts("localhost:2")
    with launched.run(*job(launched, "auto")) as process:
        launched.wait_for("the choice", lambda: launched.events("interval"), timeout=200)
        [chosen] = launched.events("interval")
        assert 20 <= chosen.get("calls") <= 200
        [took] = re.findall(r"a commit takes (\S+) s", chosen.get("reason"))
        assert 0.05 <= float(took) < 1.0
        commits_every(launched, chosen.get("calls"))
        process.kill()

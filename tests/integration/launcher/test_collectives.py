"""A process that comes later gets what collectives returned to the others outside of the training functions."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.launcher.conftest import Launched
from tests.integration.launcher.test_checkpoints import lose_everything

SCRIPT: Final = [sys.executable, str(Path(__file__).with_name("latecomer.py"))]
FIRST: Final = "[1.5, {'lr': 0.5, 'layers': (1, 2)}, [100, 200], [0.0, 7.0], 3, 'prepared']"
QUICK: Final = ("--settle", "0.2", "--blacklist-cooldown-range", "1", "2", "--min-np", "1")
LONG: Final = 120.0
"""Seconds; four processes import torch on one machine."""


@pytest.mark.soak
@pytest.mark.parametrize("use", ["ours", "stock"])
def test_who_comes_later_gets_what_collectives_returned_to_the_first_processes_and_between_calls(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """Two processes begin. In the first call two come on another host, and in the second one is killed and replaced."""
    monkeypatch.setenv("USE", use)
    options = ("--adopt",) if use == "stock" else ()
    launched.set_hosts("localhost:2")
    with launched.run(*QUICK, *options, "-np", "2", *SCRIPT) as process:
        launched.wait_for("training", lambda: process.stdout.count("trains in call 1") == 2, timeout=LONG)
        launched.set_hosts("localhost:2", "127.0.0.1:2")
        launched.wait_for("a world of 4", lambda: launched.events("resized")[-1].get("size") == 4, timeout=LONG)
        (launched.directory / "stop1").touch()
        second = re.compile(r"rank 1 pid (\d+) trains in call 2")
        launched.wait_for("the second call", lambda: second.search(process.stdout), timeout=LONG)
        launched.wait_for("the first one's result", lambda: launched.events("call_ended"))
        found = second.search(process.stdout)
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        launched.wait_for(
            "it is back",
            lambda: len(set(pids(process.stdout))) >= 5 and launched.events("resized")[-1].get("size") == 4,
            timeout=LONG,
        )
        (launched.directory / "stop2").touch()
        assert process.wait(LONG) == 0, process.output
    got = dict(re.findall(r"pid (\d+) got (.*)", process.stdout))
    lives = len(got)  # one more if Gloo has aborted a process that lost the peer
    assert lives >= 5, process.output
    assert set(got.values()) == {FIRST}, process.output
    orders = re.findall(r"pid \d+ after call 1 got (.*)", process.stdout)
    assert len(orders) == lives, process.output
    assert len(set(orders)) == 1
    # One line for each of those that were not there at first, and no other about collectives (but a long wait).
    told = [line for line in process.stderr.splitlines() if "<stderr>:hvd." in line and "hvd.barrier" not in line]
    assert len(told) == lives - 2, process.stderr
    assert all("hvd.allgather()" in line and "the 2 processes" in line for line in told)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_job_that_is_started_again_runs_its_prologue_anew_and_keeps_what_was_drawn_between_calls(
    launched: Launched,
) -> None:
    def job(state: str, count: int) -> list[str | Path]:
        where = ["--state-dir", launched.directory / state, "--checkpoint-dir", launched.directory / "checkpoints"]
        return [*QUICK, *where, "--checkpoint-every", "4", "-np", str(count), *SCRIPT]

    launched.set_hosts("localhost:2")
    with launched.run(*job("state", 2)) as process:
        launched.wait_for("training", lambda: process.stdout.count("trains in call 1") == 2, timeout=LONG)
        (launched.directory / "stop1").touch()
        in_call_2 = lambda: any(record.get("call") == 2 for record in launched.events("sealed"))  # noqa: E731
        launched.wait_for("a checkpoint in the second call", in_call_2, timeout=LONG)
        (drawn,) = set(re.findall(r"after call 1 got (.*)", process.stdout))
        lose_everything(launched)

    launched.set_hosts("localhost:3")
    with launched.run(*job("another state", 3)) as process:
        launched.wait_for("training", lambda: process.stdout.count("trains in call 2") == 3, timeout=LONG)
        launched.set_hosts("localhost:3", "127.0.0.1:1")
        launched.wait_for("a newcomer", lambda: len(set(pids(process.stdout))) == 4, timeout=LONG)
        (launched.directory / "stop2").touch()
        assert process.wait(LONG) == 0, process.output
    now = "[2.0, {'lr': 0.5, 'layers': (1, 2)}, [100, 200, 300], [0.0, 7.0], 6, 'prepared']"
    assert re.findall(r"pid \d+ got (.*)", process.stdout) == [now] * 4
    assert re.findall(r"after call 1 got (.*)", process.stdout) == [drawn] * 4
    assert "acts" not in process.stderr
    assert "the 3 processes" in process.stderr


@pytest.mark.soak
def test_an_unmodified_script_gets_nothing_and_a_line_says_so(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USE", "stock")
    launched.set_hosts("localhost:2")
    with launched.run(*QUICK, "-np", "2", *SCRIPT) as process:
        launched.wait_for("training", lambda: process.stdout.count("trains in call 1") == 2, timeout=LONG)
        launched.set_hosts("localhost:2", "127.0.0.1:1")
        line = "hvd.broadcast_() before the training function waits for the other processes"
        launched.wait_for("a line", lambda: line in process.stderr, timeout=LONG)


def pids(output: str) -> list[str]:
    """Processes that have trained in the second call."""
    return re.findall(r"pid (\d+) trains in call 2", output)

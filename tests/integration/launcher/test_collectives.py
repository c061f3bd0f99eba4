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

SCRIPT: Final = [sys.executable, str(Path(__file__).with_name("latecomer.py"))]
FIRST: Final = "[1.5, {'lr': 0.5, 'layers': (1, 2)}, [100, 200], [0.0, 7.0], 3, 'prepared']"
QUICK: Final = ("--settle", "0.2", "--blacklist-cooldown-range", "1", "2", "--min-np", "1")
LONG: Final = 120.0
"""Seconds; four processes import torch on one machine."""


@pytest.mark.parametrize("use", ["ours", pytest.param("stock", marks=pytest.mark.soak)])
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
        launched.wait_for("it is back", lambda: len(set(pids(process.stdout))) == 5, timeout=LONG)
        (launched.directory / "stop2").touch()
        assert process.wait(LONG) == 0, process.output
    got = dict(re.findall(r"pid (\d+) got (.*)", process.stdout))
    assert list(got.values()) == [FIRST] * 5, process.output
    orders = re.findall(r"pid \d+ after call 1 got (.*)", process.stdout)
    assert len(orders) == 5, process.output
    assert len(set(orders)) == 1
    # One line for each of the three that were not there, and no other about collectives.
    told = [line for line in process.stderr.splitlines() if "<stderr>:hvd." in line]
    assert len(told) == 3, process.stderr
    assert all("hvd.allgather()" in line and "the 2 processes" in line for line in told)


def pids(output: str) -> list[str]:
    """Processes that have trained in the second call."""
    return re.findall(r"pid (\d+) trains in call 2", output)

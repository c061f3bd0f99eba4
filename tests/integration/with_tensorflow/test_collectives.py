"""A process that comes later gets what collectives of TensorFlow returned to the others, as with PyTorch."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.launcher.conftest import Launched, launched
from tests.integration.with_tensorflow.test_jobs import QUICK
from tests.support.tensorflow import needs_tensorflow

__all__ = ["launched"]

SCRIPT: Final = [sys.executable, str(Path(__file__).with_name("latecomer.py"))]
FIRST: Final = "[1.5, {'lr': 0.5, 'layers': (1, 2)}, [100, 200], [[0], [1]], [1, 10], 5.0, 3.0, [0.0, 7.0], 5.0]"
LONG: Final = 120.0
"""Seconds; three processes import TensorFlow on one machine."""
pytestmark = [needs_tensorflow, pytest.mark.timeout(300)]


@pytest.mark.soak
@pytest.mark.parametrize("use", ["ours", "stock"])
def test_who_comes_later_gets_what_collectives_returned_before_the_first_call_and_between_two(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """Two processes begin. One comes on another host when they are in the second call: it passes the first one by."""
    monkeypatch.setenv("USE", use)
    launched.set_hosts("localhost:2")
    adopt = ("--adopt",) if use == "stock" else ()
    with launched.run(*QUICK, *adopt, "-np", "2", *SCRIPT) as process:
        launched.wait_for("training", lambda: process.stdout.count("trains in call 1") >= 2, timeout=LONG)
        (launched.directory / "stop1").touch()
        launched.wait_for("the second call", lambda: process.stdout.count("trains in call 2") >= 2, timeout=LONG)
        launched.set_hosts("localhost:2", "127.0.0.1:1")
        launched.wait_for("a world of 3", lambda: launched.events("resized")[-1].get("size") == 3, timeout=LONG)
        (launched.directory / "stop2").touch()
        assert process.wait(LONG) == 0, process.output
    got = dict(re.findall(r"pid (\d+) got (.*)", process.stdout))
    assert len(got) == 3, process.output
    assert set(got.values()) == {FIRST}, process.output
    (drawn,) = set(re.findall(r"after call 1 got (.*)", process.stdout))
    assert process.stdout.count(f"after call 1 got {drawn}") == 3
    told = [line.partition("<stderr>:")[2] for line in process.stderr.splitlines() if "<stderr>:hvd." in line]
    assert len(told) == 3, process.stderr
    assert "hvd.allgather() returns what it returned to the 2 processes" in told[0]
    assert "in-a-graph" in told[1]
    assert "acts on this process alone" in told[1]
    assert "hvd.broadcast_variables() before the training function left variables as" in told[2]
    assert "'large:0' (1 in all)" in told[2]

"""A rank that hangs in a step is told while it hangs, long before it counts as stalled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched
from tests.support.waiting import wait_until

HANGER = Path(__file__).with_name("hanger.py")
WHO = r"rank 1 \(localhost\[1\]\) is waited for"


def status(directory: Path) -> str:
    command = [sys.executable, "-m", "hvd_elastic_ext.cli", "status"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.soak
def test_a_rank_that_hangs_in_a_step_is_told_with_the_end_of_the_wait_and_that_it_goes_on(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    hang = launched.directory / "hang"
    with launched.run("-np", "2", sys.executable, HANGER) as process:
        launched.wait_for_steps(2)
        wait_until(lambda: "steps/s" in status(launched.directory), what="a speed", timeout=30, interval=1.0)
        hang.touch()
        process.wait_for(rf"no step for \d+ s \(.*\): {WHO}; reported as stalled after 60 s", timeout=30)
        said = status(launched.directory)
        assert "no step for" in said
        assert "steps/s" not in said
        hang.unlink()
        process.wait_for(r"training goes on after \d+ s without a step", timeout=30)
        launched.wait_for_steps(2)
        (launched.directory / "stop").touch()
        assert process.wait(60) == 0
    assert not launched.events("stalled")

"""Long steps, which only look like a fault."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched, launched

__all__ = ["launched"]

EVALUATING = Path(__file__).with_name("evaluating.py")


@pytest.mark.soak
def test_an_evaluation_six_times_as_long_as_the_heartbeat_timeout_ends_no_process(launched: Launched) -> None:
    """Like 60 s of evaluation, or of a first compiled step, with the default limit of 10 s: no ``heartbeat()`` and no
    Python code runs."""
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    options = ("-np", "2", "--heartbeat-timeout", "3", "--heartbeat-interval", "0.5")
    with launched.run(*options, sys.executable, EVALUATING, "18") as process:
        assert process.wait(timeout=120) == 0, process.output
    took = re.findall(r"has evaluated for ([\d.]+)", process.stdout)
    assert [float(seconds) >= 18 for seconds in took] == [True]
    assert process.stdout.count("trained 10 size 2") == 2
    assert [record.get("cause") for record in launched.events("resized")] == ["start"]
    assert not launched.events("fenced") + launched.events("struck") + launched.events("rolled_back")

"""One fault at a time, with real Horovod: it happens, and training continues from the right step and host."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.integration.launcher.conftest import COUNTER, Launched, launched
from tests.support.pages import Answer, read_back, read_in_browser

__all__ = ["launched"]

QUICK = ("--settle", "0.2", "--blacklist-cooldown-range", "2", "10", "--min-np", "1")
BESIDE = "127.0.0.1"
THIRD = "127.0.0.2"


def causes(job: Launched) -> list[str]:
    return [record.get("cause") for record in job.events("resized")]


LEAVES_OR_CRASHES = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.environ["HOROVOD_HOSTNAME"] == {THIRD!r}: raise ImportError("no such module here")
"""


@pytest.mark.soak
def test_a_crashed_newcomer_a_stopped_worker_and_a_sigterm_end_are_told_apart(launched: Launched) -> None:
    script = launched.directory / "train.py"
    script.write_text(LEAVES_OR_CRASHES + COUNTER.read_text())
    both = ("localhost:1", f"{BESIDE}:1")
    launched.set_hosts(*both)
    options = (*QUICK, "--heartbeat-timeout", "4", "--output-filename", launched.directory / "output")
    with launched.run("-np", "2", *options, sys.executable, script) as process:
        launched.wait_for_steps(2)
        launched.set_hosts(*both, f"{THIRD}:1")
        launched.wait_for("two strikes", lambda: len(launched.events("struck")) >= 2)
        assert "no such module here" in process.stderr
        launched.wait_for_steps(2)
        assert causes(launched) == ["start"]  # no rank is interrupted
        launched.set_hosts(*both)
        os.kill(launched.pids()[BESIDE], signal.SIGSTOP)
        launched.wait_for("a world of one", lambda: launched.events("resized")[-1].get("size") == 1, timeout=15)
        assert [r.get("cause") for r in launched.events("exited") if r.get("host") == BESIDE] == ["silent"]
        launched.wait_for_steps(1)
        launched.wait_for_steps(2)
        strikes = len(launched.events("struck"))
        os.kill(launched.pids()[BESIDE], signal.SIGTERM)
        launched.wait_for("a world of one", lambda: launched.events("resized")[-1].get("size") == 1)
        launched.wait_for_steps(1)
        assert process.popen.poll() is None
        assert len(launched.events("struck")) == strikes  # it counts as a departure
        crashed = Answer(THIRD, "no such module here", f"Install on {THIRD}", output="no such module here")
        stopped = Answer(BESIDE, "silent", "see what stops processes there")
        left = Answer(BESIDE, "left with exit code 0 before training was done", "It ended by itself")
        read_back(launched.journal, crashed, stopped, left)
    read_in_browser(launched.journal, crashed, stopped, left, folder=launched.directory)

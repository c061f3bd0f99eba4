"""Scripts of TensorFlow with nothing of ours: who is waited for, and how their jobs end, as with PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.launcher.conftest import Launched, launched
from tests.integration.with_tensorflow.test_jobs import QUICK
from tests.support.tensorflow import needs_tensorflow

__all__ = ["launched"]

SCRIPT: Final = [sys.executable, str(Path(__file__).with_name("plain.py"))]
WAITED_FOR: Final = r"rank 1 \(localhost\[1\]\) is waited for; reported as stalled after 60 s"
pytestmark = [needs_tensorflow, pytest.mark.timeout(300)]


def test_a_rank_that_hangs_while_another_waits_in_a_graph_is_named_and_so_is_one_that_fails_in_a_graph(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    launched.set_hosts("localhost:2")
    with launched.run(*QUICK, "-np", "2", *SCRIPT, "plain") as process:
        launched.wait_for("steps", lambda: "step 20 rank 0 size 2" in process.stdout, timeout=120)
        (launched.directory / "hang").touch()
        process.wait_for(rf"no step for \d+ s \(.*\): {WAITED_FOR}", timeout=30)
        (launched.directory / "stop").touch()
        (launched.directory / "hang").unlink()
        assert process.wait(60) == 1, process.output
    reason = launched.events("finished")[-1].get("reason")
    error = "InvalidArgumentError: assertion failed: [no number like this]"
    assert f"rank 1 on localhost[1] crashed: exit code 1: {error}" in reason
    ends = [(each.get("slot"), each.get("cause")) for each in launched.events("exited")]
    assert [cause for slot, cause in ends if slot == 1] == ["crashed"]
    assert (0, "peer lost") in ends
    assert {each.get("subject") for each in launched.events("struck")} == {"slot 1 of localhost"}


@pytest.mark.soak
def test_ranks_that_wait_in_a_graph_for_one_with_fewer_steps_are_reported(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWER", "1")
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run(*QUICK, *SCRIPT, "stock") as process:
        launched.wait_for("what is said of it", lambda: launched.events("stalled"), timeout=120)
        process.terminate()
        assert process.wait(60) == 143
    (stalled,) = launched.events("stalled")
    assert stalled.get("finished") == [1]
    said = "rank 1 (127.0.0.1[0]) has finished training, and rank 0 (localhost[0]) has waited for it for "
    assert said in process.stderr


@pytest.mark.soak
def test_ranks_that_average_nothing_are_told_what_to_do(launched: Launched) -> None:
    launched.set_hosts("localhost:2")
    with launched.run(*QUICK, "-np", "2", *SCRIPT, "alone") as process:
        launched.wait_for("a warning", lambda: launched.events("trains_alone"), timeout=150)
        (launched.directory / "stop").touch()
        assert process.wait(60) == 0, process.output
    assert "each of the 2 ranks trains alone" in process.stderr
    assert "the tape with hvd.DistributedGradientTape" in process.stderr

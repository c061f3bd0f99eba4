"""What one lost worker does to the others."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.launcher.conftest import COUNTER, Launched, launched
from tests.integration.worker.conftest import HOROVODRUN
from tests.support.processes import run_process

__all__ = ["launched"]

WITHIN: Final = Path(__file__).with_name("within.py")
NO_MEMORY: Final = Path(__file__).with_name("no_memory.py")

GLOO_TIMEOUT_S = 90
"""So long that a survivor which waits for it cannot be taken for one that does not."""


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("127.0.0.1", id="rank_0"),
        pytest.param("127.0.0.2", id="rank_1", marks=pytest.mark.soak),
        pytest.param("localhost", id="rank_2", marks=pytest.mark.soak),
    ],
)
def test_a_killed_worker_costs_the_others_its_last_steps_only_and_none_waits_for_gloos_timeout(
    launched: Launched, victim: str
) -> None:
    """On the stock State, in 5 of 7 tries one of the two survivors waited out the timeout."""
    launched.set_hosts("127.0.0.1:1", "127.0.0.2:1", "localhost:1")
    options = ("-np", "3", "--min-np", "1", "--gloo-timeout-seconds", str(GLOO_TIMEOUT_S))
    quick = ("--settle", "0.2", "--blacklist-cooldown-range", "2", "10")
    with launched.run(*options, *quick, sys.executable, COUNTER):
        launched.wait_for_steps(3)
        os.kill(launched.pids()[victim], signal.SIGKILL)
        launched.wait_for("the death being noted", lambda: launched.events("rolled_back"))
        launched.wait_for_steps(2, timeout=GLOO_TIMEOUT_S / 3)
        assert max(record.get("steps_lost") for record in launched.events("rolled_back")) <= 5
        launched.wait_for("its return", lambda: launched.events("resized")[-1].get("cause") == "cooldown over")
        launched.wait_for_steps(3)
    causes = [record.get("cause") for record in launched.events("resized")]
    assert causes[:3] == ["start", "worker failed", "cooldown over"]


def test_a_rank_that_is_killed_within_operations_takes_no_other_rank_with_it(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Horovod as published, the loop of a rank whose operation has failed begins the next one, and its peers take
    that one's data for data of the failed one: they end by SIGABRT. See ``horovod_source.py``.
    """
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")  # each operation by itself, as with large tensors
    launched.set_hosts(*(f"127.0.0.{number}:1" for number in range(1, 6)))
    options = ("-np", "5", "--min-np", "1", "--blacklist-cooldown-range", "100", "100")
    with launched.run(*options, sys.executable, WITHIN) as process:
        assert process.wait(90) == 0, process.output
    assert [record.get("code") for record in launched.events("exited")] == [128 + signal.SIGKILL] * 3 + [0, 0]
    assert process.output.count("done 20 of 2") == 2


def test_an_operation_for_which_there_is_no_memory_fails() -> None:
    """In Horovod as published, who waits for it waits for ever."""
    launch = [HOROVODRUN, "-np", "2", "-H", "localhost:2", "--gloo"]
    with run_process([*launch, sys.executable, NO_MEMORY]) as process:
        assert process.wait(60) == 0, process.output
        assert process.output.count("the operation has failed") == 2

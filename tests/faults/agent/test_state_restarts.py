"""Agent, memory and State together: what Horovod aborts goes on from its own last commit, to the same bytes."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.agent.conftest import Agent
from tests.support.processes import run_process

ABORTING = Path(__file__).with_name("aborting.py")
STEPS = 20


def undisturbed() -> str:
    """The end of the same training without an abort."""
    with run_process([sys.executable, ABORTING, str(STEPS)]) as process:
        assert process.wait(60) == 0, process.output
    return process.stdout.splitlines()[-1]


def test_training_that_horovod_aborts_ends_as_if_it_had_not_been(agent: Agent, tmp_path: Path) -> None:
    once = {"codes": [134], "limit": 1, "pause_s": 0.01}
    agent.start(0, sys.executable, ABORTING, STEPS, tmp_path / "marker", restart=once)
    agent.order({"do": "finish"})
    assert agent.process.wait(100) == 0, agent.process.output
    assert [news["code"] for news in agent.news("exited")] == [134, 0]
    first, second, end = agent.written(0).decode().splitlines()
    assert (first, second) == ("from 0 steps", "from 6 steps")  # 8 were done, the last commit was of the 6th
    # Weights, AdamW's state, counters, and the generator behind the dropout: all went on where the commit was.
    assert end == undisturbed()

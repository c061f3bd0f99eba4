"""The kernel kills a training process because memory is short. The agent distinguishes that from any other SIGKILL."""

from __future__ import annotations

import signal
import subprocess

from tests.faults.agent.launching import AGENT, WAIT, Agent
from tests.support.memory_cgroup import limited
from tests.support.processes import run_process

LIMIT = 192 << 20
EATER = "import time\nprint('up', flush=True)\nkept = bytearray(400 << 20)\ntime.sleep(600)"


def test_a_process_killed_for_lack_of_memory_differs_from_one_killed_by_a_user() -> None:
    with limited(LIMIT) as within, run_process([*within, *AGENT], stdin=subprocess.PIPE) as process:
        agent = Agent(process)
        agent.python(1, WAIT)
        agent.wait_for_text(1, b"up")
        agent.python(0, EATER)
        eaten = agent.wait_for("exited", 0)
        assert (eaten["signal"], eaten["oom"]) == (signal.SIGKILL, True)
        agent.order({"do": "kill", "slot": 1})
        killed = agent.wait_for("exited", 1)
        assert (killed["signal"], killed["oom"]) == (signal.SIGKILL, False)
        agent.hang_up()
        process.wait()

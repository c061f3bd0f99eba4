"""What a worker pod's ``preStop`` does: the agents leave in order while process 1 still stands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.commands import agent_command
from tests.support.processes import run_process

POD = Path(__file__).with_name("leaving_pod.py")
OWN_PROCESSES = [
    "unshare",
    *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]),
    *("--pid", "--fork", "--mount-proc", "--kill-child"),
]


@pytest.fixture(scope="module")
def pod() -> list[str]:
    """What makes a command see no processes but its own, as in a container."""
    if subprocess.run([*OWN_PROCESSES, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a process namespace of its own: run as root, or allow unprivileged user namespaces")
    return [*OWN_PROCESSES, sys.executable, str(POD)]


def told(pod: list[str], *arguments: str) -> dict[str, object]:
    with run_process([*pod, json.dumps(agent_command(sys.executable)), *arguments]) as running:
        assert running.wait(timeout=90) == 0, running.stderr
        outcome: dict[str, object] = json.loads(running.stdout)
    return outcome


def test_agents_end_their_processes_and_themselves_and_nobody_else_is_touched(pod: list[str]) -> None:
    outcome = told(pod, "60", "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    assert outcome == {"leave": 0, "said": "", "agent": 7, "asked": True, "bystander": None}


def test_an_agent_that_takes_longer_is_named_and_left_to_the_pods_end(pod: list[str]) -> None:
    outcome = told(pod, "0.3", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    assert outcome["leave"] == 1
    assert "after 0.3 s agents still run: " in str(outcome["said"])
    assert outcome["agent"] is None


def test_where_there_is_no_agent_a_pod_ends_at_once(pod: list[str]) -> None:
    assert told(pod, "60") == {"leave": 0, "said": ""}

"""After a kill of any process nothing remains: no process, no commit memory, no shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hvd_elastic_ext.io.process_tree import descendants
from tests.faults.agent.conftest import FAMILY, Family, MakeFamily
from tests.faults.agent.launching import AGENT, Agent, start_order
from tests.support import marks
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until


def two_slots(agent: Agent, family: MakeFamily) -> tuple[Family, Family, int]:
    """Start a group of processes in slot 0 and another one in slot 1; also return the pid of the first training
    process."""
    command, born = family("victim")
    others, others_born = family("others")
    agent.start(0, *command)
    agent.start(1, *others)
    return born(), others_born(), agent.wait_for("started", 0)["pid"]


def test_after_a_killed_training_process_its_descendants_end_and_other_slots_live_on(
    agent: Agent, family: MakeFamily
) -> None:
    victim, other, main = two_slots(agent, family)
    os.kill(main, signal.SIGKILL)
    exited = agent.wait_for("exited", 0)
    assert (exited["pid"], exited["code"], exited["signal"]) == (main, 137, 9)
    agent.wait_for("ended", 0)
    victim.check_ended_but_for_its_memory()
    assert all(map(marks.start_time, other.pids))
    assert agent.news("exited", "ended", slot=1) == []
    agent.order({"do": "forget", "slot": 0})
    agent.wait_for("forgotten", 0)
    victim.wait_for_end()
    agent.hang_up()
    assert agent.process.wait() == 137
    other.wait_for_end()


@pytest.mark.parametrize("whole_group", [False, True])
def test_after_a_killed_agent_nothing_of_any_slot_remains(agent: Agent, family: MakeFamily, whole_group: bool) -> None:
    commands = [family("one"), family("two")]
    for slot, (command, _) in enumerate(commands):
        agent.start(slot, *command, grace_s=1000)  # after a kill of the agent there is no grace
    families = [born() for _, born in commands]
    if whole_group:
        os.killpg(agent.process.pid, signal.SIGKILL)
    else:
        agent.process.kill()
    for one in families:
        one.wait_for_end()


def test_after_a_killed_supervisor_nothing_of_its_slot_remains_and_other_slots_live_on(
    agent: Agent, family: MakeFamily
) -> None:
    victim, other, main = two_slots(agent, family)
    supervisor = psutil.Process(main).ppid()
    assert psutil.Process(supervisor).ppid() == agent.process.pid
    os.kill(supervisor, signal.SIGKILL)
    assert agent.wait_for("exited", 0)["signal"] == 9  # the kernel kills the training process with its supervisor
    agent.wait_for("ended", 0)
    victim.check_ended_but_for_its_memory()
    assert all(map(marks.start_time, other.pids))
    agent.order({"do": "kill", "slot": 1}, {"do": "finish"})
    assert agent.process.wait() == 137
    other.wait_for_end()
    victim.wait_for_end()


PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE)
child.stdin.write(sys.argv[1].encode())
child.stdin.flush()
child.wait()
"""
"""A launcher that writes one line of orders to a command, and keeps its pipe open."""


def under_a_parent(command: list[str], *agent: str) -> list[str]:
    return [sys.executable, "-c", PARENT, json.dumps(start_order(0, *command)) + "\n", *agent]


def test_after_a_killed_launcher_nothing_remains(family: MakeFamily) -> None:
    command, born = family("one")
    with run_process(under_a_parent(command, *AGENT)) as parent:
        one = born()
        parent.kill()
        one.wait_for_end()
        wait_until(lambda: parent.tree() == [], what="the end of the agent")


def test_when_the_pipe_ends_everything_is_asked_and_killed_after_the_grace(agent: Agent, family: MakeFamily) -> None:
    command, born = family("one")
    agent.start(0, *command)
    one = born()
    agent.hang_up()
    assert agent.process.wait() == 137
    one.wait_for_end(timeout=1)
    assert agent.wait_for("ended", 0)["reason"] == "the launcher has left"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_agent_ends_every_slot_in_order(agent: Agent, number: signal.Signals) -> None:
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: exit(print('bye', flush=True)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    for slot in range(2):
        agent.python(slot, code, grace_s=30)
        agent.wait_for_text(slot, b"ready")
    agent.process.send_signal(number)
    assert agent.process.wait() == 0  # the processes' exit code: they ended well
    for slot in range(2):
        assert b"bye" in agent.written(slot)
        assert agent.wait_for("ended", slot)["reason"] == f"the agent was sent {number.name}"


@pytest.mark.parametrize("victim", ["ssh", "sshd"])
def test_after_a_killed_ssh_nothing_remains_on_the_host(
    nethosts: Callable[[int], NetHosts], family: MakeFamily, victim: str
) -> None:
    hosts = nethosts(1)
    command, born = family("one")
    here = Path(__file__).parents[3]
    remote = f"cd {here} && exec {' '.join(AGENT)}"
    with hosts.launcher.popen(under_a_parent(command, "ssh", "h1", remote)) as parent:
        one = born()
        assert set(one.pids) <= set(hosts["h1"].pids())
        if victim == "ssh":
            line = "ssh h1 "
            pids = [pid for pid in hosts.launcher.pids() if marks.command_line(pid).startswith(line)]
        else:
            pids = [pid for pid in hosts["h1"].pids() if "sshd" in marks.command_line(pid)]
        assert pids
        marks.kill(pids)
        one.wait_for_end()
        assert parent.wait() == 0
        wait_until(
            lambda: not [pid for pid in hosts["h1"].pids() if "hvd_elastic_ext.agent" in marks.command_line(pid)],
            what="the end of the agent",
        )


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_after_any_process_is_killed_at_any_moment_nothing_remains(tmp_path: Path) -> None:
    seed = int(os.environ.get("HVD_TEST_SEED", random.randrange(10**6)))
    chance = random.Random(seed)
    for turn in range(20):
        with run_process(AGENT, stdin=subprocess.PIPE) as process:
            agent = Agent(process)
            born = chance.random() < 0.5
            files = [tmp_path / f"family-{turn}-{slot}" for slot in range(2)]
            for slot, file in enumerate(files):
                agent.start(slot, sys.executable, FAMILY, file, *([] if born else ["alone"]), grace_s=0.2)
            if born:
                wait_until(lambda files=files: all(file.exists() for file in files), what="two families")
            time.sleep(chance.uniform(0, 0.5))
            for _ in range(chance.randrange(1, 4)):
                kill_one(chance, process)
            with contextlib.suppress(BrokenPipeError):
                agent.hang_up()
            what = f"the end of all in turn {turn} of HVD_TEST_SEED={seed}"
            wait_until(lambda process=process: not process.tree(), what=what, timeout=20, show=lambda: process.output)


def kill_one(chance: random.Random, process: RunningProcess) -> None:
    """Kill a random process of the tree with SIGKILL, except Python's resource tracker, which removes shared memory.

    Agent and supervisor end what the other one leaves. So the second of them is not killed before it has done that: if
    both are killed at once, something may be left (docs/agent.md).
    """
    tree = [process.pid] * (process.returncode is None) + process.tree()
    supervisors = {pid for pid in tree if pid != process.pid and marks.command_line(pid) == " ".join(AGENT)}
    spared = supervisors if process.returncode is not None else set()
    victims = [pid for pid in tree if pid not in spared and "resource_tracker" not in marks.command_line(pid)]
    if victims:
        victim = chance.choice(victims)
        below = descendants(victim) if victim in supervisors else []
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        if victim == process.pid:
            process.popen.wait(30)
        wait_until(lambda: not any(map(marks.start_time, below)), what="the end of what the supervisor had started")
    time.sleep(chance.uniform(0, 0.05))

"""Work on commits beside training: a real agent, the real program, memory that outlives its process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.agent.launching import AGENT, Agent, check_all_was_closed, linked
from tests.support import marks
from tests.support.processes import RunningProcess, run_process
from tests.support.stopped_helpers import Stopping
from tests.support.waiting import wait_until


class Stoppable(Agent):
    """An agent whose helpers stop when a test wants that."""

    def __init__(self, process: RunningProcess, stopping: Stopping) -> None:
        super().__init__(process)
        self.stopping = stopping


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Stoppable]:
    stopping = Stopping(tmp_path / "stopping")
    with run_process(AGENT, stdin=subprocess.PIPE, env=stopping.env) as process:
        yield Stoppable(process, stopping)
    check_all_was_closed(process)


KEEP = """
import os, sys, time
import torch
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from tests.unit.worker.made_commits import contents
from hvd_elastic_ext.checkpoint.values.write import write as text_of
from hvd_elastic_ext.worker.commits.buffer import Contents

def own(number):
    return text_of({"number": number}, []).encode()

def tree(number):
    return b'{"$values":' + own(number) + b'}'

def commit(number):
    tensors = [torch.full((1000,), float(number)), torch.arange(10) + number]
    buffer.take(Contents(tree(number), tensors, [True, True], own(number)), Identity(5, 1, 1, number), step=number)

buffer = CommitBuffer(open_sides([int(each) for each in os.environ["HVD_ELASTIC_COMMIT_FDS"].split(",")]))
last = buffer.last()
print("found", None if last is None else (last.record.identity.number, last.record.stored), flush=True)
if last is None:
    for number in (1, 2):
        commit(number)
    print("kept", buffer.keep(), flush=True)
    for number in range(3, 9):
        commit(number)
else:
    print("sums", [float(view.double().sum()) for view in last.views], flush=True)
time.sleep(100)
"""
"""Keeps its second commit, makes six more, and prints what it found at its start."""


def write(store: Path, side: int, *, number: int = 2) -> dict[str, Any]:
    request = {"do": "write", "place": str(store), "commit": [5, 1, 1, number], "parts": 1}
    return {"do": "helper", "id": 1, "slots": [0], "request": {**request, "shares": {"0": [0, 0, side]}}}


def sealed(agent: Agent, store: Path) -> None:
    """Make a checkpoint of the commit that slot 0 keeps."""
    agent.python(0, KEEP)
    agent.order(write(store, int(agent.wait_for_text(0, b"kept ").split()[-1])))
    part = agent.wait_for("helper")["answer"]
    assert "failed" not in part, part
    request = {"do": "seal", "place": str(store), "world": 1, "parts": 1, "written": [part], "keep": 3}
    agent.order({"do": "helper", "id": 2, "slots": [0], "request": request})
    assert "failed" not in agent.wait_for("helper", count=2)["answer"]
    ended = agent.wait_for("helper_ended")
    if ended["id"] == 1:  # the first helper had ended before the second one replaced it
        ended = agent.wait_for("helper_ended", count=2)
    assert (ended["id"], ended["code"]) == (2, 0)


def test_helpers_write_a_kept_commit_and_load_it_into_the_memory_of_another_slot(
    agent: Stoppable, tmp_path: Path
) -> None:
    sealed(agent, tmp_path)
    agent.order(load(3, tmp_path, 1))
    loaded = agent.wait_for("helper", count=3)["answer"]
    assert (loaded["step"], loaded["generation"]) == (2, 1)
    agent.python(1, KEEP)
    assert b"found (2, True)" in agent.wait_for_text(1, f"sums {[2000.0, 65.0]}".encode())
    helper = stopped_helper(agent, write(tmp_path, int(agent.written(0).split()[-1]), number=3))
    agent.order({"do": "drop", "slots": [0]})
    agent.order(*({"do": "stop", "slot": slot, "grace_s": 0} for slot in range(2)), {"do": "finish"})
    agent.process.wait(30)
    assert marks.start_time(helper) is None  # it must not exist any more when the agent has ended


def test_an_agent_that_ends_has_closed_all_that_it_opened(agent: Stoppable, tmp_path: Path) -> None:
    """Links, proxies and helpers, also one that was replaced; every warning of this agent is an error."""
    agent.order(linked(0, "say(say='parked'); hear()"))
    agent.wait_for("said", 0)
    for number in (1, 2):
        agent.order(load(number, tmp_path, 0))
    agent.wait_for("helper_ended")
    agent.order({"do": "stop", "slot": 0, "grace_s": 0}, load(3, tmp_path, 0), {"do": "finish"})
    agent.process.wait(30)
    check_all_was_closed(agent.process)


def load(number: int, store: Path, slot: int) -> dict[str, Any]:
    request = {"do": "load", "place": str(store), "ranks": {str(slot): 0}}
    return {"do": "helper", "id": number, "slots": [slot], "request": request}


def stopped_helper(agent: Stoppable, order: dict[str, Any]) -> int:
    """Order a helper that stops before it does anything."""
    before = helpers_of(agent)
    with agent.stopping.of(order["request"]["do"]):
        agent.order(order)
        [pid] = wait_until(
            lambda: [pid for pid in helpers_of(agent) if pid not in before and marks.stat(pid)[0] == "T"],
            what="the helper",
            timeout=30,
        )
    return pid


def test_a_helper_that_is_dropped_ends_and_the_next_one_is_done(agent: Stoppable, tmp_path: Path) -> None:
    stopped_helper(agent, load(1, tmp_path, 0))
    second = stopped_helper(agent, load(2, tmp_path, 0))
    wait_until(lambda: helpers_of(agent) == [second], what="the end of the first", timeout=30)
    agent.order({"do": "drop", "slots": [0, 7]})
    wait_until(lambda: helpers_of(agent) == [], what="the end of the second", timeout=30)
    agent.order(load(3, tmp_path, 0))
    assert agent.wait_for("helper")["answer"] == {}
    assert agent.wait_for("helper_ended")["id"] == 3


def test_a_dropped_helper_cannot_write_to_the_memory_of_the_next_process(agent: Stoppable, tmp_path: Path) -> None:
    helper = stopped_helper(agent, load(1, tmp_path, 0))
    before = memory_of(helper)
    agent.order({"do": "drop", "slots": [0]})
    agent.order({"do": "forget", "slot": 0})
    agent.python(0, "import time; time.sleep(100)")
    started = agent.wait_for("started")
    assert len(memory_of(started["pid"])) == len(before) == 3
    assert memory_of(started["pid"]).isdisjoint(before)


def test_a_helper_that_fails_says_why(agent: Stoppable, tmp_path: Path) -> None:
    agent.order({"do": "helper", "id": 9, "slots": [0], "request": {"do": "dance"}})
    ended = agent.wait_for("helper_ended")
    assert (ended["id"], ended["code"]) == (9, 1)
    assert "KeyError" in ended["words"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_helper_ends_with_its_agent(agent: Stoppable, tmp_path: Path, end: signal.Signals) -> None:
    helper = stopped_helper(agent, load(1, tmp_path, 0))
    agent.process.send_signal(end)
    agent.process.wait(30)
    wait_until(lambda: marks.start_time(helper) is None, what="the end of the helper", timeout=10)


def memory_of(pid: int) -> set[int]:
    """Return the commit memory that a process has open. The process may close other files meanwhile."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "hvd-commit" in os.readlink(entry):
                found.add(entry.stat().st_ino)
    return found


def helpers_of(agent: Agent) -> list[int]:
    """Return the helpers of this agent."""
    children = psutil.Process(agent.process.pid).children()
    return [child.pid for child in children if "checkpoint.programs.agent_requests" in marks.command_line(child.pid)]

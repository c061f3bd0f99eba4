"""Agents that get their orders from tests, and groups of processes that are hard to end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.agent.launching import AGENT, Agent, Begin, Launcher, agent_process, check_all_was_closed, launching
from tests.support import marks
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

FAMILY = Path(__file__).with_name("descendants.py")


@pytest.fixture
def agent() -> Iterator[Agent]:
    with run_process(AGENT, stdin=subprocess.PIPE) as process:
        yield Agent(process)
    check_all_was_closed(process)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with launching() as one:
        yield one


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start an agent, with a launcher or with its input line."""
    with contextlib.ExitStack() as stack:

        def start(whom: Launcher | str, *, preset: str = "", **more: object) -> RunningProcess:
            line = whom if isinstance(whom, str) else whom.line(**more)
            process = stack.enter_context(agent_process(line, tmp_path, preset=preset))
            stack.callback(lambda: print(process.pid, process.output))  # pytest shows it if a test fails
            return process

        yield start


@dataclass(frozen=True)
class Family:
    """The processes of one ``descendants.py``, and the memory that they hold."""

    pids: list[int]
    shared: str
    memfds: set[tuple[int, int]]

    def remains(self) -> list[str]:
        """Return what is still left of it."""
        left = [f"process {pid}: {marks.command_line(pid)}" for pid in self.pids if marks.start_time(pid)]
        left += [f"commit memory, held by {pid}" for pid in holders_of(self.memfds)]
        left += [self.shared] if (Path("/dev/shm") / self.shared).exists() else []
        return left

    def wait_for_end(self, *, timeout: float = 15) -> None:
        wait_until(lambda: not self.remains(), what="the end of it all", timeout=timeout, show=self.remains)

    def check_ended_but_for_its_memory(self) -> None:
        """Check that only the commit memory is left, for the next process in the slot."""
        assert not [line for line in self.remains() if "commit memory" not in line]


def holders_of(memfds: set[tuple[int, int]]) -> list[int]:
    """Return the processes that have one of these files open."""
    found = []
    for pid in marks.pids():
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    facts = entry.stat()
                    if (facts.st_dev, facts.st_ino) in memfds:
                        found.append(pid)
    return found


MakeFamily = Callable[[str], tuple[list[str], Callable[[], Family]]]


@pytest.fixture
def family(tmp_path: Path) -> MakeFamily:
    """Make a command by name, which runs under a shell like ``bash train.sh``, and a function that waits until all its
    processes live."""

    def make(name: str) -> tuple[list[str], Callable[[], Family]]:
        file = tmp_path / name

        def born() -> Family:
            wait_until(file.exists, what=f"the family {name}", timeout=30)
            told = json.loads(file.read_text())
            told["memfds"] = {(device, inode) for device, inode in told["memfds"]}
            one = Family(**told)
            assert all(map(marks.start_time, one.pids))
            assert holders_of(one.memfds)
            assert (Path("/dev/shm") / one.shared).exists()
            return one

        return ["sh", "-c", 'trap "" TERM; "$@"; :', "sh", sys.executable, str(FAMILY), str(file)], born

    return make

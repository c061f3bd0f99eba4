"""A test parent for the agent, and families that are hard to end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.agent.joined import Begin
from tests.faults.agent.launching import AGENT, Launcher, agent_process, launching, start_order
from tests.support import marks
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

FAMILY = Path(__file__).with_name("family.py")
PARENT = Path(__file__).with_name("parent.py")


class Agent:
    """A running agent, as a launcher sees it."""

    def __init__(self, process: RunningProcess) -> None:
        self.process = process
        self._seen: list[dict[str, Any]] = []
        self._offset = 0

    def order(self, *orders: dict[str, Any] | str) -> None:
        pipe = self.process.popen.stdin
        assert pipe is not None
        for order in orders:
            pipe.write((order if isinstance(order, str) else json.dumps(order)) + "\n")
        pipe.flush()

    def start(self, slot: int, *argv: str | Path, **more: object) -> None:
        self.order(start_order(slot, *argv, **more))

    def python(self, slot: int, code: str, *arguments: str | Path, **more: object) -> None:
        self.start(slot, sys.executable, "-c", code, *arguments, **more)

    def hang_up(self) -> None:
        assert self.process.popen.stdin is not None
        self.process.popen.stdin.close()

    def news(self, *events: str, slot: int | None = None) -> list[dict[str, Any]]:
        new = self.process.stdout[self._offset :].rpartition("\n")[0]
        self._seen += [json.loads(line) for line in new.splitlines()]
        self._offset += len(new) + 1 if new else 0
        return [
            news
            for news in self._seen
            if (not events or news["event"] in events) and (slot is None or news.get("slot") == slot)
        ]

    def wait_for(self, event: str, slot: int | None = None, *, count: int = 1, timeout: float = 30) -> dict[str, Any]:
        """The ``count``-th news of the kind."""
        wait_until(
            lambda: len(self.news(event, slot=slot)) >= count,
            what=f"{event!r} number {count} of slot {slot}",
            timeout=timeout,
            show=lambda: self.process.output[-4000:],
        )
        return self.news(event, slot=slot)[count - 1]

    def written(self, slot: int, stream: str = "stdout") -> bytes:
        """What a process has written, exactly."""
        texts = [news["text"] for news in self.news("output", slot=slot) if news["stream"] == stream]
        return b"".join(text.encode("utf-8", "surrogateescape") for text in texts)

    def wait_for_text(self, slot: int, text: bytes) -> None:
        wait_until(
            lambda: text in self.written(slot), what=f"{text!r} of slot {slot}", show=lambda: self.process.output
        )

    def kill(self) -> None:
        self.process.kill()


@pytest.fixture
def agent() -> Iterator[Agent]:
    with run_process(AGENT, stdin=subprocess.PIPE) as process:
        yield Agent(process)


@dataclass(frozen=True)
class Family:
    """Who belongs to one ``family.py``, and what it holds."""

    pids: list[int]
    shared: str
    memfds: set[tuple[int, int]]

    def remains(self) -> list[str]:
        """What is still there of it."""
        left = [f"process {pid}: {marks.command_line(pid)}" for pid in self.pids if marks.start_time(pid)]
        left += [f"commit memory, held by {pid}" for pid in holders_of(self.memfds)]
        left += [self.shared] if (Path("/dev/shm") / self.shared).exists() else []
        return left

    def wait_for_end(self, *, timeout: float = 15) -> None:
        wait_until(lambda: not self.remains(), what="the end of it all", timeout=timeout, show=self.remains)


def holders_of(memfds: set[tuple[int, int]]) -> list[int]:
    """Processes that have one of these open or mapped."""
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
    """Gives a name a command, under a shell as ``bash train.sh`` is, and what waits until all of that family live."""

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


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with launching() as one:
        yield one


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts an agent, given its launcher or its line."""
    with contextlib.ExitStack() as stack:

        def start(whom: Launcher | str, **more: object) -> RunningProcess:
            line = whom if isinstance(whom, str) else whom.line(**more)
            process = stack.enter_context(agent_process(line, tmp_path))
            stack.callback(lambda: print(process.pid, process.output))  # shown where a test fails
            return process

        yield start

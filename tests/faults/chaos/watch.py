"""Observes from outside which commits a job's agents hold in their commit memory, and when agents end.

A commit may come into an agent's memory without any training process. So the output of processes does not show which
agent holds what. The watch looks many times a second, and again just before it kills an agent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from hvd_elastic_ext.agent.notices.files import NOTICE
from hvd_elastic_ext.agent.prestop import notice_files
from hvd_elastic_ext.core.commands import is_agent
from hvd_elastic_ext.core.commit_record import PAGE, Identity, Record, newest
from tests.support import marks

MARK: Final = "HVD_CHAOS"
"""The environment variable that marks all processes of a job."""
SCAN_S: Final = 0.2
"""Seconds between two looks for new agents."""
LOOKS: Final = 4
"""A process that was not an agent at so many looks is not checked any more."""
MEMORY: Final = "/memfd:hvd-commit-"


@dataclass(slots=True)
class Agent:
    """``commit`` and ``step``: of the newest commit that it was seen to hold."""

    pid: int
    host: str
    pidfd: int
    commit: Identity | None = None
    step: int = 0
    gone: bool = False
    killed: bool = False

    @property
    def notice_file(self) -> Path:
        [path] = notice_files(self.pid)
        return Path(path)


class Watch:
    """Follows the agents of the job with ``mark``, and writes its observations to ``path``."""

    def __init__(self, mark: str, path: Path) -> None:
        self.agents: list[Agent] = []
        self._mark = mark
        self._file = path.open("a", buffering=1)
        self._scan_at = 0.0
        self._looked: dict[int, int] = {}

    def close(self) -> None:
        self._file.close()
        for agent in self.agents:
            os.close(agent.pidfd)

    def note(self, kind: str, number: int, at: float | None = None, **fields: object) -> None:
        """Write a line."""
        words = "".join(f" {name} {value}" for name, value in fields.items())
        self._file.write(f"{time.monotonic() if at is None else at:.6f} {kind} {number}{words}\n")

    def look(self) -> None:
        """Look for new agents, and at the commits that all agents hold now."""
        if time.monotonic() >= self._scan_at:
            self._scan_at = time.monotonic() + SCAN_S
            self.agents += self._newcomers()
        self._see(self.living())

    def living(self) -> list[Agent]:
        """Return the agents whose end was not seen yet."""
        return [agent for agent in self.agents if not agent.gone]

    def on(self, host: str) -> Agent | None:
        """Return the living agent of a host; None if there is none."""
        return next((agent for agent in reversed(self.living()) if agent.host == host), None)

    def ended_by_force(self) -> set[str]:
        """Return the hosts whose last agent was killed: that agent could not remove its socket."""
        return {host for host, killed in {agent.host: agent.killed for agent in self.agents}.items() if killed}

    def kill(self, agent: Agent) -> None:
        """Kill an agent with SIGKILL. Writes what it held until then."""
        self._see([agent] if not agent.gone else [])
        self.note("killed", agent.pid, host=agent.host)
        agent.killed = True
        self.signal(agent, signal.SIGKILL)

    def signal(self, agent: Agent, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent.pidfd, number)

    def _see(self, agents: list[Agent]) -> None:
        # The end of an agent is written last: what it passed on before is in another agent's memory, and is written
        # first.
        ended = [agent for agent in agents if select.select([agent.pidfd], [], [], 0)[0]]
        for agent in agents:
            found = _newest(agent.pid)
            if found is not None and found[0] != agent.commit:
                agent.commit, agent.step = found
                name = ".".join(map(str, agent.commit))
                self.note("held", agent.pid, host=agent.host, commit=name, step=agent.step)
        for agent in ended:
            agent.gone = True
            self.note("over", agent.pid, host=agent.host)

    def _newcomers(self) -> Iterator[Agent]:
        there = set(marks.pids())
        self._looked = {pid: count for pid, count in self._looked.items() if pid in there}
        for pid in there:
            count = self._looked.get(pid, 0)
            if count < LOOKS:
                self._looked[pid] = count + 1
                agent = self._agent(pid)
                if agent is not None:
                    self._looked[pid] = LOOKS
                    self.note("agent", agent.pid, host=agent.host)
                    yield agent

    def _agent(self, pid: int) -> Agent | None:
        """Return the agent that a process is; None if it is none of this job, a fork of one, or has no socket yet."""
        if not is_agent(_words(pid)) or marks.environment(pid).get(MARK) != self._mark:
            return None
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        files = [] if is_agent(_words(next(marks.ancestors(pid), 0))) else notice_files(pid)
        if not files:
            os.close(pidfd)
            self._looked[pid] -= 1  # its socket may come: look again
            return None
        return Agent(pid, Path(files[0]).name.removesuffix(f".sock{NOTICE}"), pidfd)


def _newest(pid: int) -> tuple[Identity, int] | None:
    """Return the newest commit in an agent's memory, and its step; None if no world has agreed on any."""
    records = [record for record in _records(pid) if record.identity.lineage]
    found = max(records, key=lambda record: record.identity[1:], default=None)
    return None if found is None else (found.identity, found.step)


def _records(pid: int) -> Iterator[Record]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith(MEMORY):
                    with open(entry.path, "rb", buffering=0) as file:
                        page, size = file.read(PAGE), os.fstat(file.fileno()).st_size
                    sealed = newest(page, size - PAGE) if len(page) == PAGE else None
                    if sealed is not None:
                        yield sealed.record


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []

"""Hosts of a cloud that takes them back: notices over each channel, and the end of the hosts.

Hosts are addresses of this machine. The processes of a host are its agent and all below it. At the host's end all of
them are killed at the same moment. Another host replaces it, sometimes with the same name; its UID differs, as a pod's
does.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psutil

from discover.metrics import Metrics
from discover.publish.server import Health, LatestPublication, Routes, Server, UnixAddress
from hvd_elastic_ext.agent.prestop import notice_files
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Departure, Publication
from tests.support import marks
from tests.support.metadata import AwsService, MetadataServer
from tests.support.metadata.aws import SPOT
from tests.support.metadata.service import Call, Reply, Tokens, iso
from tests.support.waiting import wait_until

Channel = Literal["list", "file", "signal", "cloud"]
CHANNELS: Final[tuple[Channel, ...]] = ("list", "file", "signal", "cloud")
"""The daemon's push; a file beside the agent; such a file and SIGTERM, as a pod's hook does; the metadata service."""
REASON: Final = "spot reclaim"


@dataclass(slots=True)
class Life:
    """One host from its start to its end. ``pids``: its training processes; ``agent``: 0 until there is one."""

    host: Host
    since: float
    agent: int = 0
    pids: list[int] = field(default_factory=list)
    told: tuple[Channel, float, float] | None = None
    """The channel of its notice, when it got that, and when it will be gone (mono)."""
    files: list[Path] = field(default_factory=list)
    """The notice files that were written for it."""
    gone: float | None = None
    """When all of its processes had ended (mono)."""
    forced: bool = False
    """It had not left by then, and was killed while it worked."""

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def has_left(self) -> bool:
        """Whether it has had training processes, and has none now."""
        return bool(self.pids) and not any(map(marks.start_time, self.pids))

    def kill(self) -> None:
        """Kill all processes of the host at the same moment."""
        try:
            family = [psutil.Process(self.agent), *psutil.Process(self.agent).children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        pids = [process.pid for process in family] + [pid for pid in self.pids if marks.start_time(pid) is not None]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        wait_until(lambda: not any(map(marks.start_time, pids)), what=f"the end of {self.name}", timeout=30)


class Region(AwsService):
    """A metadata service that tells its machines apart by the agents that ask."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[int, str] = {}
        self._sessions: dict[int, int] = {}

    def take_back(self, agent: int, *, in_s: float) -> bool:
        """Announce to an agent that its machine ends in ``in_s`` seconds. False if it has never asked."""
        if agent not in self._sessions.values():
            return False
        self._taken[agent] = json.dumps({"action": "terminate", "time": iso(time.time() + in_s)})
        return True

    def answer(self, call: Call) -> Reply:
        number = self.tokens.number(call)
        if call.path == Tokens.PATH and call.method == "PUT":
            self._sessions[len(self.tokens)] = _agent_at(call.port)
        elif call.path == SPOT and number is not None and (said := self._taken.get(self._sessions[number])):
            return Reply(200, said)
        return super().answer(call)


def _agent_at(port: int) -> int:
    """Return the agent whose child uses this port of 127.0.0.1; 0 if there is none."""
    for connection in psutil.net_connections("tcp4"):
        if connection.pid and connection.laddr and connection.laddr.port == port and connection.pid != os.getpid():
            return psutil.Process(connection.pid).ppid()
    return 0


class Cloud:
    """``lives``: all hosts so far, in the order of their start. It serves its list as the daemon does."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        clock = SystemClock()
        self.socket = folder / "push"
        self.region = MetadataServer(Region())
        self.lives: list[Life] = []
        self._chance = chance
        self._board = LatestPublication()
        self._routes = Routes(self._board, vitals=Health(clock), metrics=Metrics(clock))
        self._server = Server(UnixAddress(self.socket), self._routes)
        self._sequence = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Cloud]:
        """Serve the list of hosts and the metadata."""
        self._server.start()
        try:
            with self.region:
                yield self
        finally:
            self._routes.close()
            self._server.close()

    @property
    def options(self) -> list[str]:
        """Options of a job that gets its hosts here."""
        return ["--discovery", f"unix://{self.socket}", "--notices-from", "aws", "--metadata-url", self.region.url]

    def here(self) -> list[Life]:
        """Return the hosts that are not gone, with or without notice."""
        return [life for life in self.lives if life.gone is None]

    def add(self, name: str | None = None) -> None:
        """Start a host with this name, or with a new one. :meth:`publish` publishes it."""
        number = len(self.lives) + 1
        host = Host(name or f"127.0.{1 + number // 250}.{1 + number % 250}", 1, uid=f"uid-{number}")
        self.lives.append(Life(host, time.monotonic()))

    def publish(self) -> None:
        """Publish the present list."""
        listed = [life for life in self.here() if life.told is None or life.told[0] != "list"]
        ahead = time.time() - time.monotonic()
        going = [
            Departure(life.name, REASON, life.told[2] + ahead)
            for life in self.here()
            if life.told is not None and life.told[0] == "list"
        ]
        self._sequence += 1
        hosts = HostSet(tuple(life.host for life in listed))
        self._board.publish(Publication("tests", self._sequence, hosts, tuple(going)))

    def give_notice(self, lives: list[Life], *, in_s: float) -> None:
        """Give notice to these hosts, each over a random channel: they will be gone in ``in_s`` seconds."""
        for life in lives:
            channel, now = self._chance.choice(CHANNELS), time.monotonic()
            if channel == "cloud" and not self.region.service.take_back(life.agent, in_s=in_s):
                channel = "list"  # it has just started, and has not asked yet
            life.told = (channel, now, now + in_s)
            if channel in ("file", "signal"):
                life.files = list(map(Path, notice_files(life.agent)))
                for path in life.files:
                    fresh = path.with_name(f"{path.name}.new")
                    fresh.write_text(json.dumps({"reason": REASON, "deadline": time.time() + in_s}))
                    fresh.replace(path)
            if channel == "signal":
                os.kill(life.agent, signal.SIGTERM)
        self.publish()

    def end(self, life: Life) -> None:
        """End a host at once, whatever it does, and remove it from the list. After the last host, no list is
        published."""
        life.kill()
        life.gone = time.monotonic()
        if self.here():
            self.publish()
        for path in life.files:
            path.unlink(missing_ok=True)  # on a machine of its own, the file would disappear with the machine

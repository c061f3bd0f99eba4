"""Hosts of a cloud that takes them back: each channel by which they are told, and their end.

Hosts are addresses of this machine. What runs on one is its agent with everything below it; when the host's time is
over that is killed at one moment. Another host comes in its place, sometimes under the same name, with a UID of its
own as a pod has.
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

from discover.common.health import Health
from discover.common.metrics import Metrics
from discover.publishing.addresses import UnixAddress
from discover.publishing.http_server import Server
from discover.publishing.latest import LatestPublication
from discover.publishing.routes import Routes
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
"""By the daemon's push; a file beside the agent; that and SIGTERM, as a pod's hook does; the metadata service."""
REASON: Final = "spot reclaim"


@dataclass(slots=True)
class Life:
    """One host from its coming to its end. ``pids`` are its training processes; ``agent`` is 0 until there is one."""

    host: Host
    since: float
    agent: int = 0
    pids: list[int] = field(default_factory=list)
    told: tuple[Channel, float, float] | None = None
    """How, when, and by when it is gone (mono)."""
    files: list[Path] = field(default_factory=list)
    """Where it was told."""
    gone: float | None = None
    """When nothing of it was left (mono)."""
    forced: bool = False
    """It had not left by then, and was killed at its work."""

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def has_left(self) -> bool:
        """It has had training processes, and has none now."""
        return bool(self.pids) and not any(map(marks.start_time, self.pids))

    def kill(self) -> None:
        """Everything on it at one moment; its agent, which was its name, is forgotten."""
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
    """A metadata service that knows its machines by the agents that ask."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[int, str] = {}
        self._sessions: dict[int, int] = {}

    def take_back(self, agent: int, *, in_s: float) -> bool:
        """Have an agent told that its machine ends in so many seconds. False if it has never asked."""
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
    """Whose child asks from this port of 127.0.0.1."""
    for connection in psutil.net_connections("tcp4"):
        if connection.pid and connection.laddr and connection.laddr.port == port and connection.pid != os.getpid():
            return psutil.Process(connection.pid).ppid()
    return 0


class Cloud:
    """``lives`` are all hosts there ever were, in the order of their coming. It serves its list as the daemon does."""

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
        """For a job that has its hosts here."""
        return ["--discovery", f"unix://{self.socket}", "--notices-from", "aws", "--metadata-url", self.region.url]

    def here(self) -> list[Life]:
        """Those that are not gone, whether they were told to go or not."""
        return [life for life in self.lives if life.gone is None]

    def add(self, name: str | None = None) -> None:
        """A new host comes, under this name or one that nobody ever had. :meth:`publish` tells of it."""
        number = len(self.lives) + 1
        host = Host(name or f"127.0.{1 + number // 250}.{1 + number % 250}", 1, uid=f"uid-{number}")
        self.lives.append(Life(host, time.monotonic()))

    def publish(self) -> None:
        """Push the list as it is."""
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
        """Tell these hosts, each by a channel that is drawn, that they will be gone then."""
        for life in lives:
            channel, now = self._chance.choice(CHANNELS), time.monotonic()
            if channel == "cloud" and not self.region.service.take_back(life.agent, in_s=in_s):
                channel = "list"  # it has only just come, and has not asked yet
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
        """A host is gone, whatever it does now, and is listed no more; the last of all takes the list along."""
        life.kill()
        life.gone = time.monotonic()
        if self.here():
            self.publish()
        for path in life.files:
            path.unlink(missing_ok=True)  # on a machine of its own it would have gone with that

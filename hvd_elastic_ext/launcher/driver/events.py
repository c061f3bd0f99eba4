"""What happens to a job, as values. The driver is told of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger


@dataclass(frozen=True, slots=True)
class HostsChanged:
    """A new list of hosts was accepted. ``departing``: by host, why it goes, and when (mono) if that is known."""

    hosts: HostSet
    departing: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent has connected, or connected again; ``hello`` says what it has."""

    host: str
    hello: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentUnfit:
    """An agent that has joined cannot be used; ``why`` says so, and what to do about it."""

    host: str
    why: str


@dataclass(frozen=True, slots=True)
class AgentLost:
    """There is no connection to an agent any more. It may come back; its silence is what counts."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """The command that started a host's agent has ended. ``remark``: the last that it wrote."""

    host: str
    code: int
    remark: str


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """What ends a host's agent without a connection has ended; with code 0 there is no agent any more."""

    host: str
    code: int
    remark: str


@dataclass(frozen=True, slots=True)
class News:
    """An agent says something."""

    host: str
    news: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LauncherPaused:
    """The launcher itself stood still for so long: stopped, paused with its machine, or held up by a disk."""

    seconds: float


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """Processes, of one host or all, may have to find their peers in another way from the next world on."""

    host: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """An earlier launcher had agents on these hosts: they are waited for, until ``until`` (mono) at most."""

    hosts: tuple[Host, ...]
    until: float


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """Somebody has said how a host is; ``event`` and ``fields`` are the journal's."""

    ledger: HealthLedger
    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorldNotBegun:
    """What starts the processes of a world has failed, or ended before they were done."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is to end, with this outcome; the first one holds. Told again: at once."""

    why: JobFailed


@dataclass(frozen=True, slots=True)
class Look:
    """It is time for planners to be asked."""


Event: TypeAlias = (
    HostsChanged
    | AgentJoined
    | AgentUnfit
    | AgentLost
    | LaunchEnded
    | AgentEnded
    | News
    | LauncherPaused
    | PeersChanged
    | Expected
    | HealthChanged
    | WorldNotBegun
    | End
    | Look
)

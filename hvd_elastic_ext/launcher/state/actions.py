"""What the driver wants done outside, as values, in order.

Planners and reducers add them to :attr:`JobState.to_do`; only the executor does them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.rules.membership.rendezvous import ProcessId


@dataclass(frozen=True, slots=True)
class StartAgent:
    """Start the agent of a host, or have a living one connect again."""

    host: Host


@dataclass(frozen=True, slots=True)
class EndAgent:
    """End a host's agent and all its processes, without a connection to it."""

    host: Host


@dataclass(frozen=True, slots=True)
class StopLaunch:
    """Give up the start of a host's agent."""

    host: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection to a host's agent. If the agent lives, it connects again and reports what it runs."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Send:
    """Give a host's agent an order."""

    host: str
    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Have a host's agent send a commit to another host. The executor adds the sender's address."""

    host: str
    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process. The executor adds its environment.

    ``life``: the process, and ``place``: what it shows to user code until it has a rank; recordings have these names.
    ``slots``: of the host. ``neighbours``: local rank of each slot of the host that is in use. ``blocked``: slots of
    the host that must not work.
    """

    life: ProcessId
    place: Place
    slots: int
    neighbours: Mapping[int, int]
    blocked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GoLive:
    """Tell a standby process to join the world of ``generation``. The executor adds how to find its peers."""

    life: ProcessId
    generation: int
    place: Place


@dataclass(frozen=True, slots=True)
class TellPeers:
    """Tell a process how to find its peers from the next world on."""

    life: ProcessId


@dataclass(frozen=True, slots=True)
class BeginWorld:
    """The ranks of a world are known: start what the engine starts for it. ``hosts``: the host of each rank."""

    generation: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """Ask for this number of hosts. ``leaving``: those that are not needed any more, none of which trains."""

    hosts: int
    leaving: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Record:
    """Write a line of the journal. ``at``: when it happened (mono), if that was not just now."""

    event: str
    generation: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Save:
    """Save the part of the state that the next launcher needs: it has changed."""


Action: TypeAlias = (
    StartAgent
    | EndAgent
    | StopLaunch
    | HangUp
    | Send
    | SendCommit
    | StartProcess
    | GoLive
    | TellPeers
    | BeginWorld
    | Scale
    | Record
    | Save
)

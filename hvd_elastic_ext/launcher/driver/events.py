"""What happens to a job, as values. The driver has no other input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.health.ledger import HealthLedger


@dataclass(frozen=True, slots=True)
class HostsChanged:
    """A new list of hosts was accepted. ``departing``: by host, the reason and the deadline (mono), if known.

    ``refused``: why a newer list was not accepted; None if there is none.
    """

    hosts: HostSet
    departing: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent has connected, or connected again; ``hello`` lists what it runs and holds. Its welcome is on the way."""

    host: str
    hello: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentUnfit:
    """An agent that has joined cannot be used; ``why``: the reason and the remedy."""

    host: str
    why: str


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The connection to an agent is lost. It may connect again; only its silence counts as a fault."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """The command that started a host's agent has ended. ``remark``: the last line of its output."""

    host: str
    code: int
    remark: str


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """The command that ends a host's agent without a connection has ended. Code 0: the agent has ended."""

    host: str
    code: int
    remark: str


@dataclass(frozen=True, slots=True)
class News:
    """A message from an agent; ``news["event"]`` is a string, the rest is unchecked."""

    host: str
    news: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LauncherPaused:
    """The launcher was paused for ``seconds``: stopped, paused with its machine, or blocked by a disk."""

    seconds: float


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """Processes of one host, or of all, may have to use other addresses of their peers from the next world on."""

    host: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """An earlier launcher had agents on these hosts: wait for them until ``until`` (mono) at most."""

    hosts: tuple[Host, ...]
    until: float


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """A user has blocked or cleared a host; ``event`` and ``fields`` are for the journal."""

    ledger: HealthLedger
    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorldNotBegun:
    """The program that starts the processes of a world has failed, or ended before they were done."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class Scaled:
    """A request for hosts was answered. ``hosts``: how many are asked for now. ``why``: why it failed; None if not."""

    hosts: int
    why: str | None = None


@dataclass(frozen=True, slots=True)
class HostsAskedFor:
    """The number of hosts that is requested now: others than this job may have changed it."""

    hosts: int


@dataclass(frozen=True, slots=True)
class ScaleByHand:
    """A user has asked for a number of hosts; None: the policy decides again."""

    hosts: int | None


@dataclass(frozen=True, slots=True)
class Observed:
    """Signals by name, for ``--autoscale``: of the job, or by host."""

    signals: Mapping[str, float | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class End:
    """End the job with this outcome; the first outcome counts. The second time: at once."""

    why: JobFailed


@dataclass(frozen=True, slots=True)
class Look:
    """Ask all planners."""


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
    | Scaled
    | HostsAskedFor
    | ScaleByHand
    | Observed
    | End
    | Look
)

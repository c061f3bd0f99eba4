"""Actions outside that the driver requests, as values, in order.

Planners and reducers add them to :attr:`JobState.to_do`; only the executor does them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.messages.rank_info import Place

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, RankAssignments, RendezvousAnswer


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
class Tell:
    """Send one message to many processes."""

    processes: Sequence[ProcessId]
    message: Mapping[str, Any]

    def orders(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """One for each host."""
        by_host: dict[str, dict[str, int]] = {}
        for (host, slot), number in self.processes:
            by_host.setdefault(host, {})[str(slot)] = number
        yield from ((host, {"do": "tell", "to": to, "message": self.message}) for host, to in by_host.items())


@dataclass(frozen=True, slots=True)
class AssignRanks:
    """Send the members of a world its number, and then each its rank, in the order of ranks."""

    generation: int
    dealt: RankAssignments

    def orders(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """First the messages about the world, then the answers."""
        for ((host, slot), number), place in self.dealt.places.items():
            message = {"tell": "world", "generation": self.generation, "rank": place.rank, "size": place.size}
            yield host, {"do": "tell", "to": {str(slot): number}, "message": message}
        yield from map(answer_order, self.dealt.answers())


def answer_order(answer: RendezvousAnswer) -> tuple[str, Mapping[str, Any]]:
    """The host whose agent passes on an answer of the rendezvous, and its order."""
    ((host, slot), _), number, status, body = answer
    text = base64.b64encode(body).decode("ascii")
    return host, {"do": "answer", "slot": slot, "id": number, "status": status, "body": text}


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Have a host's agent send a commit to another host. The executor adds the sender's address."""

    host: str
    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process. The executor adds its environment."""

    life: ProcessId
    """The process; recordings have this name, and the next one."""
    place: Place
    """What it shows to user code until it has a rank."""
    slots: int
    """Those of its host."""
    device_of: int
    """The slot whose device it uses: its own, or the one for which a spare stands."""
    neighbours: Mapping[int, int]
    """The local rank of each slot of the host that is in use."""
    blocked: tuple[int, ...]
    """Slots of the host that must not work."""


@dataclass(frozen=True, slots=True)
class GoLive:
    """Tell a standby process to join the world of ``generation``. The executor adds the addresses of its peers.

    ``later``: whether others of that world have begun their training function.
    """

    life: ProcessId
    generation: int
    place: Place
    later: bool = False


@dataclass(frozen=True, slots=True)
class TellPeers:
    """Tell a process how to reach its peers from the next world on."""

    life: ProcessId


@dataclass(frozen=True, slots=True)
class BeginWorld:
    """The ranks of a world are known: start the program of the engine, if it has one. ``hosts``: the host of each
    rank.
    """

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
    | Tell
    | AssignRanks
    | SendCommit
    | StartProcess
    | GoLive
    | TellPeers
    | BeginWorld
    | Scale
    | Record
    | Save
)


# --- what a planner answers


class HeldBack(NamedTuple):
    """Why the next world does not form yet. ``until``: when that is over at the latest (mono), if that is known."""

    reason: str
    until: float | None = None


class WorldQuestion(NamedTuple):
    """Something that may hold the next world back; ``why_not`` answers by :attr:`JobState.decision`.

    It is asked at every look, even if no world would form, and notes in its part of the state what a world needs, which
    may take a while to get. A later planner gets it.
    """

    asks: str
    why_not: Callable[[JobState], HeldBack | None]


class Plan(NamedTuple):
    """``again_at``: when to ask the planner again at the latest (mono), if nothing happens before.

    ``stop``: no planner after this one is asked at this look.

    Actions are not here but in :attr:`JobState.to_do`: reducers request some, too, and the order of all counts.
    """

    again_at: float | None = None
    stop: bool = False


NOTHING: Final = Plan()

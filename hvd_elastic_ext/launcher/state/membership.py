"""What is known of hosts, of the newest world and of the newest commit, beside agents and processes themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.rank_info import Place
from hvd_elastic_ext.launcher.rules.health.restart_delay import Rests
from hvd_elastic_ext.launcher.rules.membership.custody import FORMS, Holding, Stored, Verdict
from hvd_elastic_ext.launcher.rules.membership.membership import Decision
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.state.roster import Worker


class NewerLife(NamedTuple):
    """``host``: as it was listed last, with the life of its present container; ``since`` then (mono)."""

    host: Host
    since: float


@dataclass(slots=True)
class Fleet:
    """The published hosts, and what is known of those that were."""

    hosts: HostSet = field(default_factory=HostSet)
    emptied: bool = False
    """The newest list has no host, and was not believed: somebody worked."""
    unreported_ends: dict[Life, tuple[Worker, int]] = field(default_factory=dict)
    """Ends of processes, and their exit codes, that an earlier launcher started: it may not have heard of them."""
    recovering: set[str] = field(default_factory=set)
    """Hosts of which a member of a world failed, and that have not been back in one."""
    cut_off_live: set[Life] = field(default_factory=set)
    """Processes that were in a world when their host was cut off."""
    rests: Rests = field(default_factory=Rests)
    pods: dict[str, Host] = field(default_factory=dict)
    """Of each pod that was published, by host: the newest one under that name, and its newest life."""
    newer_lives: dict[str, NewerLife] = field(default_factory=dict)
    """Hosts of which another life is listed than that under which their agents joined."""
    lost: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By host, the UID of the pod whose agent was cut off last, and that agent itself: any other agent that has come
    since may be its successor's."""


@dataclass(slots=True)
class World:
    """The newest world: its members, how far it is, and why it was formed."""

    members: tuple[Life, ...] = ()
    begun: bool = False
    """Training has begun: some world has formed."""
    changes: int = 0
    """Worlds formed since the first one."""
    mended: int = 0
    """How many of them followed one that was lost: so often training was rolled back."""
    excused: set[Life] = field(default_factory=set)
    """Members of the newest world that have ended because they were to, or because of others."""
    decision: Decision = field(default_factory=lambda: Decision(None, "", ""))
    """Why it was formed."""
    provisional: Mapping[Life, Place] = field(default_factory=dict)
    """About where each member will be. Made when it is needed first, for all: there may be thousands."""
    own: bool = False
    """A world was formed by this launcher."""
    found: dict[Life, int] = field(default_factory=dict)
    """Generation of each process of an earlier launcher, as it was found."""
    fences: bool = False
    """Members that do not notice by themselves that the world is lost have their connections cut."""
    left_out: frozenset[Life] = frozenset()
    """Members of the worlds before that are not in this one: as long as it forms, members may wait for them."""
    late_from: float = 0.0
    """Before then nobody is late who has been called to the newest world (mono)."""
    before: Counter[str] = field(default_factory=Counter)
    """By host, members of the last world that has formed."""
    lost: Counter[str] = field(default_factory=Counter)
    """By host, members that were lost since a world last formed."""

    @property
    def inherited(self) -> bool:
        """Whether the newest world was formed by an earlier launcher."""
        return bool(self.members) and not self.own


@dataclass(slots=True)
class Change:
    """A change of the world whose cost is still to be told.

    ``first``: rank 0, whose step is waited for. ``pause_s``: the longest that a process did no step. ``stopped_at``:
    when the first process ended (mono), where none lives on that could tell its pause.
    """

    at: float
    generation: int
    first: Life
    fields: dict[str, Any]
    pause_s: float | None = None
    stopped_at: float | None = None


@dataclass(slots=True)
class Resize:
    """What the newest change of the world has cost, as far as that is known."""

    change: Change | None = None
    steps_are_told: bool = False
    lost: list[int] = field(default_factory=list)
    stopped_at: float | None = None

    @property
    def untold(self) -> int | None:
        """The generation of the world whose journal line is still to be written."""
        return None if self.change is None else self.change.generation


@dataclass(slots=True)
class Shortage:
    """``since``: since when there are too few processes (mono); None while there are enough."""

    since: float | None


@dataclass(slots=True)
class Adoption:
    """Hosts that an earlier launcher of this job had."""

    begun: float
    until: float | None = None
    """Until when they are waited for (mono); None if they are not."""
    missing: dict[str, Host] = field(default_factory=dict)
    """Hosts that may train for this job, and were not heard since it has this launcher."""
    failed: dict[str, float] = field(default_factory=dict)
    """When the last start of an agent on one of them has failed (mono)."""
    handed_over: dict[str, float] = field(default_factory=dict)
    """When the last start on one of them has found an agent there, which connects by itself (mono)."""


@dataclass(slots=True)
class Transfer:
    """A commit on its way. ``source`` is None for a checkpoint; ``asked``: the errands that are waited for, and of
    which host each is."""

    target: Seat
    source: Holding | None
    token: str
    began: float
    asked: dict[int, str]

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.target.host,) if self.source is None else (self.source.seat.host, self.target.host)


class FailedTries(NamedTuple):
    """Tries in a row that have failed: when the first one began and the last one ended (mono), between which hosts,
    and how often one of these has connected again meanwhile."""

    began: float
    ended: float
    hosts: tuple[str, ...]
    returns: int = 0

    @property
    def seconds(self) -> float:
        """For how long all tries have failed."""
        return self.ended - self.began


@dataclass(slots=True)
class Transfers:
    """Commits that are sent from one agent's memory to another's, one at a time."""

    current: Transfer | None = None
    not_before: float = 0.0
    failures: dict[Seat | None, FailedTries] = field(default_factory=dict)
    """Of each slot whose commit could not be sent; of None, those to load a checkpoint."""
    looked: dict[str, str] = field(default_factory=dict)
    """Hosts that have loaded the newest complete checkpoint, or found none, and which agent that was."""


@dataclass(slots=True)
class Custody:
    """What was decided about the newest commit, and what the next launcher was told of it."""

    noted_at: float
    noted: tuple[bool, frozenset[Seat], int, Stored | None, int | None] = (False, frozenset(), 0, None, None)
    may_end_since: dict[str, float] = field(default_factory=dict)
    """Since when an agent would have ended if nobody needed its commit (mono), by host."""
    asked_for: set[str] = field(default_factory=set)
    """Hosts whose agents would have ended since the last look."""
    verdict: Verdict = FORMS
    holds_back: bool = False
    """A world would form now but for a commit that is waited for, or on its way."""
    said: str = ""

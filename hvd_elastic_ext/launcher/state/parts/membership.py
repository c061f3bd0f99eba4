"""Hosts, the newest world and the newest commit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.autoscale.decide import Memory
from hvd_elastic_ext.autoscale.observations import SpeedLog
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.custody.custody import FORMS, CustodyDecision, Holding, Stored
from hvd_elastic_ext.launcher.driver.roster import RECONNECT_S, Worker
from hvd_elastic_ext.launcher.membership.next_world import WorldDecision, WorldLimits
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.rules.health.restart_delay import RestartDelays
from hvd_elastic_ext.launcher.rules.membership.world_change import ChangeAction


class NewerLife(NamedTuple):
    """``host``: as it was listed last, with the life of its present container; ``since``: since when (mono)."""

    host: Host
    since: float


@dataclass(slots=True)
class Fleet:
    """The published hosts, and what is known of former ones."""

    hosts: HostSet = field(default_factory=HostSet)
    first_limits: WorldLimits | None = None
    """The first limits of a job that starts on all listed slots."""
    empty_list_refused: bool = False
    """The newest list is empty and was not accepted, because processes ran."""
    list_refused: str | None = None
    """Why the newest list cannot be used; None if it can."""
    unreported_ends: dict[ProcessId, tuple[Worker, int]] = field(default_factory=dict)
    """Ended processes of an earlier launcher, with exit codes: it may not have known of their ends."""
    recovering: set[str] = field(default_factory=set)
    """Hosts on which a member failed, until they are in a world again."""
    cut_off_live: set[ProcessId] = field(default_factory=set)
    """Processes that were in a world when their host was cut off, while members of the newest one may wait for them."""
    restart_delays: RestartDelays = field(default_factory=RestartDelays)
    pods: dict[str, Host] = field(default_factory=dict)
    """By host name, the newest published pod with its newest life."""
    newer_lives: dict[str, NewerLife] = field(default_factory=dict)
    """Hosts whose listed life differs from that of their agent."""
    lost: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By host, the UID of the pod with the agent that was cut off last, and that agent's identity. An agent of another
    identity may belong to the pod that came after."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """Hosts that were cut off for their silence and have not returned, and why. Their processes may still run."""


@dataclass(slots=True)
class World:
    """The newest world: its members, its progress, and why it was formed."""

    members: tuple[ProcessId, ...] = ()
    begun: bool = False
    """Training has begun: some world has formed."""
    changes: int = 0
    """Worlds formed since the first one."""
    rollbacks: int = 0
    """How many of them followed a lost world: each is a roll-back."""
    not_at_fault: set[ProcessId] = field(default_factory=set)
    """Members of the newest world that have ended by order, or because of others."""
    behind: dict[ProcessId, str] = field(default_factory=dict)
    """Those that were ended because they were in an earlier training call than others, and why."""
    decision: WorldDecision = field(default_factory=lambda: WorldDecision(None, "", ""))
    """Why it was formed."""
    provisional: Mapping[ProcessId, Place] = field(default_factory=dict)
    """The place that each member shows until it has its rank; made at first use."""
    own: bool = False
    """A world was formed by this launcher."""
    found: dict[ProcessId, int] = field(default_factory=dict)
    """Generation of each process of an earlier launcher when it was found."""
    fences: bool = False
    """Connections of members that do not notice the loss of their world are cut."""
    left_out: frozenset[ProcessId] = frozenset()
    """Former members that are not in this world. While it forms, members may still wait for them."""
    late_from: float = 0.0
    """No called member counts as late before then (mono)."""
    before: Counter[str] = field(default_factory=Counter)
    """By host, members of the last world that has formed."""
    lost: Counter[str] = field(default_factory=Counter)
    """By host, members that were lost since a world last formed."""
    seats_before: frozenset[Seat] = frozenset()
    """The seats of the members in ``before``."""
    seats_lost: set[Seat] = field(default_factory=set)
    """The seats of the members in ``lost``."""
    trains_alone: str | None = None
    """How it is known that each rank trains alone, in this world or an earlier one; None if it does not."""

    @property
    def inherited(self) -> bool:
        """Whether the newest world was formed by an earlier launcher."""
        return bool(self.members) and not self.own


UNREPORTED_S: Final = 10.0
"""Longest wait of the line about a new world for the first step, unless steps are long."""
UNREPORTED_STEPS: Final = 3.0
"""If steps are long, the wait is this many of them."""
UNREPORTED_BY_OTHERS_S: Final = 120.0
"""As :data:`UNREPORTED_S`, for new processes: they have to load everything first."""


@dataclass(slots=True)
class Change:
    """A change of the world whose cost is not written yet.

    ``first``: rank 0. Its first step, in which it has ``begun``, completes the change. ``pause_s``: the longest time
    without a step. ``stopped_at``: when the first process ended (mono), if no process lives on to report its pause.
    ``step_s``: seconds of a usual step; 0 if unknown. ``survivors``: some members were in a world before, and report
    their pause.
    """

    at: float
    generation: int
    first: ProcessId
    fields: dict[str, Any]
    pause_s: float | None = None
    stopped_at: float | None = None
    step_s: float = 0.0
    begun: bool = False
    survivors: bool = False

    @property
    def report_due(self) -> float:
        """When the line is written at the latest (mono)."""
        return self.at + max(
            UNREPORTED_S if self.stopped_at is None else UNREPORTED_BY_OTHERS_S, UNREPORTED_STEPS * self.step_s
        )


@dataclass(slots=True)
class Resize:
    """The cost of the newest change of the world."""

    change: Change | None = None
    steps_are_reported: bool = False
    lost: list[int] = field(default_factory=list)
    stopped_at: float | None = None

    def stopped(self, now: float) -> None:
        """A process has ended; training waits for its successor."""
        self.stopped_at = now if self.stopped_at is None else self.stopped_at

    @property
    def unrecorded(self) -> int | None:
        """The generation of the world whose journal line is not written yet."""
        return None if self.change is None else self.change.generation


@dataclass(slots=True)
class Adoption:
    """Hosts that an earlier launcher of this job had."""

    begun: float
    until: float | None = None
    """Until when they are waited for (mono); None if they are not."""
    missing: dict[str, Host] = field(default_factory=dict)
    """Hosts that may train for this job, and have not connected to this launcher."""
    failed: dict[str, float] = field(default_factory=dict)
    """When the last start of an agent on one of them has failed (mono)."""
    handed_over: dict[str, float] = field(default_factory=dict)
    """When the last start on one of them found a living agent, which connects by itself (mono)."""
    ends: dict[ProcessId, tuple[int, int]] = field(default_factory=dict)
    """Processes whose end was reported to no launcher: the generation of their world, and the exit code."""

    def on_their_way(self, now: float) -> bool:
        """Whether missing hosts may still connect: by themselves, or by a start of an agent there."""
        recent = now - self.begun < RECONNECT_S
        return bool(self.missing) and (recent or not self.failed.keys() >= self.missing.keys())


@dataclass(slots=True)
class Transfer:
    """A transfer under way. ``source``: None for a checkpoint."""

    target: Seat
    source: Holding | None
    token: str
    began: float

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that take part: the holder's, if there is one, and the target's."""
        return (self.target.host,) if self.source is None else (self.source.seat.host, self.target.host)


class FailedTries(NamedTuple):
    """Failed tries in a row: start of the first and end of the last (mono), the hosts, and how often one of them has
    connected again since."""

    began: float
    ended: float
    hosts: tuple[str, ...]
    returns: int = 0

    @property
    def seconds(self) -> float:
        """For how long all tries have failed."""
        return self.ended - self.began


IN_A_ROW_S: Final = 3.0
"""Failed tries count as in a row if the next one begins within this time."""
TRANSFER_S: Final = 900.0
"""Longest time for a transfer: the largest commit over a slow network."""


@dataclass(slots=True)
class Transfers:
    """Transfers of commits, one at a time."""

    current: Transfer | None = None
    not_before: float = 0.0
    failures: dict[Seat | None, FailedTries] = field(default_factory=dict)
    """By seat of the holder; None: tries to load a checkpoint."""
    looked: dict[str, str] = field(default_factory=dict)
    """Hosts that have loaded the newest complete checkpoint, or found none, with the identity of the agent."""

    def failed(
        self, seat: Seat | None, *, began: float, now: float, hosts: tuple[str, ...], blame: bool = True
    ) -> None:
        """A try has failed. Without ``blame`` it was because of a broken connection: one does not count against the
        holder.
        """
        before, first = self.failures.get(seat), began if blame else now
        if before is not None and began <= before.ended + IN_A_ROW_S:
            first = before.began
        self.failures[seat] = FailedTries(first, now, hosts, 0 if before is None else before.returns)

    def may_begin(self, now: float) -> bool:
        """Whether a transfer may start: none is under way, and the pause after a failed one is over."""
        return self.current is None and now >= self.not_before

    @property
    def next_look(self) -> float:
        """When the pause ends, or the transfer under way times out (mono)."""
        return self.not_before if self.current is None else self.current.began + TRANSFER_S

    @property
    def sending(self) -> Seat | None:
        """The seat whose commit is being sent."""
        return None if self.current is None or self.current.source is None else self.current.source.seat

    @property
    def failing(self) -> dict[Seat, float]:
        """By seat, for how many seconds all tries to send its commit have failed in a row."""
        return {seat: each.seconds for seat, each in self.failures.items() if seat is not None}

    @property
    def loading(self) -> float:
        """For how many seconds all tries to load a checkpoint have failed in a row."""
        each = self.failures.get(None)
        return 0.0 if each is None else each.seconds


@dataclass(slots=True)
class Custody:
    """The decision about the newest commit, and what was saved of it for the next launcher."""

    noted_at: float
    noted: tuple[bool, frozenset[Seat], int, Stored | None, int | None] = (False, frozenset(), 0, None, None)
    may_end_since: dict[str, float] = field(default_factory=dict)
    """By host, since when its agent would have ended without its commit (mono)."""
    asked_for: set[str] = field(default_factory=set)
    """Hosts with agents that would have ended since the last look."""
    decision: CustodyDecision = FORMS
    holds_back: bool = False
    """A world would form now, or its members would get their ranks, but waits for a commit."""
    needs_none: bool = False
    """No transfer is needed, by the newest look: one under way is stopped."""
    logged: str = ""

    def asks_to_end(self, host: str, now: float) -> None:
        """Note that the agent of a host may end, except for its commit, and since when."""
        self.asked_for.add(host)
        self.may_end_since.setdefault(host, now)


@dataclass(slots=True)
class Scaling:
    """The state of ``--autoscale``: requests, decisions, and what was learned. ``since``: its start (mono)."""

    since: float
    wanted: int | None = None
    """Hosts that were asked for last; None before the first request."""
    by_hand: int | None = None
    """The number that a user has asked for; None: the policy decides."""
    leaving: frozenset[str] = frozenset()
    """Listed hosts that are to go: they get no work."""
    unasked: bool = False
    """:attr:`wanted` is not requested yet."""
    ask_at: float = -math.inf
    """No request before then (mono): the last one has failed."""
    asked_at: float = -math.inf
    """When the last request was made (mono)."""
    look_at: float = -math.inf
    """No decision before then (mono)."""
    reason: str = ""
    """The reason of the newest decision."""
    asked_because: str = ""
    """The reason of the newest change."""
    gpu_unknown: bool = False
    """It was logged that there is no value for GPUs."""
    recommended: int | None = None
    """The size that was recommended last, where nothing is asked for."""
    log: SpeedLog = field(default_factory=SpeedLog)
    memory: Memory = field(default_factory=Memory)
    seen: tuple[int, int, tuple[int, float] | None] | None = None
    """By the newest heartbeat of rank 0: generation, step, and from what on the next steps are measured, a number of
    steps and a time, None before the first step of its world. None before the first heartbeat of its world.
    """
    steps: float = 0.0
    host_steps: float = 0.0
    """The number of steps, and the sum over steps of their numbers of hosts."""
    counted: int | None = None
    """The newest counted step of an earlier launcher: later ones are counted at the first heartbeat."""
    resize_s: float = 1.0
    """Seconds without a step that a change costs: the median of the latest ones."""
    pauses_s: tuple[float, ...] = ()
    signals: dict[str, float | Mapping[str, float]] = field(default_factory=dict)
    """By name, observed values other than step times."""

    def paused(self, seconds: float) -> None:
        """A change of the world has cost this time."""
        self.pauses_s = (*self.pauses_s, seconds)[-9:]
        self.resize_s = median(self.pauses_s)


BEHIND_S: Final = 15.0
"""Longest time for a member to leave once another has left; then it is ended."""
NOTICE_S: Final = 5.0
"""Longest time for members with an elastic loop to notice a lost peer, and to report what they roll back."""


@dataclass(slots=True)
class EngineChange:
    """One change in progress. ``began``: when members first got the order; it and ``..._at`` are times (mono)."""

    move: ChangeAction
    cause: str
    reason: str
    ordered_at: float | None = None
    first_gone_at: float | None = None
    began: float | None = None

    @property
    def ends_at(self) -> float | None:
        """When the remaining members are ended (mono); None until one has gone."""
        after_s = BEHIND_S if self.move is ChangeAction.DRAIN else NOTICE_S
        return None if self.first_gone_at is None else self.first_gone_at + after_s


@dataclass(slots=True)
class Restarting:
    """The progress of a change of the world whose processes cannot change worlds."""

    announced: int
    """The newest generation that has begun."""
    change: EngineChange | None = None
    done: set[ProcessId] = field(default_factory=set)
    """Members that have ended well by themselves."""
    ended: dict[Seat, float] = field(default_factory=dict)
    """When members have ended for the change of their world (mono)."""
    blamed: bool = False
    """A process of the newest world is known to have failed."""
    peers_lost: bool = False
    """One of the newest world has ended because of another one, and not with its host."""
    errors: set[str] = field(default_factory=set)
    """By digest, the errors of members of the newest world."""
    unexplained: list[float] = field(default_factory=list)
    """When worlds have ended within an hour without a failed process (mono)."""

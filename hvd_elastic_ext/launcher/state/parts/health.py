"""The health of hosts and processes, and the launcher's own link."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.pace import Lines
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.endings import Ended
from hvd_elastic_ext.launcher.health.launcher_pauses import LauncherPause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.health.stalls import Member
from hvd_elastic_ext.launcher.membership.next_world import WorldDecision
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.rules.health.repeats import Failure
from hvd_elastic_ext.launcher.rules.health.stragglers import Watch


class _Usable(NamedTuple):
    """The slots of each host that may work, by a ledger, until then (mono)."""

    hosts: HostSet
    ledger: HealthLedger
    until: float
    slots: list[tuple[Host, tuple[int, ...]]]


class Unexplained(NamedTuple):
    """A member of a world has ended as if a peer was lost, and no other is known to be. ``until``: when that is its own
    fault (mono), unless another one's end comes. ``members``: of its world; ``generation``: that world.
    """

    worker: Worker
    how: str
    code: int
    members: tuple[ProcessId, ...]
    generation: int
    until: float


@dataclass(slots=True)
class Faults:
    """Strikes and blocks, and how often something failed."""

    ledger: HealthLedger
    first: str | None = None
    """The first process that failed, and how."""
    counted: list[tuple[float, str]] = field(default_factory=list)
    """Faults that count towards ``--failure-budget``: when (mono), and on which host."""
    all_left_at: list[float] = field(default_factory=list)
    """When the last process of a world left without an order (mono)."""
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By digest of an error, the host and the step where it came last."""
    repeats: dict[tuple[str, int, str], list[Failure]] = field(default_factory=dict)
    """Failures by cause, exit code, and digest of the error if one was reported."""
    stepped_at: float = -math.inf
    """When a step was reported last by a process that has ended (mono)."""
    blocked: set[Seat] = field(default_factory=set)
    """Slots that were blocked because they fail in the same way at each start."""
    to_retry: set[Seat] = field(default_factory=set)
    """Slots in which a process failed before the first world; they may be tried again at once if others get ready."""
    retries: int = 0
    """Starts at once, without a cooldown, since the last step."""
    retried_at: float = -math.inf
    """When the last one of them was (mono)."""
    unexplained: list[Unexplained] = field(default_factory=list)
    _usable: _Usable | None = field(default=None, compare=False, repr=False)

    def usable(self, hosts: HostSet, now: float) -> list[tuple[Host, tuple[int, ...]]]:
        """Each host's slots that may work at ``now`` (mono)."""
        known, ledger = self._usable, self.ledger
        if known is None or known.hosts is not hosts or known.ledger is not ledger or now >= known.until:
            until = ledger.next_release(now)
            known = _Usable(hosts, ledger, math.inf if until is None else until, ledger.usable(now, hosts))
            self._usable = known
        return known.slots


@dataclass(slots=True)
class LinkLoss:
    """``since``: since when no host of the world sends messages (mono); ``back_by``: until when hosts that are back
    wait for the others.
    """

    since: float | None = None
    back_by: float | None = None


@dataclass(slots=True)
class Liveness:
    """The progress of the processes of the world."""

    looked_at: float
    compared_at: float
    of: int
    """The generation of ``finished``."""
    moved: dict[ProcessId, tuple[int, float]] = field(default_factory=dict)
    """The count of each process, and when it was new (mono)."""
    times: dict[ProcessId, deque[float]] = field(default_factory=dict)
    """The latest step times of each process."""
    watch: Watch = field(default_factory=Watch)
    reported: frozenset[ProcessId] | None = None
    """Processes that were reported to delay the world; None while it makes progress."""
    finished: dict[ProcessId, Member] = field(default_factory=dict)
    """Members of the newest world that are done with training, whether they live or not."""

    def of_world(self, generation: int) -> dict[ProcessId, Member]:
        """:attr:`finished` of this world, which is the newest one."""
        if self.of != generation:
            self.of = generation
            self.finished.clear()
        return self.finished


@dataclass(slots=True)
class LauncherPauses:
    """Pauses of the launcher itself that are short, and not logged yet."""

    short: tuple[LauncherPause, ...] = ()
    logged_at: float | None = None
    """When pauses were logged last (mono)."""


@dataclass(slots=True)
class Pace:
    """The last logged pause in which the world makes no step."""

    since: float
    """A pause counts from then on: the world was not ready before (mono)."""
    lines: Lines | None = None
    """The lines about the pause, since it began; None if it is over."""
    begins: bool = False
    """There was no sign of training before that pause."""


@dataclass(slots=True)
class Loopless:
    """Reports of processes: an elastic loop, steps and commits."""

    of: int
    """The generation of ``ended``."""
    loops: bool = False
    """A process has begun an elastic loop."""
    later: bool = False
    """A process has joined its world in ``hvd.init()``, with a training loop to come."""
    early_step: int = 0
    """The newest step of such a process before its loop."""
    trained: bool = False
    """A process has trained that keeps no commit."""
    kept: bool = False
    """A commit or a checkpoint exists, or was made by a process."""
    step: int = 0
    """The newest step of those that keep no commit."""
    training_restarts: int = 0
    """How often training has started from the beginning."""
    last: str = ""
    """Which process ended last, and how."""
    ended: dict[ProcessId, Ended] = field(default_factory=dict)
    """Ends of processes of the newest world."""
    never_joined: dict[Seat, Ended] = field(default_factory=dict)
    """By seat, the last end of a process that never asked for a world."""
    logged: set[str] = field(default_factory=set)
    """Causes of changes that were not made, if that was logged."""
    unknown: int = -1
    """The world whose processes were all lost without a report of what they had done."""
    fenced: int = -1
    """The world with processes that were cut off from one another."""
    held: WorldDecision | None = None
    """The change of the world that was not made at the newest look, because no process would join."""

    def note(self, worker: Worker) -> None:
        """Note what a process has reported."""
        self.loops = self.loops or worker.loops
        self.kept = self.kept or worker.every is not None
        self.later = self.later or worker.at_init
        if worker.in_prologue:
            self.early_step = max(self.early_step, worker.step)
        if worker.keeps_nothing:
            self.trained = True
            self.step = max(self.step, worker.step)

    @property
    def has_trained(self) -> bool:
        """Whether a process of the job has trained."""
        return self.trained or self.kept or self.loops

    @property
    def done_unjoined(self) -> Set[Seat]:
        """Seats with a process that has ended well without ever asking for a world."""
        return {seat for seat, end in self.never_joined.items() if end.well}

    def ends_of(self, generation: int) -> list[Ended]:
        """Ends of processes of this world, which is the newest one."""
        return list(self.ended.values()) if self.of == generation else []

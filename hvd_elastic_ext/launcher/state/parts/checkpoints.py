"""The newest checkpoints, and the progress of the next one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.checkpoints import interval
from hvd_elastic_ext.launcher.checkpoints.finished import Finished
from hvd_elastic_ext.launcher.checkpoints.interval import MAX_SAMPLES, IntervalInSeconds, SealCost
from hvd_elastic_ext.launcher.custody.custody import Stored
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Attempt, Kept, Last
from hvd_elastic_ext.launcher.rules.checkpoints.before_preemption import CANCELLED_AFTER_S, SHORTEST_S, Call
from hvd_elastic_ext.launcher.rules.checkpoints.failure_rate import Failures
from hvd_elastic_ext.launcher.rules.checkpoints.memory import Known
from hvd_elastic_ext.launcher.rules.checkpoints.slowdown import SlowdownMeter

WAITED_S: Final = 2.0
"""Assumed time until a named commit is kept, before the first measurement."""


class Useless(NamedTuple):
    """A whole checkpoint from which no job can resume, and ``why``."""

    commit: tuple[int, int, int]
    step: int
    path: str
    why: str


@dataclass(slots=True)
class Checkpoints:
    """The newest checkpoint, and the attempt to make the next one."""

    last: Last
    """When the newest checkpoint's commit was kept, and its step, whether or not a job can resume from it."""
    attempt: Attempt | None = None
    not_before: float = -math.inf
    """No attempt before then (mono)."""
    gives_way_since: float | None = None
    """Since when a checkpoint that is due waits for results of calls that are sent to other slots (mono)."""
    failed_in_a_row: int = 0
    asked: bool = False
    """A checkpoint was requested and is not made yet."""
    stay: bool = False
    """No process trains beyond the requested checkpoint."""
    staying: Attempt | None = None
    """The attempt at whose commit its members wait, because training stops there."""
    apart: bool = False
    """Hosts share no storage: each has a complete checkpoint of its own."""
    only_here: str | None = None
    """The newest checkpoint, if only the hosts that made it have it."""
    stored: Stored | None = None
    """The newest checkpoint from which a job can resume, and its commit."""
    storage_names: dict[str, str] = field(default_factory=dict)
    """By host, its name for its storage."""
    readers: frozenset[str] = frozenset()
    """Hosts that are known to have the newest checkpoint on their storage."""
    done: bool = False
    """Training is done: the next checkpoint is its end."""
    files: dict[ProcessId, Kept] = field(default_factory=dict)
    """What processes keep in place of their last commit."""
    logged_stateless: bool = False
    path: str | None = None
    """The path of the newest checkpoint that was made, or loaded, and from which a job can resume."""
    step: int | None = None
    """Its step."""
    useless: Useless | None = None
    """A newer one than that, from which no job can resume."""
    waited_s: float = WAITED_S
    """How long all took to keep the named commit of the last checkpoint; a guess at first."""

    @property
    def newest(self) -> tuple[str | None, int | None]:
        """The path of the newest checkpoint from which a job can resume, and its step."""
        return self.path, self.step

    @property
    def known(self) -> bool:
        """Whether a checkpoint is known, of this job or of the one before it."""
        return any(each is not None for each in (self.stored, self.only_here, self.path))

    @property
    def holds_training(self) -> bool:
        """Whether a checkpoint beyond which no process trains is requested, in progress, or made."""
        return self.staying is not None or (self.stay and (self.asked or self.attempt is not None))


FIRST_S: Final = 5.0
"""Assumed time until a commit is durable, before the first measurement."""


@dataclass(slots=True)
class Cost:
    """What checkpoints cost a running job, and how often something failed."""

    watched_from: float
    failures: Failures = field(default_factory=Failures)
    choice: IntervalInSeconds = interval.UNMEASURED
    seals: list[SealCost] = field(default_factory=list)
    """The newest checkpoints that were measured."""
    slowing: SlowdownMeter = field(default_factory=SlowdownMeter)

    @property
    def durable_s(self) -> float:
        """Seconds until the last commit was durable; a guess at first."""
        return self.seals[-1].durable_s if self.seals else FIRST_S


@dataclass(slots=True)
class CommitInterval:
    """The interval between calls of ``state.commit()`` that commit, and the measurements behind it."""

    every: int
    watched_from: float
    choice: interval.IntervalInSteps | None = None
    failures: Failures = field(default_factory=Failures)
    rollbacks: int = 0
    commits_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    calls_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    newest: tuple[int, int, int] | None = None
    look_at: float = -math.inf
    choose_at: float = -math.inf
    tell_at: float = -math.inf


@dataclass(slots=True)
class Loading:
    """A host loads a checkpoint into the memory of ``agent``: the memory of another agent is empty.

    ``slots``: those whose memory its helper may write; ``again_at``: when another helper runs (mono); ``seats``: those
    with the checkpoint in their memory.
    """

    agent: str
    ready: bool = False
    again_at: float | None = None
    for_good: bool = False
    slots: list[int] = field(default_factory=list)
    seats: frozenset[Seat] = frozenset()

    @property
    def under_way(self) -> bool:
        """Whether the memory may be written to."""
        return bool(self.slots) and not self.ready


@dataclass(slots=True)
class Restore:
    """How far hosts have loaded the newest checkpoint before the first world."""

    expects: str | None
    """A checkpoint that exists: a host has it, or will have it."""
    hosts: dict[str, Loading] = field(default_factory=dict)
    why: str | None = None
    """Why the last host that tried could not read its storage."""
    reported: dict[str, str] = field(default_factory=dict)
    """By host, the newest reason in the log and the journal why it could not load a checkpoint."""
    path: str | None = None
    """The checkpoint that a host has loaded."""
    done: Finished | None = None
    """The newest checkpoint of a host is the end of this job: there is nothing to train."""


@dataclass(slots=True)
class BeforeSleep:
    """How far a job without a process that trains has saved what memory holds."""

    since: float | None = None
    """Since when no process can train (mono); None while one may."""
    known: Known = field(default_factory=Known)
    skip: list[str] = field(default_factory=list)
    """Checkpoints that look complete but are not."""
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    asked_at: float = -math.inf
    again_at: float = -math.inf
    cannot_save: bool = False
    """Processes have trained that keep no commit, so their state cannot be saved."""
    skip_waiting: bool = False
    """The job ends, and does not wait for hosts."""
    read_back: bool = True
    logged: str = ""

    @property
    def will_sleep(self) -> bool:
        """Whether waiting ends in sleep, as far as is known, however long that takes."""
        return self.since is not None and not self.cannot_save


@dataclass(slots=True)
class BeforePreemption:
    """``made``: which checkpoint was requested. ``since``: since when an end at an unknown time is known (mono)."""

    made: Call = Call.NONE
    since: float | None = None

    def goes_on_at(self, by: float | None) -> float | None:
        """When training continues at the latest although hosts were to go at ``by``: see :attr:`Preemption.all_by`."""
        if by == math.inf:
            by = None if self.since is None else self.since + SHORTEST_S
        return None if by is None else by + CANCELLED_AFTER_S


COMMIT_S: Final = 10.0
"""Longest wait for the commit of the last checkpoint; then the one in memory is saved."""


@dataclass(slots=True)
class BeforeExit:
    """A job that has to end: ``why``, and ``since`` when (mono).

    ``commit_by``: when the wait for the commit of its last checkpoint is over (mono). ``reached``: the newest step that
    a process has reported since then. ``lacks``: why the last checkpoint may be older than that.
    """

    why: JobFailed | None = None
    since: float = 0.0
    commit_by: float = 0.0
    reached: int = 0
    lacks: str = ""


@dataclass(slots=True)
class FinalCheckpoint:
    """The end of training: ``since`` when all processes have ended (mono); ``over``: nothing is left to save.

    ``waits``: agents have to stay for it, by the newest look.
    """

    over: bool
    since: float | None = None
    waits: bool = False

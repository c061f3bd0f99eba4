"""Processes and worlds of a simulated cluster, their commits, and the election of a commit in a sync."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Agent

WITHIN: Final = ("joining", "prologue", "syncing", "training", "between")
"""States of processes that are in a world, or about to enter one."""


class Message(NamedTuple):
    """A message of an agent. ``reported``: the commits that it reports, by slot; ``sealed``: a commit that is a
    checkpoint now."""

    news: dict[str, Any]
    reported: tuple[tuple[int, Commit], ...] = ()
    sealed: Commit | None = None


class Track(NamedTuple):
    """The progress of a world whose steps are not single events: a process is updated from it when it is read.

    ``stepped_at``: None before the first step. ``commit``: the newest one of all its members, after ``before``.
    """

    batch: int
    stepped_at: float | None
    commit: Commit
    before: Commit | None


@dataclass(eq=False, slots=True)
class Process:
    """``state``: booting, parked, asking (for a rank), joining, prologue, syncing, training, between (two training
    calls), leaving (its training function), or gone.

    ``entered``: the newest generation of the State that it was part of, which is not the launcher's number of a world.
    ``assigned_world``: the launcher's number. ``sample``: (batch, commit) of its last heartbeat; ``commit``: the newest
    one that it may report.
    """

    agent: Agent
    slot: int
    life: int
    incarnation: int
    state: str = "booting"
    generation: int = 0
    agreed: int = 0
    assigned_world: int = 0
    asked: int | None = None
    rank: int = -1
    world: World | None = None
    batch: int = 0
    entered: int | None = None
    commit: Commit | None = None
    sample: tuple[int, Commit | None] = (0, None)
    sampled_at: float = 0.0
    stopped: bool = False
    wanted: list[int] | None = None
    """The commit that the process must keep for a checkpoint."""
    stay: bool = False
    """Whether it must stop at that commit. ``stays``: whether it has reached it."""
    stays: bool = False
    leave: bool = False
    done: bool = False
    call: int = 0
    """The training call that it is in; 0 before the first one."""
    left: int | None = None
    """The call whose result it has, and has not kept yet; 0: its prologue."""
    end: Commit | None = None
    """The last commit of the call before."""
    at_init: bool = False
    """Whether it has parked in ``hvd.init()``, and has not begun its training loop."""
    alone: bool = False
    """Whether it was told to go on to its training loop alone."""
    results_came: bool = False
    """Whether it was told of results in its slot that it has not looked for yet."""
    stepped_at: float | None = None
    id: ProcessId = field(init=False)
    """The process's identity for launchers."""
    looped: bool = False
    """Whether it has reported that its script has an elastic loop."""
    track: Track | None = None
    """The progress up to which it was updated; see :class:`Track`."""

    def __post_init__(self) -> None:
        self.id = ProcessId(Seat(self.host, self.slot), self.life)

    def message(self, news: Mapping[str, Any], reported: Commit | None) -> Message:
        """Return a message of its agent about it. ``reported``: the commit that it reports."""
        return Message(
            {**news, "slot": self.slot, "life": self.life}, () if reported is None else ((self.slot, reported),)
        )

    @property
    def host(self) -> str:
        """Its host."""
        return self.agent.host

    @property
    def name(self) -> str:
        """Host and slot."""
        return f"{self.host}[{self.slot}]"

    @property
    def held(self) -> Commit | None:
        """The commit in its slot's memory."""
        return self.agent.memory.get(self.slot)

    @property
    def own(self) -> Commit | None:
        """The same, if it is one of the training call that the process is in: it can continue from no other one."""
        held = self.agent.memory.get(self.slot)
        return held if held is None or held.call == self.call else None

    @property
    def past(self) -> list[Commit | None]:
        """The results of finished calls in its slot's memory: of each, the last commit; of the prologue, None."""
        return self.agent.pasts.setdefault(self.slot, [])


@dataclass(eq=False, slots=True)
class World:
    """A world. ``key``: the incarnation of its launcher, and its generation.

    ``every``: steps from one commit to the next. ``writing``: number of its hosts that write a checkpoint.
    ``wake_at``: the next event, if not every step is one. ``ends_at``: the step after which training is done, if known.
    ``phase``: joining, prologue, syncing, training, between (two calls), or lost.
    """

    key: tuple[int, int]
    size: int
    members: list[Process] = field(default_factory=list)
    phase: str = "joining"
    interrupted: bool = False
    fresh: bool = True
    after_loss: bool = False
    elected: tuple[int, int] = (0, 0)
    """Incarnation and generation of the world's commits."""
    stepped_at: float = -1.0
    stalled_at: float | None = None
    every: int = 1
    step_s: float = 1.0
    writing: int = 0
    delayed_s: float = 0.0
    """Seconds that the present step takes longer than ``step_s``, because of a checkpoint. They may be negative."""
    wake_at: float | None = None
    ends_at: int | None = None
    call: int = 1
    """The training call that its members are in."""
    call_ends: int | None = None
    """The step after which that call is over; None: it is the last one."""
    asked: Process | None = None
    """A member that must keep a commit."""
    track: Track | None = None
    """None if every step is an event."""

    @property
    def batch(self) -> int:
        """Number of the newest step."""
        return self.members[0].batch if self.track is None else self.track.batch


# --- commits


class Commit(NamedTuple):
    """A commit, ordered by age as in ``worker/sync/exchange.py``. ``batch``: number of batches trained before it.
    ``call``: the training call that it belongs to.
    """

    incarnation: int
    generation: int
    number: int
    batch: int
    lineage: int
    call: int = 1

    @property
    def name(self) -> list[int]:
        """Name of the commit, as used by launcher and agents."""
        return [self.incarnation, self.generation, self.number]

    @property
    def held(self) -> list[int]:
        """The commit in the form of agents' reports."""
        return [*self.name, self.batch]

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.generation}.{self.number} (batch {self.batch})"


class Candidate(NamedTuple):
    """The commit of a rank in a sync. ``entered``: the newest generation of the State that the rank was part of.
    ``end``: the last commit of the training call before; commits of a call are newer than those of earlier ones.
    """

    commit: Commit | None
    entered: int
    incarnation: int
    end: Commit | None = None


class Elected(NamedTuple):
    """``commit``: the commit from which all ranks continue. The next ones have ``generation`` and ``incarnation``."""

    commit: Commit
    generation: int
    incarnation: int
    anew: bool


def elect(candidates: Sequence[Candidate], *, lineage: int) -> Elected:
    """Elect a commit like ``worker/sync/exchange.py`` and ``State.sync``. ``lineage``: that of a history that begins
    here."""
    held = [each.commit for each in candidates if each.commit is not None]
    ends = [each.end for each in candidates if each.end is not None]
    generation = 1 + max(each.entered for each in candidates)
    incarnation = max(each.commit.incarnation if each.commit else each.incarnation for each in candidates)
    if held or not ends:
        newest = max(held) if held else Commit(candidates[0].incarnation, 0, 0, 0, lineage)
        return Elected(newest, generation, incarnation, not held)
    end = max(ends)
    incarnation, generation = max(incarnation, end.incarnation), max(generation, end.generation + 1)
    first = Commit(max(candidates[0].incarnation, end.incarnation), end.generation, end.number + 1, end.batch, lineage)
    return Elected(first._replace(call=end.call + 1), generation, incarnation, anew=False)


def candidates(processes: Iterable[Process]) -> list[Candidate]:
    """Return the different commits of the ranks in a sync: most have the same.

    Commits of a later world are newer than those of all earlier ones, even if none of its members was in those.
    """
    brought = dict.fromkeys(
        [(each.own, each.entered, each.assigned_world, each.incarnation, each.end) for each in processes]
    )
    return [
        Candidate(held, max(entered or 0, held.generation if held else 0, assigned_world - 1), incarnation, end)
        for held, entered, assigned_world, incarnation, end in brought
    ]

"""Processes that make no progress, though they send heartbeats.

Heartbeats come from their own thread. Progress of the main thread shows in its counts: steps, commits, checks and
``elastic.heartbeat()``. A process that waits for others in a collective makes no progress either, and is not the cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.launcher.driver.words import first_few

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a world."""

    life: ProcessId
    rank: int
    """-1 before it has one."""
    moved_at: float
    """When its count last grew (mono)."""
    waiting: bool = False
    done: bool = False
    """Its training function has returned."""
    step: int = 0
    """The optimizer step after which it did; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Stall:
    """``lag``: members that others wait for; empty if all wait for one another.

    ``since_s``: shortest time without progress.

    ``finished``: members that are done with training and that others still wait for.
    """

    lag: tuple[Member, ...]
    waiting: int
    since_s: float
    reason: str
    finished: tuple[Member, ...] = ()
    begun: bool = True
    """Whether there was any progress before."""


MAX_NAMED: Final = 8
"""Most ranks that a reason names."""


def stall(now: float, members: Sequence[Member], limit: float, *, idle: bool = True) -> Stall | None:
    """Name the members that stall a world. Without ``idle`` only if one waits: all may be in a long step.

    A stall is a member that does not wait and has made no progress for ``limit`` seconds while another waits for it; or
    no progress of any member. A rank that calls ``heartbeat()`` in long work stalls no other.
    """
    late = [member for member in members if now - member.moved_at >= limit]
    lag = tuple(member for member in late if not member.waiting)
    # A member with recent progress does not wait.
    waiting = sum(member.waiting and now - member.moved_at >= limit / 2 for member in members)
    if not late or (len(late) < len(members) and not (lag and waiting)):
        return None
    if lag and not waiting and not idle:
        return None
    since = min(now - member.moved_at for member in lag or late)
    return Stall(lag, waiting, since, _reason(lag, waiting, of=len(members), since=since))


def left_waiting(now: float, members: Sequence[Member], finished: Sequence[Member], limit: float) -> Stall | None:
    """Whether all ``members`` have waited for ``limit`` seconds, and only for processes that are done with training.

    Ranks have to do the same number of steps: a rank with more steps waits for ever for a rank that has finished.
    """
    still = min((now - member.moved_at for member in members), default=0.0)
    if not finished or still < limit or not all(member.waiting for member in members):
        return None
    over, wait = named(finished), named(members)
    has, it = ("has", "it") if len(finished) == 1 else ("have", "them")
    have = "has" if len(members) == 1 else "have"
    reason = (
        f"{over} {has} finished training, and {wait} {have} waited for {it} for {still:.0f} s: "
        "do all ranks do the same number of steps?"
    )
    return Stall((), len(members), still, reason, tuple(finished))


def ended_early(done: Sequence[Member], others: Sequence[Seat]) -> str:
    """The message when ``others`` train on, in a world of their own, after some ranks are ``done``."""
    train, go = ("trains", "goes") if len(others) == 1 else ("train", "go")
    who = first_few(others, MAX_NAMED)
    return (
        f"{_ended(done)}, and {who} still {train}: do all ranks do the same number of steps? {who} {go} on without "
        f"{_it(done)}: no process joins, and the job ends when training ends there"
    )


def uneven(done: Sequence[Member], more: Mapping[Seat, int]) -> str | None:
    """The message about that at the end: the number of steps that others did ``more``; None if they only repeated a
    lost one.
    """
    known = any(member.step for member in done)
    # Else the count is not exact: Horovod does a step of its own when it forms a world.
    named = {seat: count for seat, count in more.items() if count > (not known)}
    if not named:
        return None
    counts = ", ".join(f"{seat} did {count} more" if known else f"{seat} trained on" for seat, count in named.items())
    return f"not all ranks did the same number of steps: {_ended(done)}, and {counts} without {_it(done)}"


def _ended(done: Sequence[Member]) -> str:
    step = max(member.step for member in done)
    return f"{named(done)} ended training" + (f" after step {step}" if step else "")


def _it(done: Sequence[Member]) -> str:
    return "it" if len(done) == 1 else "them"


def named(members: Sequence[Member]) -> str:
    """Such as "rank 2 (c[0])" or "ranks 0 and 1"."""
    if len(members) == 1:
        return f"rank {members[0].rank} ({members[0].life.seat})"
    ranks = [str(rank) for rank in sorted(member.rank for member in members)]
    shown = ranks if len(ranks) <= MAX_NAMED else [*ranks[:MAX_NAMED], f"{len(ranks) - MAX_NAMED} more"]
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def absence(now: float, absent: Sequence[Member], limit: float, *, waiting: int) -> Stall | None:
    """Name the members for which the next world waits; ``waiting`` others have asked for their ranks.

    Those are members without progress for ``limit`` seconds that do not wait for others themselves.
    """
    late = tuple(member for member in absent if now - member.moved_at >= limit and not member.waiting)
    if not late:
        return None
    since = min(now - member.moved_at for member in late)
    names = first_few(member.life.seat for member in late)
    return Stall(late, waiting, since, f"the next world waits for {names}, no progress for {since:.0f} s")


def _reason(lag: Sequence[Member], waiting: int, *, of: int, since: float) -> str:
    if not lag:
        return f"all {of} ranks have waited for one another for {since:.0f} s"
    names = first_few(f"{member.rank} on {member.life.seat}" for member in lag)
    others = f"{waiting} of {of} wait for it" if waiting else "no rank waits for it"
    return f"no progress for {since:.0f} s of rank {names}: {others}"


# --- after what time


MISSED_S: Final = 30.0
"""When a missing member of the next world is reported, without ``--progress-timeout``."""
STILL_S: Final = 60.0
"""When to report that a world is stalled, without ``--progress-timeout``."""
STEPS: Final = 3.0
"""A stall also lasts at least this multiple of the longest reported step."""
FINISHED_S: Final = 15.0
"""When to report that ranks wait for one that is done with training: nothing else ends that wait."""


def stall_limit_s(job: JobState) -> float:
    """Seconds for which a world may stall before that is reported, by its steps, without ``--progress-timeout``."""
    steps = [worker.step_s for worker in job.roster.present(job.world.members) if worker.step_s]
    return max(STILL_S, STEPS * max(steps, default=0.0))


def missing_limit_s(job: JobState) -> float:
    """Seconds for which a member that the next world waits for may stand still before that is reported."""
    return MISSED_S if job.options.progress_timeout_s is None else job.options.progress_timeout_s


def finished_limit_s(job: JobState) -> float:
    """Seconds for which ranks may wait for one that is done with training before that is reported."""
    return min(FINISHED_S, job.options.progress_timeout_s or FINISHED_S)


def heard_of_world(job: JobState) -> list[Agent]:
    """Agents of the world's hosts that have sent messages."""
    roster = job.roster
    members = roster.present(job.world.members)
    # Newcomers have no state to continue from.
    those = [worker for worker in members if worker.generation] or members
    hosts = [*(worker.seat.host for worker in those), *(life.seat.host for life in job.world.not_at_fault)]
    found = map(roster.agents.get, dict.fromkeys(hosts))
    return [agent for agent in found if agent is not None and agent.last_message_at]

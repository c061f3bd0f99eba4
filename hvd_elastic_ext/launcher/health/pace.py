"""Whether a world makes no step for longer than usual.

A pause is only logged. A stall (see :mod:`stalls`) begins much later. A pause is logged within 5 s, and then at the
pace of all waits (:mod:`hvd_elastic_ext.core.pace`). ``--wait-lines`` changes how rare lines become for which no rank
waits: all ranks are busy (perhaps in a validation), a start beside the training, a sleep.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.pace import CLOSE_S, EVERY_S, WAIT, Lines
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.health.stalls import Member, finished_limit_s, named, stall_limit_s
from hvd_elastic_ext.launcher.membership.prologue import in_prologue

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker

log = logging.getLogger(__name__)


SOON_S: Final = 3.0
"""Shortest pause that is logged. With one second from the last step to its heartbeat, and one to the next look, that is
within 5 s of the last step.
"""
UNBEGUN_S: Final = 60.0
"""How long lines tell of a world without any sign of training: a script may train without reporting steps."""
FACTOR: Final = 2.0
"""A pause is logged if it is longer than a usual step by this factor."""
LAST_LINE_S: Final = 10.0
"""How late the last of these lines may be."""


@dataclass(frozen=True, slots=True)
class StepPause:
    """A world makes no step."""

    still_s: float
    """For how long no rank has made progress, by heartbeats."""
    usual_s: float
    """Seconds of a usual step; 0 if unknown."""
    lag: tuple[Member, ...]
    """Ranks that do not wait for others."""
    waiting: int
    """The number of those that do."""
    finished: tuple[Member, ...] = ()
    """Members that are done with training."""
    unbegun: tuple[Member, ...] = ()
    """Those without a report of progress yet."""
    killed: tuple[Member, ...] = ()
    """Those that were killed, and whose end is not known yet."""
    busy: float | None = None
    """The share of their hosts' CPUs that is used, if nobody has begun and that is known."""
    looping: bool = False
    """Whether one has entered an elastic loop."""
    prologue: bool = False
    """Whether a loop is to come, which may take long."""

    @property
    def without_sign(self) -> bool:
        """Whether no member has given any sign of training since the world was formed."""
        return not (self.lag or self.waiting or self.killed or self.finished) and bool(self.unbegun)

    @property
    def is_told(self) -> bool:
        """Whether lines tell of it. A script that gives no sign for long may report none."""
        return not self.without_sign or self.prologue or self.still_s < UNBEGUN_S + LAST_LINE_S

    @property
    def waited_for(self) -> bool:
        """Whether ranks wait for others. Else all are busy, or hang."""
        return self.waiting > 0

    @property
    def text(self) -> str:
        """Such as "no step for 4 s (usually 0.2 s): rank 3 (b[0]) is waited for"."""
        usual = f" (usually {self.usual_s:.2g} s)" if self.usual_s else ""
        return f"no step for {self.still_s:.0f} s{usual}: {self.who}"

    @property
    def who(self) -> str:
        """Whom it is for, such as "rank 3 (b[0]) is waited for"."""
        count = self.waiting + len(self.lag)
        if self.without_sign:
            return self._without_sign
        if self.killed:
            have = "has" if len(self.killed) == 1 else "have"
            return f"{named(self.killed)} {have} been killed and {_are(self.killed)} waited for"
        if self.lag and self.waiting:
            return f"{named(self.lag)} {_are(self.lag)} waited for"
        if self.lag:
            return f"{named(self.lag)} is busy, or hangs" if count == 1 else f"all {count} ranks are busy, or hang"
        if self.finished:
            have = "has" if len(self.finished) == 1 else "have"
            return f"{named(self.finished)} {have} finished training and {_are(self.finished)} waited for"
        if self.unbegun:
            have = "has" if len(self.unbegun) == 1 else "have"
            return f"{named(self.unbegun)} {have} not begun a step yet and {_are(self.unbegun)} waited for"
        return f"all {count} ranks wait for one another" if count > 1 else "the only rank waits; there is no other one"

    @property
    def lacks(self) -> str:
        """What members without any sign of training have not done."""
        have = "has" if len(self.unbegun) == 1 else "have"
        if self.prologue:
            return f"{have} not begun the training loop yet"
        return (
            f"{have} reported no step"
            if self.looping
            else f"{have} neither entered an elastic loop nor reported a step"
        )

    @property
    def _without_sign(self) -> str:
        what = f"{named(self.unbegun)} {self.lacks}"
        if self.busy is not None:
            what += f" (CPU of {'its host' if len(self.unbegun) == 1 else 'their hosts'}: {self.busy:.0%})"
        if self.still_s < UNBEGUN_S or self.prologue:
            return what
        return f"{what}: the script hangs, or reports no steps, and no more lines tell of it"


def _are(members: Sequence[Member]) -> str:
    return "is" if len(members) == 1 else "are"


def pause(
    now: float,
    members: Sequence[Member],
    recent: Iterable[Sequence[float]],
    finished: Sequence[Member] = (),
    *,
    unbegun: Sequence[Member] = (),
    killed: Sequence[Member] = (),
) -> StepPause | None:
    """Whether no member makes progress for longer than usual. ``recent``: the last steps of each, in seconds.

    ``finished``: those that are done with training, which may be why the others wait; ``unbegun``, ``killed``:
    as in :class:`StepPause`.
    """
    still = min((now - member.moved_at for member in members), default=0.0)
    if still < SOON_S:
        return None
    usual = max(map(usual_s, recent), default=0.0)
    if still < FACTOR * usual:
        return None
    lag = tuple(member for member in members if not member.waiting)
    waiting = len(members) - len(lag)
    return StepPause(still, usual, lag, waiting, tuple(finished), tuple(unbegun), tuple(killed))


def usual_s(steps: Sequence[float]) -> float:
    """The second longest of ``steps``: one long step among many is not usual, two are. 0 if there is none."""
    return min(heapq.nlargest(2, steps), default=0.0)


def next_line_hint(in_s: float) -> str:
    """The end of a line: when the next one comes, if that is later than users expect; else empty."""
    return f"; next line in {in_s:.0f} s" if in_s > EVERY_S + CLOSE_S else ""


# --- state


@dataclass(slots=True)
class Pace:
    """The last logged pause in which the world makes no step."""

    since: float
    """A pause counts from then on: the world was not ready before (mono)."""
    lines: Lines | None = None
    """The lines about the pause, since it began; None if it is over."""
    begins: bool = False
    """There was no sign of training before that pause."""


# --- what follows from the state


SILENT_S: Final = 1.9
"""A process without a heartbeat for this time, almost two heartbeats, may hang, whatever the last one reported."""
KNOWN_S: Final = 1.2
"""How long a heartbeat of its agent without progress is valid: until the next one is due."""


def pause_of(job: JobState) -> StepPause | None:
    """The pause of the world at this moment; None while it makes steps as usual."""
    present = job.roster.present(job.world.members)
    if any(_still_s(job, worker) < SOON_S for worker in present if _is_watched(worker)):
        return None  # usually the first one: a world that trains costs nothing
    watched = [worker for worker in present if _is_watched(worker)]
    if not watched:
        return without_sign(job, present)
    members = [_member(job, worker) for worker in watched]
    finished = [_member(job, worker) for worker in present if worker.done and worker.killed is None]
    unbegun = [
        _member(job, worker)
        for worker in present
        if worker.killed is None and not (worker.done or worker.progress or worker.waiting)
    ]
    killed = [_member(job, worker) for worker in present if worker.killed is not None]
    return pause(job.now, members, (worker.steps_s for worker in watched), finished, unbegun=unbegun, killed=killed)


def without_sign(job: JobState, present: tuple[Worker, ...]) -> StepPause | None:
    """The pause of a world whose members ``present`` are all in it and have given no sign of training yet."""
    if not job.formed or not present or len(present) < len(job.world.members):
        return None
    heard = []
    for each in present:
        if _is_watched(each) or each.killed is not None or each.done or each.generation < job.generation:
            return None
        if each.in_heartbeat_at is None:
            return None
        heard.append(each.in_heartbeat_at + KNOWN_S)
    began = max(each.since for each in present)
    still_s = min(job.now, *heard) - began
    if still_s < SOON_S:
        return None
    members = [replace(_member(job, each), moved_at=began) for each in present]
    agents = map(job.roster.agents.get, {each.seat.host for each in present})
    shares = [agent.usage["cpu"] for agent in agents if agent is not None and "cpu" in agent.usage]
    looping = any(each.loops for each in present)
    busy = fmean(shares) if shares else None
    prologue = in_prologue(job)
    return StepPause(still_s, 0.0, (), 0, unbegun=tuple(members), busy=busy, looping=looping, prologue=prologue)


def what_follows(job: JobState, found: StepPause) -> str:
    """When it counts as a fault, and what happens then."""
    options = job.options
    if found.killed:
        return "no limit: it ends with the process there"
    workers = [worker for member in found.lag if (worker := job.roster.alive(member.life)) is not None]
    if found.waiting and (silent := [str(worker.seat) for worker in workers if worker.silent_s >= SILENT_S]):
        limit_s = options.heartbeat_timeout_s
        return f"no heartbeat from {', '.join(silent)}: failed after {limit_s:g} s (--heartbeat-timeout)"
    if job.liveness.reported is not None:
        return "reported as stalled; no limit: it ends when the stalled ranks go on, or their processes end"
    if found.finished and not found.lag:
        return f"reported as stalled after {finished_limit_s(job):g} s"
    if options.progress_timeout_s is None:
        always = found.waiting and not in_prologue(job)
        limit = f"after {stall_limit_s(job):.0f} s" if always else "only if --progress-timeout S is given"
        return f"reported as stalled {limit}"
    then = "ended and started again" if options.restart_stalled and found.lag else "reported as stalled"
    return f"{then} after {options.progress_timeout_s:g} s (--progress-timeout)"


def _member(job: JobState, worker: Worker) -> Member:
    place = job.rendezvous.place(worker.life)
    waiting = worker.waiting and worker.silent_s < SILENT_S
    return Member(worker.life, -1 if place is None else place.rank, job.now - _still_s(job, worker), waiting)


def _is_watched(worker: Worker) -> bool:
    """Whether it trains and reports its progress."""
    return worker.killed is None and not worker.done and bool(worker.progress or worker.waiting)


def _still_s(job: JobState, worker: Worker) -> float:
    """For how long it has made no progress. Without heartbeats of its agent nothing is known."""
    if worker.in_heartbeat_at is None:
        return 0.0
    return min(job.now, worker.in_heartbeat_at + KNOWN_S) - max(worker.moved_at, job.pace.since)


# --- planner


def plan(job: JobState) -> Plan:
    """Log a pause, unless another wait is logged.

    It returns no time for the next look, because a log line changes nothing else. In a job of thousands, with its
    longer times between looks, a pause is logged later.
    """
    state = job.pace
    members = job.roster.present(job.world.members)
    if not log.isEnabledFor(logging.INFO) or not members:
        state.since, state.lines = job.now, None
        return NOTHING  # a look at thousands costs something
    found = pause_of(job)
    if not job.settled:
        state.since = job.now
        if found is not None and not found.without_sign:
            state.lines = None
            return NOTHING
    if found is None:
        _log_that_steps_are_made_again(job, members)
    elif job.log_wait is None and found.is_told:
        if state.lines is None:
            state.lines = Lines(job.now - found.still_s, first_s=0.0)
        state.begins = found.without_sign
        most_s, why = EVERY_S if found.waited_for else job.options.wait_lines_s, "" if state.begins else found.who
        if state.lines.due(job.now, why, most_s=most_s):
            again = next_line_hint(state.lines.next_at(why, most_s=most_s) - job.now)
            log.info("%s; %s%s", found.text, what_follows(job, found), again, extra=WAIT)
    return NOTHING


def _log_that_steps_are_made_again(job: JobState, members: tuple[Worker, ...]) -> None:
    state = job.pace
    newest = max(worker.moved_at for worker in members)
    if state.lines is not None and newest > state.lines.since:
        how = "begins" if state.begins else "goes on"
        log.info("training %s after %.0f s without a step", how, newest - state.lines.since)
        state.lines = None

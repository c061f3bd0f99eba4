"""Training that ends because all ranks leave the process within the training function, as early stopping is often
written.

They leave one after the other. So, for a short time after the first one, no other world is called, and no process is
started. If all leave in the same call and about the same step, training is done. An end in any other way is followed at
once, as always; and if some leave and others stay, one line says what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health import strikes
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.world_change import WorldDecision

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId

log = logging.getLogger(__name__)


LEAVE_WITHIN_S: Final = 10.0
"""Members that leave their training function with exit code 0 within this time have left together. The others are
waited for at most this long, from the first one on.
"""


REMEDY: Final = "let all ranks leave at the same step, or return from the training function"


class Left(NamedTuple):
    """A member that has ended with exit code 0 within its training function."""

    who: str
    """Its rank and seat."""
    at: float
    """When it ended (mono)."""
    step: int = 0
    """Its last step, as far as known."""
    call: int = 0
    """The training call; 0 if unknown."""
    told: str = ""
    """The order, notice or signal because of which it may have left; empty: it left by itself."""


class Staying(NamedTuple):
    """A member of the same world that has not."""

    who: str
    lost: bool = False
    """It has ended in another way, or is about to."""
    done: bool = False
    """It has reported that training is done."""
    joins: bool = False
    """It has lost that world, and asks for the next one."""
    told: str = ""
    """As in :class:`Left`."""


class Departure(Enum):
    """What it means that members have left their training function with exit code 0."""

    WAIT = "wait"
    """The others may be about to leave, too. Next: any other."""
    DONE = "done"
    """All have left: training is done."""
    RESUMABLE = "resumable"
    """They may have left because of an order, a notice or a signal: others take their places. Next: none, until
    another world has formed."""
    PART = "part"
    """Only some have left, or they have not left together: others take their places. Next: DONE or RESUMABLE."""
    LOSS = "loss"
    """Another member is lost: its end decides. Next: none."""


class DepartureOutcome(NamedTuple):
    """What the departure of members means, and why. ``until``: the end of the wait (mono)."""

    departure: Departure
    reason: str
    until: float | None = None


def outcome_of_departure(now: float, left: Sequence[Left], others: Sequence[Staying]) -> DepartureOutcome:
    """Return what it means that the members ``left`` of a world (at least one) have left their training function with
    exit code 0. ``others``: the rest of its members.
    """
    lost = [each for each in others if each.lost and not each.done]
    told = [(each.who, each.told) for each in left] + [(each.who, each.told) for each in others]
    orders = [f"{who}: {why}" for who, why in told if why]
    trains = [each for each in others if not each.done]
    first, last = min(each.at for each in left), max(each.at for each in left)
    if orders:
        return DepartureOutcome(Departure.RESUMABLE, orders[0])
    if lost:
        return DepartureOutcome(Departure.LOSS, f"{lost[0].who} is lost")
    who = first_few([each.who for each in left])
    if trains:
        rest = first_few([each.who for each in trains])
        if now >= first + LEAVE_WITHIN_S or any(each.joins for each in trains):
            return DepartureOutcome(
                Departure.PART, f"{who} left the training function with exit code 0, {rest} did not"
            )
        reason = f"{who} left the training function with exit code 0; {rest} may do the same"
        return DepartureOutcome(Departure.WAIT, reason, first + LEAVE_WITHIN_S)
    if len({each.call for each in left if each.call}) > 1:
        return DepartureOutcome(Departure.PART, "they left in different calls of training functions")
    steps = sorted({each.step for each in left})
    if len(steps) > 1 and last - first > LEAVE_WITHIN_S:
        reason = f"they left at steps {steps[0]} to {steps[-1]}, {last - first:.0f} s apart"
        return DepartureOutcome(Departure.PART, reason)
    at = f" at step {steps[0]}" if len(steps) == 1 and steps[0] else ""
    return DepartureOutcome(Departure.DONE, f"all ranks left the training function with exit code 0{at}")


@dataclass(slots=True)
class CleanExits:
    """Members of a world that have ended with exit code 0 within their training function."""

    of: int = 0
    """The number of that world, or of one between that and the next one that forms."""
    members: tuple[ProcessId, ...] = ()
    """All members of that world."""
    unknown: list[Staying] = field(default_factory=list)
    """What else may have been in it, if it is that of an earlier launcher."""
    left: dict[ProcessId, Left] = field(default_factory=dict)
    """Those that have left; kept until another world has formed."""
    until: float | None = None
    """Until when others are waited for (mono); None if they are not."""
    open: bool = False
    """What the newest end means is not decided yet."""
    alone: bool = False
    """The newest end left no process of the newest world."""
    logged: bool = False
    """The log says that training goes on although they have left."""
    advised: bool = False
    """The log has the remedy."""


# --- what happens


def note(job: JobState, worker: Worker, cause: Cause) -> bool:
    """Note such an end. Return whether what follows is decided later, by :func:`outcome`."""
    part = job.clean_exits
    if not part.left or _is_over(job):
        # While a world forms, the members of the one before are still in that one.
        world = job.world.members if job.formed else (*job.world.members, *sorted(job.world.left_out))
        part.of = job.generation if job.formed else job.generation - 1
        part.members, part.left, part.until, part.logged, part.unknown = world, {}, None, False, []
    if worker.life not in part.members:
        return False
    told = _why_told(job, worker) or ("" if cause is Cause.LEFT else str(cause))
    held = job.roster.commits.held.get(worker.seat)
    step = max(worker.step, 0 if held is None else held.step)
    part.left[worker.life] = Left(strikes.named(job, worker), job.now, step, worker.call, told)
    members = job.world.members
    part.open, part.alone = True, worker.life in members and not job.roster.present(members)
    return cause is Cause.LEFT


def advise(job: JobState, reason: str) -> None:
    """Log once how a script ends training, since ranks have left and training goes on."""
    if not job.clean_exits.advised:
        job.clean_exits.advised = True
        log.warning("%s: training goes on. To end training, %s", reason, REMEDY)


def forget_after_next_world(job: JobState) -> None:
    """Forget them once another world has formed."""
    if job.clean_exits.left and _is_over(job):
        part = job.clean_exits
        part.members, part.until, part.open, part.unknown = (), None, False, []
        part.left.clear()


def outcome(job: JobState) -> DepartureOutcome:
    """What it means that they have left."""
    part = job.clean_exits
    if not job.world.own:  # its members become known as the hosts of the earlier launcher come back
        part.members, part.unknown = job.world.members, _not_taken_over(job)
    others = [each for life in part.members if life not in part.left and (each := _staying(job, life)) is not None]
    return outcome_of_departure(job.now, list(part.left.values()), [*others, *part.unknown])


def why_not(job: JobState) -> WorldDecision | None:
    """Why no other world is called now; None if one may be."""
    until = job.clean_exits.until
    if until is None:
        return None
    return WorldDecision(None, "", "a rank has left its training function with exit code 0; the others may, too", until)


def waits(job: JobState) -> Wait | None:
    """A rank has left, and the others may, too."""
    part = job.clean_exits
    if part.until is None:
        return None
    names = first_few([each.who for each in part.left.values()])
    what = f"for the other ranks: {names} left the training function with exit code 0"
    return Wait(what, part.until, ", then training goes on without it")


def _is_over(job: JobState) -> bool:
    return job.generation > job.clean_exits.of and job.formed


def _not_taken_over(job: JobState) -> list[Staying]:
    """What else may have been in the world of an earlier launcher."""
    newest = max(job.world.found.values(), default=0)
    failed = [life for life, (generation, code) in job.adoption.ends.items() if code and generation >= newest]
    missing = [Staying(f"what may run on {host}") for host in job.adoption.missing]
    return [*missing, *(Staying(str(life.seat), lost=True) for life in failed)]


def _staying(job: JobState, life: ProcessId) -> Staying | None:
    """A member that has not left; None for a newcomer that was never in a world."""
    worker = job.roster.alive(life)
    if worker is None:
        victim = life in job.world.not_at_fault  # it has ended because it lost its peers: its successor trains on
        return Staying(str(life.seat), lost=not victim, joins=victim)
    if not worker.generation and worker.rank is None and job.rendezvous.place(life) is None:
        return None  # with a rank it is, or was, in a world, even if its word that it has entered comes late
    joins = life in job.rendezvous.waiting or life in job.rendezvous.asked_again
    lost = worker.killed is not None or worker.failure is not None
    return Staying(strikes.named(job, worker), lost=lost, done=worker.done, joins=joins, told=_why_told(job, worker))


def _why_told(job: JobState, worker: Worker) -> str:
    """The order, notice or signal because of which a process may leave; empty if there is none."""
    if job.before_exit.why is not None:
        return "the job was told to end"
    if (cause := notices.departure_cause(job, worker.seat.host)) is not None:
        return f"its host has notice: {cause}"
    if worker.leaving is not None:
        return f"told to leave: {worker.leaving}"
    if worker.warned or worker.reclaimed:
        return "check_alive() was False"
    if worker.unseen:
        return "it ended while there was no launcher, and may have been told to leave"
    return "it got a SIGTERM" if worker.terminated else ""


def plan(job: JobState) -> Plan:
    """Find out whether training is done, or what follows otherwise."""
    forget_after_next_world(job)
    part = job.clean_exits
    if not part.open:
        return NOTHING
    found, waited = outcome(job), part.until is not None
    part.until = found.until
    if found.departure is Departure.WAIT:
        return Plan(found.until)
    part.open = False
    if found.departure is Departure.DONE:
        log.info("%s: training is done", found.reason)
        job.outcome.finishing = True
        return NOTHING
    _log(job, found, waited=waited)
    if part.alone:
        last = max(part.left, key=lambda life: part.left[life].at)
        job.fail(strikes.all_left(job, f"{last.seat}: left with exit code 0 before training was done"))
    return NOTHING


def _log(job: JobState, found: DepartureOutcome, *, waited: bool) -> None:
    part = job.clean_exits
    if found.departure is Departure.RESUMABLE and not part.logged:
        part.logged = True
        log.info("ranks left the training function with exit code 0, and training goes on: %s", found.reason)
    elif found.departure is Departure.PART and not part.advised:
        advise(job, found.reason)
    elif found.departure is Departure.PART and waited:
        log.info("%s: training goes on", found.reason)

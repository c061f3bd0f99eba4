"""Whether processes that wait in ``hvd.init()`` meet others there, before their training loop.

A script that imports ``hvd_elastic_ext.torch`` can join a world in two places: in ``hvd.init()``, where nobody trains
yet, and in its training loop. What lies between is its *prologue*: its collectives act on all ranks only if all of them
run it together.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.membership.calls import Gate

log = logging.getLogger(__name__)


RECORD_S: Final = 30.0
"""Most seconds that a process waits in ``hvd.init()`` for what collectives have returned to the others. Slots get it
one after the other: while one gets it, or a host that is needed for it writes a checkpoint, this time begins anew."""
RECORD_MOST_S: Final = 600.0
"""Most seconds of all that."""


class Where(Enum):
    """Where in its program a living process is."""

    INIT = "init"
    """In ``hvd.init()``, or before it. Its world, if it was called to one, has not formed."""
    PROLOGUE = "prologue"
    """Between ``hvd.init()`` and its training loop, in a world with others."""
    APART = "apart"
    """In its training loop, or alone on its way there: it passes no place any more where it could be met earlier."""


class Meeting(Enum):
    """What happens to a process that waits in ``hvd.init()``."""

    READY = "ready"
    """It is ready for a world, which forms there."""
    WAIT = "wait"
    """It waits until the others have begun their training loop, or are lost."""
    ALONE = "alone"
    """It goes on alone, and meets the others in the training loop."""


def decide(others: Iterable[Where]) -> Meeting:
    """Decide about all processes that wait in ``hvd.init()``. ``others``: where the other living processes are.

    If those in a prologue are lost before their loop, the waiting ones can still run a prologue together with their
    successors: so they are not sent alone before.
    """
    places = set(others)
    if Where.APART in places:
        return Meeting.ALONE
    if Where.PROLOGUE in places:
        return Meeting.WAIT
    return Meeting.READY


def waits_until(*, expected: bool, there: bool, since: float, idle_since: float) -> float | None:
    """Until when a process waits in ``hvd.init()`` that would go on alone since then; None if it goes on now.

    ``expected``: whether the others have called collectives before their training loop. ``there``: whether what these
    have returned is in its slot. ``idle_since``: since when it could have come.
    """
    return min(idle_since + RECORD_S, since + RECORD_MOST_S) if expected and not there else None


# --- what follows from the state


def in_prologue(job: JobState) -> bool:
    """Whether a member of the newest world has not begun its training loop yet."""
    return any(worker.in_prologue for worker in job.roster.present(job.world.members))


# --- planner


def plan(job: JobState) -> Plan:
    """Make them ready, have them wait, or send them on alone."""
    here = [each for each in job.roster.workers.values() if each.at_init and each.stage is not Stage.LIVE]
    here = [each for each in here if each.killed is None and each.leaving is None]
    if not here:
        return NOTHING
    waiting = frozenset(map(id, here))
    living = [each for each in job.roster.workers.values() if each.killed is None and id(each) not in waiting]
    meeting = decide(_where(job, each) for each in living)
    going, again_at = list[Worker](), None
    gate = calls.gate_of(job) if meeting is Meeting.ALONE and job.calls.collectives else None
    for worker in here:
        if meeting is not Meeting.ALONE:
            worker.waits_alone_since = None
        if meeting is Meeting.READY and worker.stage is Stage.BOOTING:
            worker.stage, worker.since = Stage.PARKED, job.now
            job.record("parked", host=worker.seat.host, slot=worker.seat.slot)
        elif meeting is Meeting.WAIT and worker.stage is Stage.PARKED:  # a world has formed without it
            worker.stage, worker.since = Stage.BOOTING, job.now
        elif meeting is Meeting.ALONE:
            if worker.stage is not Stage.BOOTING:
                worker.stage, worker.since = Stage.BOOTING, job.now
            if (until := _waits_until(job, worker, gate)) is not None:
                again_at = until if again_at is None else min(again_at, until)
                continue
            worker.at_init, worker.alone, worker.since = False, True, job.now
            going.append(worker)
    job.tell_all(going, "alone")
    return Plan(again_at)


def _waits_until(job: JobState, worker: Worker, gate: Gate | None) -> float | None:
    """Until when a process waits for what collectives have returned to the others; None if it goes on alone now."""
    if worker.waits_alone_since is None:
        worker.waits_alone_since = worker.record_idle_since = job.now
    expected, there = job.calls.collectives, job.calls.has_record(worker.seat)
    if expected and not there and _is_hindered(job, worker, gate):
        worker.record_idle_since = job.now
    idle_since = worker.record_idle_since
    until = waits_until(expected=expected, there=there, since=worker.waits_alone_since, idle_since=idle_since)
    if until is None or job.now < until:
        return until
    log.warning(
        "%s goes on to its training loop: what collectives returned to the others before theirs has not come within "
        "%.0f s",
        worker.seat,
        job.now - worker.waits_alone_since,
    )
    return None


def _is_hindered(job: JobState, worker: Worker, gate: Gate | None) -> bool:
    """Whether what collectives have returned cannot come to a process's slot now: another slot gets it, a helper runs
    on a host that is needed for it, or some of the others have not come to their training loop.
    """
    standing = None if gate is None else gate.standings.get(worker.seat)
    source = None if standing is None else standing.source
    needed = {worker.seat.host, *(() if source is None else (source.host,))}
    late = job.calls.record_due and in_prologue(job)
    return late or job.calls.transfer is not None or not needed.isdisjoint(job.helping)


def _where(job: JobState, worker: Worker) -> Where:
    """Where a living process is. Members of a world that has not formed yet are in ``hvd.init()``."""
    if worker.alone or worker.loops:
        return Where.APART
    called_only = worker.generation == 0 and (worker.rank is None or worker.life in job.rendezvous.waiting)
    return Where.INIT if worker.stage is not Stage.LIVE or called_only else Where.PROLOGUE

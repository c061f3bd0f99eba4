"""What is said of processes that are not in the training call of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.rules.membership.calls import Act

BEFORE: Final = "gets what collectives returned before the training function"


def apart(job: JobState) -> dict[Seat, str]:
    """By seat, what a process does that is not in the call of the others. Usually empty, and cheap then."""
    if (gate := job.gate) is None:
        return {}
    found: dict[Seat, str] = {}
    for seat, standing in gate.standings.items():
        if standing.act is Act.CATCHES_UP:
            found[seat] = f"catches up with call {gate.front}" if gate.front > 1 else BEFORE
        elif standing.act is Act.WAITS:
            until = " until the job ends" if standing.for_good else ""
            found[seat] = f"waits outside{until}: {standing.why}"
    for seat, worker in job.roster.workers.items():
        if worker.told_in is not None and worker.call < gate.front and seat not in found:
            found[seat] = f"catches up with call {gate.front}"
    return found


def outside(job: JobState) -> frozenset[Seat]:
    """Seats whose processes wait until the job ends, or all others have ended."""
    standings = {} if job.gate is None else job.gate.standings
    return frozenset(seat for seat, standing in standings.items() if standing.for_good)


def lines(job: JobState) -> list[str]:
    """The same, in one line for each of them."""
    return [f"{seat} {what}" for seat, what in apart(job).items()]


def in_progress(members: Iterable[Worker]) -> list[str]:
    """The training call of a world's members, from the second one on."""
    call = max((worker.call for worker in members), default=0)
    return [f"call {call}"] if call > 1 else []

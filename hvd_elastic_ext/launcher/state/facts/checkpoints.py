"""Which commits members of the world have reported, and who has loaded a checkpoint."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from itertools import repeat
from typing import Final

from hvd_elastic_ext.core.errors import Interrupted
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Name
from hvd_elastic_ext.launcher.rules.checkpoints.final_checkpoint import STOP_LIMIT_S, stop_limit_s

TELLS_S: Final = 5.0
"""Latest time from a process's entry into a world to the report of its first commit."""


def newest_step(job: JobState) -> int:
    """The newest step that any member has reported."""
    return max((worker.step for worker in members(job)), default=0)


def members(job: JobState) -> Sequence[Worker]:
    """Processes of the newest world."""
    return job.roster.present(job.world.members)


def newest_of_all(job: JobState) -> Name | None:
    """The newest reported commit; None unless all members have reported one: others have no State of ours."""
    held = [worker.holds for worker in members(job)]
    known = [each for each in held if each is not None]
    return max(known) if known and len(known) == len(job.world.members) else None


def can_commit(job: JobState) -> bool:
    """Whether every member has a State of ours, or has not reported one yet: only such States leave commits."""
    now, present = job.now, members(job)
    young = all(each.holds is not None or now - each.since < TELLS_S for each in present)
    return bool(present) and (young or job.roster.commits.newest is not None)


def trains(job: JobState) -> bool:
    """Whether the world may hold more than memory did before it: all have agreed on the state, and one did a step."""
    return job.settled and any(map(_has_stepped, members(job), repeat(job.generation)))


def _has_stepped(worker: Worker, generation: int) -> bool:
    committed = worker.holds is not None and worker.holds[1] >= generation
    return committed or worker.step_s is not None or worker.stepped_at is not None


def holding(job: JobState) -> frozenset[Seat]:
    """Seats with the checkpoint in their memory."""
    found = [job.loading_of(host) for host in job.restore.hosts]
    return frozenset(seat for loading in found if loading is not None for seat in loading.seats)


def last_checkpoint_until(job: JobState) -> float:
    """When the wait for the last checkpoint of a job that has to end is over (mono)."""
    part = job.before_exit
    if part.why is None:
        return math.inf
    heard = any(agent.joined and job.now - agent.last_message_at < STOP_LIMIT_S for agent in job.roster.agents.values())
    on_its_way = heard and not job.checkpoints.failed_in_a_row
    return part.since + stop_limit_s(by_hand=ends_by_hand(job), on_its_way=on_its_way)


def ends_by_hand(job: JobState) -> bool:
    """Whether Ctrl-C ends the job."""
    why = job.before_exit.why
    return isinstance(why, Interrupted) and why.signal_number == signal.SIGINT

"""When a job in which no process trains may save what memory holds."""

from __future__ import annotations

import math
from typing import Final

from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.rules.checkpoints.before_preemption import lead_s

ANSWER_S: Final = 900.0
"""Longest time for a host's answer: it may have to read a whole checkpoint."""


def is_waiting(job: JobState) -> bool:
    """Whether an agent still has to answer, or writes a checkpoint."""
    return bool(job.helpers[Purpose.SLEEP]) or (job.checkpoints.attempt is not None)


def next_look(job: JobState) -> float | None:
    """When the next step may be due (mono)."""
    return None if job.before_sleep.since is None or is_waiting(job) else not_before(job)


def not_before(job: JobState) -> float:
    """When the next step is due, unless an agent has to answer first (mono)."""
    state = job.before_sleep
    if state.since is None:
        return math.inf
    return max(_ready_at(job, state.since), state.again_at, job.checkpoints.not_before)


def _ready_at(job: JobState, since: float) -> float:
    """When hosts have been too few for long enough, or all holders of the newest commit will go (mono)."""
    at = since + (0.0 if job.before_sleep.skip_waiting else job.options.sleep_after_s)
    holders, going = job.roster.commits.newest_hosts(), job.leaves_by
    if not holders or not holders <= going.keys():
        return at
    ends = min(going[host] for host in holders)
    return since if ends == math.inf else max(since, min(at, ends - lead_s(job.cost.durable_s)))

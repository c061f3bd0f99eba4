"""Every how many calls of ``state.commit()`` one is made: decided here, told to all, and compared with what they do.

Ranks change at one call among themselves, begin anew with every call in each world, and
leave none out while a commit is named for a checkpoint. Nothing of that has to be followed here: whoever
goes by another number than the one that is wanted is told it again.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from hvd_elastic_ext.launcher.rules.checkpoints import interval
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Worker

ENOUGH: Final = 5
"""Commits that are measured before any is left out: the first ones find their memory."""
CHOOSE_S: Final = 10.0
"""How often the choice is looked at."""
AGAIN_S: Final = 5.0
"""When a rank that goes by another number is told again."""


def plan(job: JobState) -> Plan:
    """Measure, choose, and tell those who go by another number."""
    now = job.now
    auto = job.rules.commit_every is not None and job.rules.commit_every.auto
    if not auto and now < job.commit_interval.look_at:  # there may be thousands, and mostly nothing is to be said
        return NOTHING
    job.commit_interval.look_at = now + AGAIN_S
    if not job.settled:
        return NOTHING
    members = job.roster.present(job.world.members)
    if auto:
        _measure(job, members)
        if now >= job.commit_interval.choose_at:
            job.commit_interval.choose_at = now + CHOOSE_S
            _choose(job, now, hosts=len({worker.seat.host for worker in members}))
    others = [worker for worker in members if worker.every not in (None, job.commit_interval.every)]
    if others and now >= job.commit_interval.tell_at:
        job.commit_interval.tell_at = now + AGAIN_S
        job.tell_all(members, "thin", every=job.commit_interval.every)
    return NOTHING


def _measure(job: JobState, members: list[Worker]) -> None:
    """Note what a commit took that is new: all wait for the slowest."""
    newest = max((worker.holds for worker in members if worker.holds is not None), default=None)
    commits = [worker.commit_s for worker in members if worker.commit_s is not None]
    calls = [worker.call_s for worker in members if worker.call_s is not None]
    if newest != job.commit_interval.newest and commits and calls:
        job.commit_interval.newest = newest
        job.commit_interval.commits_s.append(max(commits))
        job.commit_interval.calls_s.append(max(calls))


def _choose(job: JobState, now: float, *, hosts: int) -> None:
    mended, job.commit_interval.mended = job.commit_interval.mended, job.world.mended
    for _ in range(job.commit_interval.mended - mended):
        job.commit_interval.failures = job.commit_interval.failures.failed()
    job.commit_interval.failures = job.commit_interval.failures.watched(now - job.commit_interval.watched_from, hosts)
    job.commit_interval.watched_from = now
    if len(job.commit_interval.commits_s) < ENOUGH:
        return
    before = job.commit_interval.choice
    job.commit_interval.choice = interval.commit_every(
        list(job.commit_interval.commits_s),
        median(job.commit_interval.calls_s),
        job.commit_interval.failures.rate(hosts),
        before=before,
    )
    if job.commit_interval.choice is not before:
        job.commit_interval.every, job.commit_interval.tell_at = job.commit_interval.choice.steps, -math.inf
        job.record("interval", calls=job.commit_interval.every, reason=_said(job.commit_interval.choice))


def _said(choice: interval.Thinning) -> str:
    calls = "all calls of commit() commit" if choice.steps == 1 else f"one in {choice.steps} calls of commit() commits"
    return f"{calls}: {choice.reason}"

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
    state = job.commit_interval
    now = job.now
    auto = job.rules.commit_every is not None and job.rules.commit_every.auto
    if not auto and now < state.look_at:  # there may be thousands, and mostly nothing is to be said
        return NOTHING
    state.look_at = now + AGAIN_S
    if not job.settled:
        return NOTHING
    members = job.roster.present(job.world.members)
    if auto:
        _measure(job, members)
        if now >= state.choose_at:
            state.choose_at = now + CHOOSE_S
            _choose(job, hosts=len({worker.seat.host for worker in members}))
    others = [worker for worker in members if worker.every not in (None, state.every)]
    if others and now >= state.tell_at:
        state.tell_at = now + AGAIN_S
        job.tell_all(members, "thin", every=state.every)
    return NOTHING


def _measure(job: JobState, members: list[Worker]) -> None:
    """Note what a commit took that is new: all wait for the slowest."""
    state = job.commit_interval
    newest = max((worker.holds for worker in members if worker.holds is not None), default=None)
    commits = [worker.commit_s for worker in members if worker.commit_s is not None]
    calls = [worker.call_s for worker in members if worker.call_s is not None]
    if newest != state.newest and commits and calls:
        state.newest = newest
        state.commits_s.append(max(commits))
        state.calls_s.append(max(calls))


def _choose(job: JobState, *, hosts: int) -> None:
    now, state = job.now, job.commit_interval
    mended, state.mended = state.mended, job.world.mended
    for _ in range(state.mended - mended):
        state.failures = state.failures.failed()
    state.failures = state.failures.watched(now - state.watched_from, hosts)
    state.watched_from = now
    if len(state.commits_s) < ENOUGH:
        return
    before = state.choice
    state.choice = interval.commit_every(
        list(state.commits_s),
        median(state.calls_s),
        state.failures.rate(hosts),
        before=before,
    )
    if state.choice is not before:
        state.every, state.tell_at = state.choice.steps, -math.inf
        job.record("interval", calls=state.every, reason=_said(state.choice))


def _said(choice: interval.Thinning) -> str:
    calls = "all calls of commit() commit" if choice.steps == 1 else f"one in {choice.steps} calls of commit() commits"
    return f"{calls}: {choice.reason}"

"""One in how many calls of ``state.commit()`` commits.

Ranks change to a new interval at the same call. They start each world with every call, and skip none while a commit is
named for a checkpoint. The planner does not track that: it sends the interval again to a rank that reports another one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.launcher.checkpoints import interval
from hvd_elastic_ext.launcher.checkpoints.interval import MAX_SAMPLES, Failures
from hvd_elastic_ext.launcher.driver.actions import NOTHING

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker


@dataclass(slots=True)
class CommitInterval:
    """The interval between calls of ``state.commit()`` that commit, and the measurements behind it."""

    every: int
    watched_from: float
    choice: interval.IntervalInSteps | None = None
    failures: Failures = field(default_factory=Failures)
    rollbacks: int = 0
    commits_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    calls_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    newest: tuple[int, int, int] | None = None
    look_at: float = -math.inf
    choose_at: float = -math.inf
    tell_at: float = -math.inf


# --- planner


MIN_COMMITS: Final = 5
"""Commits to measure before any is skipped: the first ones allocate their memory."""
CHOOSE_S: Final = 10.0
"""Seconds between two choices."""
RETRY_S: Final = 5.0
"""Seconds until the interval is sent again to a rank that uses another one."""


def plan(job: JobState) -> Plan:
    """Measure, choose, and send the interval to ranks that use another one."""
    state = job.commit_interval
    now = job.now
    auto = job.options.commit_every is not None and job.options.commit_every.auto
    if not auto and now < state.look_at:  # there may be thousands of ranks, and usually nothing to send
        return NOTHING
    state.look_at = now + RETRY_S
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
        state.tell_at = now + RETRY_S
        job.tell_all(members, "commit_interval", every=state.every)
    return NOTHING


def _measure(job: JobState, members: Sequence[Worker]) -> None:
    """Note the time of a new commit: all ranks wait for the slowest."""
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
    rollbacks, state.rollbacks = state.rollbacks, job.world.rollbacks
    for _ in range(state.rollbacks - rollbacks):
        state.failures = state.failures.failed()
    state.failures = state.failures.watched(now - state.watched_from, hosts)
    state.watched_from = now
    if len(state.commits_s) < MIN_COMMITS:
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
        job.record("interval", calls=state.every, reason=_described(state.choice))


def _described(choice: interval.IntervalInSteps) -> str:
    calls = "all calls of commit() commit" if choice.steps == 1 else f"one in {choice.steps} calls of commit() commits"
    return f"{calls}: {choice.reason}"

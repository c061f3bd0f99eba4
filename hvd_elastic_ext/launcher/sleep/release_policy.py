"""When a sleeping job releases its workers, and when it requests them again. Pure: ``(now, facts, limits) → decision``.

A sleeping job has as few workers as its operator allows. They are requested again at intervals: as many as the job
needs, and for at most ``wake_timeout_s``, since only some of them are of no use. The published hosts decide whether the
job wakes. An awake job has as many workers as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import WorkloadKind
from hvd_elastic_ext.launcher.sleep.replica_requests import to_delete, workload

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.sleep.replica_requests import Seen, Workload


PUBLISHED_S: Final = 60.0
"""Longest time until workers that are all ready are published as hosts: they are probed first, and settle."""
DELETE_RETRY_S: Final = 5.0
"""Pause between two looks for workers that are to be deleted."""
PAUSES_S: Final = (5.0, 300.0)
"""After the first failure in a row, doubled with each further one; and the longest."""


@dataclass(frozen=True, slots=True)
class ReleaseLimits:
    """``wake_every_s``: how long workers are released until they are requested; ``wake_timeout_s``: how long they may
    then take to be ready. ``suspends``: the job is suspended when it ends with exit code 75. Raises
    :class:`UsageError`.
    """

    job: Workload
    wake_every_s: float = 300.0
    wake_timeout_s: float = 600.0
    suspends: bool = False

    def __post_init__(self) -> None:
        for option, value in (("--wake-every", self.wake_every_s), ("--wake-timeout", self.wake_timeout_s)):
            if not 0 < value < math.inf:
                raise UsageError(f"{option} is {value:g}; write a time above 0, such as {durations.EXAMPLES}")
        if self.suspends and not self.job.kind.suspends_itself:
            raise UsageError(f"--sleep-releases job: {self.job.kind.name} cannot be suspended; use pods")


def limits_of(what: str, job: str | None, wake_every_s: float, wake_timeout_s: float) -> ReleaseLimits | None:
    """Read ``--sleep-releases`` and ``--release-job``; None if no worker is released. Raises :class:`UsageError`."""
    if what == "none":
        if job is not None:
            raise UsageError("--release-job is for --sleep-releases pods; give both, or none")
        return None
    if job is None:
        raise UsageError(
            f"--sleep-releases {what}: what makes the pods is not known; give --release-job KIND/NAME, "
            "such as mpijob/digits"
        )
    return ReleaseLimits(workload(job), wake_every_s, wake_timeout_s, suspends=what == "job")


class ReleaseAction(Enum):
    """What to do with the workers of a job that sleeps."""

    WAIT = "wait"
    RELEASE = "let them go"
    DELETE = "delete those that the operator leaves"
    ADOPT = "others have requested some"
    ASK = "ask for as many as the job needs"


@dataclass(frozen=True, slots=True)
class SleepProgress:
    """The actions so far in one sleep. ``asked``: the number of workers that were requested, None while they are
    released. ``since``: when (mono), None before the first action. ``deletions_done``: the released pods are known to
    be in deletion.
    """

    asked: int | None = None
    since: float | None = None
    deletions_done: bool = True


@dataclass(frozen=True, slots=True)
class ReleaseDecision:
    """``again_at``: when time alone may change it (mono); None: never."""

    act: ReleaseAction
    reason: str
    again_at: float | None = None


def without_look(now: float, progress: SleepProgress, limits: ReleaseLimits, *, enough: bool) -> ReleaseDecision | None:
    """The decision, if it needs no look at the cluster; else None.

    ``enough``: so many hosts are published that the job is about to wake.
    """
    if enough:
        return ReleaseDecision(ReleaseAction.WAIT, "enough hosts are published")
    if progress.since is None or not progress.deletions_done:
        return None
    ends = progress.since + (limits.wake_every_s if progress.asked is None else limits.wake_timeout_s)
    if now >= ends:
        return None
    for_what = (
        "the workers have been released" if progress.asked is None else f"{progress.asked} workers were asked for"
    )
    return ReleaseDecision(ReleaseAction.WAIT, for_what, ends)


def decide(now: float, progress: SleepProgress, seen: Seen, limits: ReleaseLimits) -> ReleaseDecision:
    """The decision after a look at the cluster, if :func:`without_look` gives none."""
    kind = limits.job.kind
    if progress.since is None:
        return ReleaseDecision(ReleaseAction.RELEASE, "the job sleeps")
    if progress.asked is not None:
        return _while_asked(now, progress.asked, progress.since, seen, limits)
    if now < progress.since + limits.wake_every_s:
        return _after_release(now, progress.since + limits.wake_every_s, seen, limits)
    if seen.replicas > kind.fewest:
        return ReleaseDecision(ReleaseAction.ADOPT, "others have requested them")
    return ReleaseDecision(ReleaseAction.ASK, f"{limits.wake_every_s:g} s have passed without them")


def _after_release(now: float, ends: float, seen: Seen, limits: ReleaseLimits) -> ReleaseDecision:
    left = to_delete(limits.job, seen)
    if left:
        return ReleaseDecision(
            ReleaseAction.DELETE, f"{len(left)} workers are still there", min(now + DELETE_RETRY_S, ends)
        )
    return ReleaseDecision(ReleaseAction.WAIT, "the workers have been released", ends)


def _while_asked(now: float, asked: int, since: float, seen: Seen, limits: ReleaseLimits) -> ReleaseDecision:
    ends = since + limits.wake_timeout_s
    ready = f"{seen.ready} of {asked} workers are ready"
    if seen.ready >= asked:
        ends += PUBLISHED_S
        if now < ends:
            return ReleaseDecision(ReleaseAction.WAIT, ready, ends)
        return ReleaseDecision(
            ReleaseAction.RELEASE, f"all {asked} workers are ready but the job still has too few hosts"
        )
    if now < ends:
        return ReleaseDecision(ReleaseAction.WAIT, ready, ends)
    return ReleaseDecision(ReleaseAction.RELEASE, f"{ready} {limits.wake_timeout_s:g} s after they were asked for")


def workers_for(slots: int, per_worker: Iterable[int], *, guess: int, before: int) -> int:
    """How many workers have ``slots`` slots, by the slots that workers had; by the smallest, as any may come.

    If nothing is known of those, by ``guess`` each, but not more workers than there were.
    """
    least = min((each for each in per_worker if each > 0), default=0)
    if least:
        return max(1, math.ceil(slots / least))
    return max(1, min(math.ceil(slots / guess), before or math.ceil(slots / guess)))


def restored(seen: Seen, before: int | None, requested: int | None, kind: WorkloadKind) -> int | None:
    """How many workers an awake job should have; None to keep the present number.

    As many as before. A number that a user has set since the last ``requested`` one stays; None: unknown.
    """
    if before is None or seen.replicas >= before:
        return None
    ours = seen.replicas <= kind.valid or requested is None or seen.replicas == requested
    return before if ours else None


def pause_s(failures: int) -> float:
    """How long to wait after this many failures in a row, at least one."""
    return pause_after(failures, first=PAUSES_S[0], longest=PAUSES_S[1])

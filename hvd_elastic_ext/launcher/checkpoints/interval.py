"""How often to make a durable checkpoint, and how often to commit: ``(costs, failures) → (so often, why)``. Pure.

A checkpoint costs training ``cost_s``: the stall, and the slower steps while it is written. A failure costs everything
since the last *durable* checkpoint, and the restart. With failures at a constant rate *r*

    share of the time kept = r · e^(-r · (restart + durable)) · (interval - cost) / (e^(r · interval) - 1)

Restart and writing time are a factor of their own: they do not change which interval is best. It remains to solve
``x - 1 + e^-x = r · cost`` for ``x = r · interval``. That is Daly's exact form with the stall in place of the writing
time of a checkpoint that blocks; to first order it is Young's ``sqrt(2 · cost / r)``.

- J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
- J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006.

The loss is flat around the best interval (a rate that is wrong by a factor of two costs 6 % more), so a choice stands
until it is off by more than ``TOLERANCE``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from hvd_elastic_ext.launcher.health.host_requests import duration
from hvd_elastic_ext.launcher.rules.checkpoints.failure_rate import Rate

FIRST_S: Final = 60.0
"""Seconds until the first checkpoint. It is early, because that gives the first measurement."""


MAX_SAMPLES: Final = 9
"""Checkpoints (or commits) whose median counts: one slow write is chance, five are the storage."""


TOLERANCE: Final = 1.25
"""A choice stays while the best interval differs by no more than this factor, which adds 2.5 % to the loss."""


WRITES: Final = 2.0
"""The interval is at least this many times the time until a checkpoint is durable, so that others can use it, too."""


MIN_S: Final = 10.0


MAX_S: Final = 3600.0
"""The longest interval: a job without any failure so far loses at most an hour to the first one."""


FREE_SHARE: Final = 0.01
"""Commits that take no more than this share of the time are all made: less cost is not worth a lost step."""


MAX_SHARE: Final = 0.05
"""The largest share of the time for commits, if fewer commits can reach it."""


MAX_LOST_S: Final = 60.0
"""Seconds of training between two commits at most, if commits take no more than ``MAX_SHARE`` then."""


@dataclass(frozen=True, slots=True)
class SealCost:
    """What a checkpoint was measured to cost.

    ``stall_s``: seconds without training beyond those of a commit. ``durable_s``: seconds from the commit until the
    checkpoint existed. ``slowed``: share by which steps took longer meanwhile (0.05: 5 %).
    """

    stall_s: float
    durable_s: float
    slowed: float = 0.0

    @property
    def cost_s(self) -> float:
        """Seconds of training that it cost."""
        return max(0.0, self.stall_s) + max(0.0, self.slowed) * self.durable_s


@dataclass(frozen=True, slots=True)
class IntervalInSeconds:
    """``seconds`` from the start of one checkpoint to that of the next. ``reason`` is for journal and people."""

    seconds: float
    reason: str
    measured: bool = True


@dataclass(frozen=True, slots=True)
class IntervalInSteps:
    """One in this many calls of ``state.commit()`` commits; 1: all of them."""

    steps: int
    reason: str


UNMEASURED: Final = IntervalInSeconds(FIRST_S, "no checkpoint has been measured yet", measured=False)


def best_interval(cost_s: float, failures_per_s: float) -> float:
    """Seconds from one copy's start to the next's that keep the largest share of the time; see the module's docstring.

    0 for a copy that costs nothing, and infinite if nothing fails.
    """
    load = max(0.0, cost_s) * failures_per_s
    if failures_per_s <= 0.0:
        return math.inf
    # x - 1 + exp(-x) has a double zero at 0, where its difference is all rounding; the series is exact there.
    x = math.sqrt(2.0 * load) + load / 3.0
    if load > 1e-6:
        for _ in range(6):  # Newton on a convex function, from near its zero: three do
            x -= (x + math.expm1(-x) - load) / -math.expm1(-x)
    return x / failures_per_s


def checkpoint_interval(
    seals: Sequence[SealCost], rate: Rate, *, before: IntervalInSeconds | None = None
) -> IntervalInSeconds:
    """Return how often to make a checkpoint; ``before`` itself if that choice stays.

    ``seals``: those that were measured, newest last. ``rate``: of failures that lose every commit in memory, and
    no others (:mod:`hvd_elastic_ext.launcher.rules.checkpoints.failure_rate`).
    """
    if not seals:
        return before or UNMEASURED
    cost, durable = (
        median(values) for values in zip(*((s.cost_s, s.durable_s) for s in seals[-MAX_SAMPLES:]), strict=True)
    )
    best = best_interval(cost, rate.per_s)
    wanted = max(MIN_S, WRITES * durable, min(best, MAX_S))
    if before is not None and before.measured and _near(before.seconds, wanted):
        return before
    what = f"a checkpoint costs {cost:.3g} s and is durable after {durable:.3g} s"
    return IntervalInSeconds(
        wanted, f"{what}; {_expected('loss of all commits in memory', rate)}{_bound(best, wanted)}"
    )


def _bound(best: float, wanted: float) -> str:
    """Text about the bound that replaced the best interval; empty if none did."""
    if wanted > best:
        least = f"{WRITES:g} × that" if wanted > MIN_S else f"{wanted:.3g} s"
        return f"; every {best:.3g} s would be best, and {least} is the least"
    return f"; {wanted:.3g} s is the most" if wanted < best else ""


def commit_every(
    commits_s: Sequence[float], step_s: float, rate: Rate, *, before: IntervalInSteps | None = None
) -> IntervalInSteps:
    """Return how many steps there are from one commit to the next; ``before`` itself if that choice stays.

    ``commits_s``: seconds that commits took, newest last; ``step_s``: those of a step without one. ``rate``: of
    failures of any process.

    The best interval, with two bounds. Commits that take at most ``FREE_SHARE`` of the time are all made. Between two
    commits there are at most ``MAX_LOST_S`` of training, or the longer time that keeps commits at ``MAX_SHARE``.
    """
    if not commits_s or step_s <= 0.0:
        return before or IntervalInSteps(1, "no commit has been measured yet")
    commit = median(commits_s[-MAX_SAMPLES:])
    best = _training_between(commit, rate.per_s)
    most = max(MAX_LOST_S, commit / MAX_SHARE)
    steps = max(1, min(math.ceil(commit / FREE_SHARE / step_s), int(min(best, most) / step_s)))
    if before is not None and _near(before.steps, steps):
        return before
    what = f"a commit takes {commit:.3g} s and a step {step_s:.3g} s"
    takes = f"{100 * commit / (commit + steps * step_s):.2g} % of the time"
    return IntervalInSteps(steps, f"{what}; {_expected('failure', rate)}; so commits take {takes}")


def _training_between(cost_s: float, failures_per_s: float) -> float:
    """The best interval without the copy: ``x - r · cost``, which equals ``1 - e^-x`` at the best interval."""
    interval = best_interval(cost_s, failures_per_s)
    return interval if interval == math.inf else -math.expm1(-interval * failures_per_s) / failures_per_s


def _near(present: float, wanted: float) -> bool:
    low, high = sorted((present, wanted))
    return high <= TOLERANCE * low


def _expected(failure: str, rate: Rate) -> str:
    every = duration(rate.every_s)
    if not rate.seen:
        return f"no {failure} yet, one every {every} is assumed"
    return f"a {failure} is expected every {every} ({rate.seen} seen)"

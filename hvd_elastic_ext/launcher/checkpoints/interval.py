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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.launcher.health.host_requests import duration

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState


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
    no others (:mod:`hvd_elastic_ext.launcher.checkpoints.interval`).
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


# --- how often something fails


EVERY_S: Final = 8 * 3600.0
"""Assumed seconds between failures of each unit at first. Rather too few: an extra checkpoint costs little."""
WEIGHT: Final = 0.25
"""Weight of this assumption, in failures: the first observed failure counts four times as much."""
DECAY_FACTOR: Final = 0.85
"""Each failure multiplies all older evidence by this factor: about the last 7 failures count, over any length of
time."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s``: failures a second. ``seen``: how many were observed."""

    per_s: float
    seen: int = 0

    @property
    def every_s(self) -> float:
        """Mean seconds from one failure to the next."""
        return 1.0 / self.per_s


@dataclass(frozen=True, slots=True)
class Failures:
    """An estimate of a rate: ``count`` failures in ``exposure_s`` seconds of all units.

    It is a gamma distribution over the rate. Losses are proportional to the rate, so the interval that is best for the
    mean is best for the whole estimate. Each failure multiplies all older evidence by ``DECAY_FACTOR``. The weight of
    evidence depends on later failures and not on hours, so it suits jobs that fail every minute and every week.
    """

    count: float = WEIGHT
    exposure_s: float = WEIGHT * EVERY_S
    seen: int = 0

    def watched(self, seconds: float, units: int = 1) -> Failures:
        """Add ``seconds`` in which a failure would have been observed.

        ``units``: how many things fail independently at this rate: hosts for commits, 1 for a loss of all copies.
        """
        return replace(self, exposure_s=self.exposure_s + max(0.0, seconds) * units)

    def failed(self) -> Failures:
        """One failure happened now."""
        return Failures(DECAY_FACTOR * self.count + 1.0, DECAY_FACTOR * self.exposure_s, self.seen + 1)

    def to_json(self) -> dict[str, float]:
        """For JSON: the next launcher continues with the estimate."""
        return {"count": self.count, "exposure_s": self.exposure_s, "seen": self.seen}

    @classmethod
    def of(cls, data: object) -> Failures:
        """The estimate that :meth:`to_json` gave; the first one for anything else."""
        values = [data.get(name) for name in ("count", "exposure_s", "seen")] if isinstance(data, dict) else []
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(numbers) < 3 or not all(1e-9 < number < 1e12 for number in numbers[:2]) or not 0 <= numbers[2] < 1e9:
            return cls()
        return cls(float(numbers[0]), float(numbers[1]), int(numbers[2]))

    def rate(self, units: int = 1) -> Rate:
        """All units of now together."""
        return Rate(units * self.count / self.exposure_s, self.seen)


# --- how much slower steps are meanwhile


DEFAULT_SLOWDOWN: Final = 0.05
"""Assumed until a measurement."""
SHORTEST_S: Final = 5.0
"""Shorter times are not measured: step counts are up to a second old."""
MIN_STEPS: Final = 5
MAX_SLOWDOWN: Final = 1.0


class StepAt(NamedTuple):
    """A time (mono) and the last step done then."""

    at: float
    step: int


def slowed(before: tuple[StepAt, StepAt], meanwhile: tuple[StepAt, StepAt]) -> float | None:
    """The share by which steps took longer ``meanwhile`` than ``before``; None if not measurable.

    Between 0 and :data:`MAX_SLOWDOWN`: faster is chance, and twice as long has another cause.
    """
    usual, then = _step_s(*before), _step_s(*meanwhile)
    return None if usual is None or then is None else min(MAX_SLOWDOWN, max(0.0, then / usual - 1.0))


def _step_s(first: StepAt, last: StepAt) -> float | None:
    took, steps = last.at - first.at, last.step - first.step
    return took / steps if took >= SHORTEST_S and steps >= MIN_STEPS else None


@dataclass(slots=True)
class SlowdownMeter:
    """Measures one write after the other: call ``trains``, ``begins``, ``ends`` in that order, or ``breaks``."""

    _since: StepAt | None = None
    _begun: StepAt | None = None

    def trains(self, now: float, step: int) -> None:
        """A world trains, and nothing is written."""
        self._since = self._since or StepAt(now, step)

    def begins(self, now: float, step: int) -> None:
        """Its commit of ``step`` begins to be written."""
        self._begun = StepAt(now, step)

    def ends(self, now: float, step: int) -> float | None:
        """It is written; return the slowdown if measurable. ``step``: the newest one known."""
        since, begun, end = self._since, self._begun, StepAt(now, step)
        self._since, self._begun = end, None
        return None if since is None or begun is None else slowed((since, begun), (begun, end))

    def breaks(self) -> None:
        """Something else changed: drop the measurement."""
        self._since = self._begun = None


# --- state


FIRST_DURABLE_S: Final = 5.0
"""Assumed time until a commit is durable, before the first measurement."""


@dataclass(slots=True)
class Cost:
    """What checkpoints cost a running job, and how often something failed."""

    watched_from: float
    failures: Failures = field(default_factory=Failures)
    choice: IntervalInSeconds = UNMEASURED
    seals: list[SealCost] = field(default_factory=list)
    """The newest checkpoints that were measured."""
    slowing: SlowdownMeter = field(default_factory=SlowdownMeter)

    @property
    def durable_s(self) -> float:
        """Seconds until the last commit was durable; a guess at first."""
        return self.seals[-1].durable_s if self.seals else FIRST_DURABLE_S


# --- what happens


def resumed_from(job: JobState, facts: Mapping[str, Any]) -> None:
    """Training resumes from a checkpoint with a manifest that holds ``facts``: see :func:`facts`.

    Unless the job ended with it, a failure has cost every commit in memory since then, and counts.
    """
    known = Failures.of(facts.get("failures"))
    job.cost.failures = known if facts.get("ended") is True else known.failed()
    job.cost.watched_from = job.now


def facts(job: JobState, *, ended: bool) -> dict[str, Any]:
    """The entries in the manifest. ``ended``: the job ends, or sleeps, with this commit."""
    return {"failures": _watched(job).to_json(), "ended": ended}


def measured(job: JobState, durable_s: float, slowed: float | None, *, stall_s: float = 0.0) -> None:
    """Take in the cost of a checkpoint.

    ``slowed``: share by which steps were slower (None: not measured). ``stall_s``: seconds in which training stood.
    """
    state = job.cost
    usual = state.seals[-1].slowed if state.seals else DEFAULT_SLOWDOWN
    seal = SealCost(stall_s, durable_s, usual if slowed is None else slowed)
    state.seals = [*state.seals[1 - MAX_SAMPLES :], seal]
    if job.options.durability is not None and job.options.durability.every.auto:
        _choose(job)


def _choose(job: JobState) -> None:
    state = job.cost
    before = state.choice
    state.choice = checkpoint_interval(state.seals, _watched(job).rate(), before=before)
    if state.choice is not before:
        reason = f"checkpoints every {state.choice.seconds:.3g} s: {state.choice.reason}"
        job.record("interval", seconds=round(state.choice.seconds, 3), reason=reason)


def _watched(job: JobState) -> Failures:
    state = job.cost
    state.failures, state.watched_from = state.failures.watched(job.now - state.watched_from), job.now
    return state.failures

"""Simulates the value of an interval between durable checkpoints: the goodput of a job whose hosts are always listed.

A job trains, and writes a checkpoint in the background at an interval. A failure costs the restart, and all work since
the last checkpoint that was durable then. Failures also happen during restarts and repeated steps. Times are in
seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hvd_elastic_ext.core.goodput import share
from hvd_elastic_ext.launcher.checkpoints.interval import (
    MAX_SAMPLES,
    Failures,
    IntervalInSeconds,
    SealCost,
    checkpoint_interval,
)

Array = NDArray[np.float64]

LOOK_S: Final = 300.0
"""Seconds between two choices of the interval. The interval is also chosen after each failure."""
SEAL: Final = SealCost(stall_s=0.5, durable_s=10.0, slowed=0.05)
"""A checkpoint that costs one second of training."""
NOISE: Final = 0.3
"""The error of each measurement of a checkpoint: the standard deviation of its logarithm."""


@dataclass(frozen=True, slots=True)
class World:
    """``seal``: the cost of a checkpoint. ``horizon_s``: the length of the simulation."""

    seal: SealCost = SEAL
    restart_s: float = 60.0
    horizon_s: float = 48 * 3600.0


@dataclass(frozen=True, slots=True)
class Failing:
    """The failures of jobs: mean gaps of ``first_s`` that change evenly to ``last_s`` at the end of the horizon.

    ``shape``: of the Weibull distribution. 1 is a constant rate; below 1, failures come in groups.
    """

    first_s: float
    last_s: float | None = None
    shape: float = 1.0

    def traces(self, world: World, count: int, *, seed: int) -> list[Array]:
        """Return the failures of ``count`` jobs up to the horizon. They depend only on the arguments."""
        return [self._trace(world.horizon_s, np.random.default_rng([seed, number])) for number in range(count)]

    def _trace(self, horizon: float, rng: np.random.Generator) -> Array:
        """Return the times of failures: random gaps with mean 1, multiplied by the mean gap at that time."""
        times: list[float] = []
        now = 0.0
        mean = math.gamma(1.0 + 1.0 / self.shape)
        slope = math.log((self.last_s or self.first_s) / self.first_s) / horizon
        while True:
            now += self.first_s * math.exp(slope * now) * rng.weibull(self.shape) / mean
            if now >= horizon:
                return np.array(times)
            times.append(now)


class Fixed:
    """Jobs with a fixed interval. They learn nothing, so all of them are computed together."""

    def __init__(self, world: World, traces: list[Array]) -> None:
        self._world = world
        self._jobs = len(traces)
        ends = [np.append(trace, world.horizon_s) for trace in traces]
        lives = [end - np.append(0.0, end[:-1] + world.restart_s) for end in ends]
        self._ended = np.concatenate([life[:-1] for life in lives])
        self._last = np.maximum(0.0, [life[-1] for life in lives])

    def goodput(self, interval_s: float) -> float:
        """Return the mean share of the time that they keep. ``interval_s`` is at least the length of a write."""
        cost, durable = self._world.seal.cost_s, self._world.seal.durable_s
        sealed = np.floor(np.maximum(0.0, self._ended - durable) / interval_s)
        kept = np.sum(np.where(sealed > 0, sealed * interval_s - (sealed - 1) * cost, 0.0))
        # The last part up to the horizon loses only the cost of its checkpoints.
        kept += np.sum(np.maximum(0.0, self._last - np.floor(self._last / interval_s) * cost))
        return share(float(kept), self._jobs * self._world.horizon_s)


Choose = Callable[..., IntervalInSeconds]
"""See :func:`hvd_elastic_ext.launcher.checkpoints.interval.checkpoint_interval`."""


def auto(world: World, traces: list[Array], *, seed: int) -> float:
    """Return the mean share of the time kept by jobs that choose their interval as ours do, with no knowledge at
    first."""
    rngs = (np.random.default_rng([seed, number, 1]) for number in range(len(traces)))
    kept = sum(Learner(world, rng).run(trace) for trace, rng in zip(traces, rngs, strict=True))
    return share(kept, len(traces) * world.horizon_s)


class Learner:
    """One job: its knowledge, and the work that it keeps."""

    def __init__(self, world: World, rng: np.random.Generator, choose: Choose = checkpoint_interval) -> None:
        self._world = world
        self._choice = choose
        self._noise: Iterator[float] = iter(rng.lognormal(0.0, NOISE, size=4096).tolist())
        self._failures = Failures()
        self._seals: tuple[SealCost, ...] = ()
        self._seen_until = 0.0
        self.choices: list[IntervalInSeconds] = [choose((), self._failures.rate())]

    def run(self, trace: Array) -> float:
        """Return the seconds of training that are kept."""
        kept, begun = 0.0, 0.0
        for failure in trace.tolist():
            if begun < failure:
                kept += self._live(begun, failure)[0]
            self._watch(failure)
            self._failures = self._failures.failed()
            self._choose()
            begun = failure + self._world.restart_s
        end = self._world.horizon_s
        return kept + (self._live(begun, end)[1] if begun < end else 0.0)

    def _live(self, begun: float, end: float) -> tuple[float, float]:
        """Train from ``begun`` to ``end``. Return the seconds trained up to the last durable seal, and in all."""
        cost, durable = self._world.seal.cost_s, self._world.seal.durable_s
        started, safe, spent = begun, 0.0, 0.0
        while (started := max(started + self.choices[-1].seconds, started + durable)) <= end:
            trained = started - begun - spent
            spent += cost
            if started + durable <= end:
                safe = trained
                self._measure()
                if len(self._seals) == 1 or started - self._seen_until >= LOOK_S:
                    self._watch(started + durable)
                    self._choose()
        return safe, max(0.0, end - begun - spent)

    def _measure(self) -> None:
        true, by = self._world.seal, next(self._noise, 1.0)
        self._seals = (*self._seals[1 - MAX_SAMPLES :], SealCost(true.stall_s * by, true.durable_s * by, true.slowed))

    def _watch(self, now: float) -> None:
        self._failures = self._failures.watched(now - self._seen_until)
        self._seen_until = now

    def _choose(self) -> None:
        choice = self._choice(self._seals, self._failures.rate(), before=self.choices[-1])
        if choice is not self.choices[-1]:
            self.choices.append(choice)


def grid(world: World, *, step: float = 1.03) -> list[float]:
    """Return the intervals to try: from writes without a pause up to four hours."""
    most = 4 * 3600.0
    steps = math.ceil(math.log(most / world.seal.durable_s) / math.log(step))
    return [world.seal.durable_s * step**number for number in range(steps + 1)]

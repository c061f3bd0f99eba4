"""Which choice of the size is best: our policy, Kubernetes' autoscaler by CPU, and each fixed size, beside an oracle.

A simulation (``benchmarks/scaling_world.py``) with the launcher's own code. All get the same curves and traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Final

from benchmarks.model import Case, Figure, Timing, Trial, Values
from benchmarks.scaling_world import (
    CURVES,
    HELD_OUT,
    FixedSize,
    Hpa,
    Ours,
    Run,
    ScaleTrace,
    TrueCurve,
    oracle,
    play,
    trace,
)
from hvd_elastic_ext.launcher.scaling.decide import ScaleLimits
from hvd_elastic_ext.launcher.scaling.efficiency import Efficiency

TRACES, QUICK_TRACES = 20, 2
"""Traces for each of the ten curves."""
SHARE: Final = 0.5
MOST: Final = 32
FIXED: Final = (1, 2, 4, 8, 16, 32)
NEAR: Final = 1
"""A size this many hosts from the best one counts as the best."""

WORTH: Final = "less work beyond the price of hosts than the oracle, the worst curve"
ALL: Final = "the same, mean of all curves"
HPA: Final = "the same, HorizontalPodAutoscaler over CPU at 80 %"
AHEAD: Final = "curves on which HorizontalPodAutoscaler is ahead"
BEST_FIXED: Final = "the same, the fixed size that is best on average"
NEAREST_FIXED: Final = "by how much a fixed size is ahead on the curve that it suits best, the most"
TRIALS: Final = "resizes until within one host of the best size, the most"
LATER: Final = "resizes in an hour after the first one, on a steady job, the most"
AT_ONCE: Final = "the same, in any hour since it was there, so of a job that starts there and has to find that out, too"
HELD: Final = "less work than the oracle on curves that came after the policy, the worst"
HELD_TRIALS: Final = "resizes there until within one host of the best size, the most"


def measure(trial: Trial) -> Values:
    """Simulate all curves on all traces. No job and no other side is needed."""
    count = trial.pick(TRACES, QUICK_TRACES)
    ours: list[float] = []
    hpa: list[float] = []
    fixed: dict[int, list[float]] = {size: [] for size in FIXED}
    ahead, trials, later, at_once = 0, [0], [0], [0]
    nearest: list[float] = []
    for number, curve in enumerate(CURVES):
        mine, theirs = [], []
        for seed in range(count):
            cluster = trace(1000 * trial.number + 100 * number + seed, most=MOST)
            best = oracle(curve, cluster, SHARE, MOST).worth
            run = play(curve, cluster, our_policy(curve), SHARE)
            mine.append(run.worth / best)
            theirs.append(play(curve, cluster, Hpa(MOST), SHARE).worth / best)
            for size in FIXED:
                fixed[size].append(play(curve, cluster, FixedSize(size), SHARE).worth / best)
            if steady(cluster):
                made, since = convergence(run, cluster, curve.best(SHARE, MOST))
                trials.append(made)
                at_once.append(since)
                later.append(most_in_an_hour([at for at, _ in run.changes if at >= 3600]))
        ours.append(mean(mine))
        hpa.append(mean(theirs))
        ahead += mean(theirs) > mean(mine)
        nearest.append(max(mean(shares[-count:]) for shares in fixed.values()) - mean(mine))
    held, held_trials = held_out(count, trial.number)
    return {
        WORTH: [Timing(100 * (1 - min(ours)))],
        ALL: [Timing(100 * (1 - mean(ours)))],
        HPA: [Timing(100 * (1 - mean(hpa)))],
        AHEAD: [Timing(ahead)],
        BEST_FIXED: [Timing(100 * (1 - max(map(mean, fixed.values()))))],
        NEAREST_FIXED: [Timing(100 * max(nearest))],
        TRIALS: [Timing(max(trials))],
        LATER: [Timing(max(later))],
        AT_ONCE: [Timing(max(at_once))],
        HELD: [Timing(100 * (1 - min(held)))],
        HELD_TRIALS: [Timing(max(held_trials))],
    }


def held_out(count: int, number: int) -> tuple[list[float], list[int]]:
    """Return the mean for each curve that was made after the policy, and the numbers of changes on steady clusters."""
    means, trials = [], [0]
    for place, curve in enumerate(HELD_OUT):
        shares = []
        for seed in range(count):
            cluster = trace(1000 * number + 100 * (len(CURVES) + place) + seed, most=MOST)
            run = play(curve, cluster, our_policy(curve), SHARE)
            shares.append(run.worth / oracle(curve, cluster, SHARE, MOST).worth)
            if steady(cluster):
                trials.append(convergence(run, cluster, curve.best(SHARE, MOST))[0])
        means.append(mean(shares))
    return means, trials


def our_policy(curve: TrueCurve) -> Ours:
    """Return the policy of ``--autoscale efficiency:share=0.5,batch=...``."""
    return Ours(Efficiency(SHARE, curve.batch), ScaleLimits(1, MOST, down_s=0.0))


def steady(cluster: ScaleTrace) -> bool:
    """Whether the cluster always has all hosts."""
    return min(cluster.there) == MOST


def convergence(run: Run, cluster: ScaleTrace, best: int) -> tuple[int, int]:
    """Return the number of changes until the size stays within :data:`NEAR` of the best, and the most later ones in an
    hour."""
    sizes = [cluster.start, *(size for _, size in run.changes)]
    last_off = max((at for at, size in enumerate(sizes) if abs(size - best) > NEAR), default=-1)
    times = [at for at, _ in run.changes[last_off + 1 :]]
    return last_off + 1, most_in_an_hour(times)


def most_in_an_hour(times: Sequence[float]) -> int:
    """Return the largest number of these times within an hour."""
    return max((sum(at <= other < at + 3600 for other in times) for at in times), default=0)


CASE: Final = Case(
    name="autoscale",
    about=f"sizes that policies choose, on {len(CURVES)} scaling curves, {len(CURVES) * TRACES} simulated jobs of 8 h",
    figures=(
        Figure(WORTH, bar_s=5.0, unit="%"),
        Figure(ALL, unit="%"),
        Figure(HPA, unit="%"),
        Figure(AHEAD, bar_s=0, unit="attempts"),
        Figure(BEST_FIXED, unit="%"),
        Figure(NEAREST_FIXED, unit="%"),
        Figure(TRIALS, bar_s=5, unit="attempts"),
        Figure(LATER, bar_s=1, unit="attempts"),
        Figure(AT_ONCE, unit="attempts"),
        Figure(HELD, bar_s=5.0, unit="%"),
        Figure(HELD_TRIALS, bar_s=5, unit="attempts"),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)

"""The share of the best settings' goodput that a job has with the settings that ``simulate --recommend`` chooses.

They are chosen by some seeds of a fleet, and measured with other seeds: each trace beside the best settings of the same
grid for that trace. One line, for information, has settings that were chosen for another fleet.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.model import Case, Figure, Timing, Trial, Values
from hvd_elastic_ext.simulate import study
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.command import SEEDS
from hvd_elastic_ext.simulate.traces import synthetic

FLEETS: Final = {
    "told": "hosts=8,days=0.1,mtbf=1h,notice=2m,back=10m",
    "untold": "hosts=8,days=0.1,mtbf=1h,back=10m",
    "zones": "hosts=9,days=0.1,zones=3,zone_mtbf=1.5h,mtbf=5h,notice=2m,untold=0.3,back=20m",
    "by day": "hosts=8,days=0.1,mtbf=0.5h,diurnal=0.8,notice=2m,untold=0.5,back=15m",
    "crashes": "hosts=8,days=0.1,mtbf=12h,crash=1h,lost=6h,back=10m",
    "all at once": "hosts=8,days=0.1,zone_mtbf=0.7h,notice=30s,back=10m",
}
GRID: Final = "min_np=2,7; checkpoint_every=30s,auto"
GIVEN: Final = {"num_proc": 8, "max_num_proc": 16, "failure_budget": 100_000, "elastic_timeout_s": 86400.0}
TIMES: Final = Times(step_s=1.0, every=10, boot_s=40.0, spread=0.3, write_s=20.0, slowed=0.1, stall_s=0.5)
UNSEEN, QUICK_UNSEEN = 5, 1
FROM: Final = 1000
"""The first seed that was not used to choose."""
BAR: Final = 3.0
WORST, MEAN, MEDIAN = "less than the best, worst", "less than the best, mean", "less than the best, median"
ELSEWHERE: Final = "less, chosen for another fleet"


def measure(trial: Trial) -> Values:
    """Simulate all fleets. No job and no other side is needed."""
    grid = study.combinations(GRID)
    fleets = trial.pick(list(FLEETS), list(FLEETS)[:2])
    seeds = trial.pick(range(SEEDS), range(2))
    unseen = range(FROM * (1 + trial.number), FROM * (1 + trial.number) + trial.pick(UNSEEN, QUICK_UNSEEN))
    chosen = {fleet: study.compared(of(fleet, seeds), grid)[0].changed for fleet in fleets}
    kept = {fleet: judged(of(fleet, unseen), grid) for fleet in fleets}
    own = [less for fleet in fleets for less in shortfalls(kept[fleet], grid.index(dict(chosen[fleet])))]
    other = [
        less
        for fleet in fleets
        for choice in {str(each): each for name, each in chosen.items() if name != fleet}.values()
        for less in shortfalls(kept[fleet], grid.index(dict(choice)))
    ]
    return {
        WORST: [Timing(max(own))],
        MEAN: [Timing(statistics.fmean(own))],
        MEDIAN: [Timing(statistics.median(own))],
        ELSEWHERE: [Timing(statistics.median(other))],
    }


def of(fleet: str, seeds: Sequence[int]) -> study.Study:
    """Return the study of a fleet with these seeds."""
    return study.Study(synthetic.parsed(FLEETS[fleet]).trace, GIVEN, TIMES, seeds)


def judged(found: study.Study, grid: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return the goodput of each combination, by seed."""
    return [[result.goodput for result in found.results(changed)] for changed in grid]


def shortfalls(goodputs: Sequence[Sequence[float]], chosen: int) -> list[float]:
    """Return by seed how many percent less goodput a combination has than the best one."""
    best = [max(values) for values in zip(*goodputs, strict=True)]
    return [100.0 * (1.0 - value / most) for value, most in zip(goodputs[chosen], best, strict=True)]


CASE: Final = Case(
    name="simulate-recommend",
    about="goodput with what `simulate --recommend` chooses, beside the best of its grid on traces not seen before",
    figures=(
        Figure(WORST, bar_s=BAR, unit="%"),
        Figure(MEAN, bar_s=BAR, unit="%"),
        Figure(MEDIAN, unit="%"),
        Figure(ELSEWHERE, unit="%"),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)

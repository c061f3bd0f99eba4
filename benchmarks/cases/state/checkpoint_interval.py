"""The checkpoint interval that a job finds itself, beside the best fixed one.

A simulation (``benchmarks/goodput.py``) with the launcher's own code. All get the same traces of failures; the best
fixed interval is the best one for exactly these traces.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.goodput import Failing, Fixed, World, auto, grid
from benchmarks.model import Case, Figure, Timing, Trial, Values
from hvd_elastic_ext.launcher.checkpoints.interval import SealCost

TRACES, QUICK_TRACES = 200, 5
STEP, QUICK_STEP = 1.02, 1.3
"""The factor between two fixed intervals that follow one another."""
SEED: Final = 7
USUAL_S: Final = 600.0
"""The interval that users usually configure, in seconds."""
BAR: Final = 3.0
MINUTE, HOUR = 60.0, 3600.0


class Scenario(NamedTuple):
    """``barred``: the bar applies to it; other scenarios are for information."""

    name: str
    failing: Failing
    world: World = World()
    barred: bool = False

    @property
    def behind(self) -> str:
        return f"{self.name}: less goodput than the best fixed interval"

    @property
    def usual(self) -> str:
        return f"{self.name}: the same of {USUAL_S / MINUTE:g} min, fixed"

    @property
    def best(self) -> str:
        return f"{self.name}: the best fixed interval"


DEAR: Final = World(seal=SealCost(stall_s=5.0, durable_s=60.0, slowed=0.1))
SCENARIOS: Final = (
    Scenario("one failure in 10 min", Failing(10 * MINUTE), barred=True),
    Scenario("one failure in 1 h", Failing(HOUR), barred=True),
    Scenario("one failure in 8 h", Failing(8 * HOUR), barred=True),
    Scenario("one in 10 min, for 2 h only", Failing(10 * MINUTE), World(horizon_s=2 * HOUR)),
    Scenario("from one in 8 h to one in 10 min", Failing(8 * HOUR, 10 * MINUTE)),
    Scenario("from one in 10 min to one in 8 h", Failing(10 * MINUTE, 8 * HOUR)),
    Scenario("one in 1 h, in bunches", Failing(HOUR, shape=0.6)),
    Scenario("one in 1 h, at even distances", Failing(HOUR, shape=2.0)),
    Scenario("one in 1 h, checkpoints that cost 11 s", Failing(HOUR), DEAR),
    Scenario("one in 1 h, restarts of 10 min", Failing(HOUR), World(restart_s=10 * MINUTE)),
)


def measure(trial: Trial) -> Values:
    """Simulate all scenarios. No job and no other side is needed."""
    found: dict[str, list[Timing]] = {}
    count, step = trial.pick((TRACES, STEP), (QUICK_TRACES, QUICK_STEP))
    for scenario in SCENARIOS:
        world = scenario.world
        traces = scenario.failing.traces(world, count, seed=SEED + trial.number)
        fixed = Fixed(world, traces)
        best, interval = max((fixed.goodput(seconds), seconds) for seconds in grid(world, step=step))
        ours, usual = auto(world, traces, seed=SEED + trial.number), fixed.goodput(USUAL_S)
        found[scenario.behind] = [Timing(100.0 * (1.0 - ours / best))]
        found[scenario.usual] = [Timing(100.0 * (1.0 - usual / best))]
        found[scenario.best] = [Timing(interval)]
    return found


def figures() -> tuple[Figure, ...]:
    """Return three lines for each scenario."""
    return tuple(
        figure
        for scenario in SCENARIOS
        for figure in (
            Figure(scenario.behind, bar_s=BAR if scenario.barred else None, unit="%"),
            Figure(scenario.usual, unit="%"),
            Figure(scenario.best),
        )
    )


CASE: Final = Case(
    name="checkpoint-interval",
    about=f"--checkpoint-every auto against every fixed interval, {TRACES} simulated jobs of 48 h each",
    figures=figures(),
    measure=measure,
    repeats=1,
    sides=("ours",),
)

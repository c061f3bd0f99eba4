"""Simulates many jobs, over seeds and combinations of options, and compares them."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import Result, Watch, Work, simulate
from hvd_elastic_ext.simulate.traces.rows import Trace

T_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for 95 %, by degrees of freedom from 1; above it is near 2.0."""


class Spread(NamedTuple):
    """A mean and half of its 95 % confidence interval, which is None for one value."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.half is None else f"{self.mean:.4g} ± {self.half:.2g}"


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the interval of some values."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Spread(mean, None)
    t = T_95[count - 2] if count - 2 < len(T_95) else 2.0
    return Spread(mean, t * statistics.stdev(values) / math.sqrt(count))


@dataclass(frozen=True, slots=True)
class Study:
    """The common input of all jobs. ``trace``: by seed; ``given``: options of ``run`` by field name."""

    trace: Callable[[int], Trace]
    given: Mapping[str, Any]
    times: Times
    seeds: Sequence[int] = (0,)
    work: Work = field(default_factory=Work)
    watch: Watch | None = None
    """See :func:`~hvd_elastic_ext.simulate.job.simulate`."""

    @property
    def chance(self) -> bool:
        """Whether jobs of different seeds differ."""
        first = self.seeds[0]
        return self.times.spread > 0.0 or self.trace(first) != self.trace(first + 1)

    def results(self, changed: Mapping[str, Any] | None = None) -> list[Result]:
        """Simulate a job for each seed, with changed options. Raises :class:`UsageError` for invalid options."""
        given = {**self.given, **(changed or {})}
        return [self._result(given, seed) for seed in self.seeds]

    def _result(self, given: Mapping[str, Any], seed: int) -> Result:
        trace = self.trace(seed)
        return simulate(trace, options.settings(given, trace), self.times, work=self.work, seed=seed, watch=self.watch)


def combinations(text: str) -> list[dict[str, Any]]:
    """Read ``min_np=2,4,8; checkpoint_every=auto,60s``, and return all combinations. Raises :class:`UsageError`."""
    grid: dict[str, list[Any]] = {}
    known = {flag.lstrip("-").replace("-", "_"): name for name in options.RUN for flag in options.flags_of(name)}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        word, equals, values = part.partition("=")
        name = known.get(word.strip().lstrip("-").replace("-", "_"))
        found = [value.strip() for value in values.split(",") if value.strip()]
        if name is None:
            unknown = word.strip()
            raise UsageError(f"--compare: {unknown!r} is not an option of simulate; {nearest(unknown, known)}")
        if not equals or not found or name in grid:
            raise UsageError(f"--compare {part!r}: write an option once, with its values, such as min_np=2,4,8")
        grid[name] = [_value(name, value) for value in found]
    if not grid:
        raise UsageError("--compare names no option; write some with their values, such as 'min_np=2,4,8'")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _value(name: str, text: str) -> Any:
    if name in options.CHOICES:
        if text not in options.CHOICES[name]:
            raise UsageError(f"--compare {name}={text}: choose one of {', '.join(options.CHOICES[name])}")
        return text
    if name in options.NUMBERS and text.isdecimal():
        return int(text)
    if name in options.SECONDS and (number := durations.parse(text)) is not None:
        return number
    if name in options.OWN:
        return text.replace("+", ",") if name in ("allowed_sizes", "autoscale") else text
    raise UsageError(f"--compare {name}={text}: write a number")


@dataclass(frozen=True, slots=True)
class Choice:
    """One combination with its results, or why it is refused."""

    changed: Mapping[str, Any]
    results: Sequence[Result]
    refused: str = ""

    @property
    def name(self) -> str:
        """The combination as options of ``run``."""
        return " ".join(
            f"{options.flags_of(name)[0]} {value:g}"
            if isinstance(value, float)
            else f"{options.flags_of(name)[0]} {value}"
            for name, value in self.changed.items()
        )

    def worth(self, result: Result) -> float:
        """Return the worth of each result, comparable for the same seed: training that ends sooner, or more work."""
        return -result.took_s if result.took_s is not None and self.ends else float(result.kept)

    @property
    def ends(self) -> bool:
        """Whether training ends for all seeds."""
        return all(result.took_s is not None for result in self.results)

    def values(self, of: Callable[[Result], float]) -> list[float]:
        """Return one figure of each result."""
        return [of(result) for result in self.results]


def compared(study: Study, grid: Sequence[Mapping[str, Any]]) -> list[Choice]:
    """Return a choice for each combination, the best first. All have the same traces and seeds."""
    return sorted(_choices(study, grid), key=lambda each: -score(each, priced=bool(study.work.price)))


def _choices(study: Study, grid: Sequence[Mapping[str, Any]]) -> Iterator[Choice]:
    for changed in grid:
        try:
            yield Choice(changed, study.results(changed))
        except UsageError as error:
            yield Choice(changed, (), str(error))


def score(choice: Choice, *, priced: bool = False) -> float:
    """Return the score of a choice. First counts whether training ends; then its time, or else the kept work."""
    if not choice.results:
        return -math.inf
    if choice.ends:
        return 1e12 / statistics.fmean(result.took_s or 1.0 for result in choice.results)
    return statistics.fmean(choice.values(lambda result: float(result.kept)))


def percent_worse(best: Choice, other: Choice) -> Spread:
    """Return by how many percent a choice is worse than the best one, compared in pairs of equal seeds."""
    if best.ends and not other.ends:
        return Spread(100.0, 0.0)
    pairs = zip(best.results, other.results, strict=True)
    return spread([100.0 * (best.worth(a) - other.worth(b)) / max(1e-9, abs(best.worth(a))) for a, b in pairs])


def is_significant(best: Choice, other: Choice) -> bool:
    """Whether the difference of two choices is statistically significant."""
    mean, half = percent_worse(best, other)
    return half is not None and mean > half


def is_equal(best: Choice, other: Choice) -> bool:
    """Whether two choices have equal results with each seed."""
    mean, half = percent_worse(best, other)
    return mean == 0.0 and not half


def reason(choices: Sequence[Choice], *, chance: bool = True) -> str:
    """Return why the first (best) choice is recommended. ``chance``: whether jobs of different seeds differ."""
    best, *others = [each for each in choices if each.results]
    goodput = spread([100.0 * result.goodput for result in best.results])
    what = f"{best.name}: goodput {goodput} %"
    if not others:
        return f"{what}; nothing else was tried"
    tried, equal = len(others) + 1, [each.name for each in others if is_equal(best, each)]
    if len(equal) == len(others):
        return f"{what}; {'both' if tried == 2 else f'all {tried}'} results are equal"
    second = next(each for each in others if not is_equal(best, each))
    less = spread([100.0 * result.goodput for result in second.results])
    if not chance:
        sure = "without any chance in it"
    else:
        sure = "beyond chance" if is_significant(best, second) else "which may be chance: try more --seeds"
    same = f", as with {' and '.join(equal)}" if equal else ""
    return f"{what}, the most of {tried}{same}; next is {second.name} with {less} %, {sure}"


def config(given: Mapping[str, Any], choice: Choice, why: str) -> str:
    """Return a file for ``run --config`` with the chosen and the given options."""
    chosen = {**given, **choice.changed}
    lines = [f"{_long(name)}: {json.dumps(_whole(value), allow_nan=False)}" for name, value in chosen.items()]
    return "\n".join([f"# hvd-elastic simulate: {why}", *lines, ""])


def _whole(value: Any) -> Any:
    """Return whole seconds as a whole number, because some options of ``run`` take no other."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _long(name: str) -> str:
    return next(flag for flag in options.flags_of(name) if flag.startswith("--")).lstrip("-")

"""Formats results as tables and JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_elastic_ext.io.tables import plain
from hvd_elastic_ext.launcher.health.host_requests import duration
from hvd_elastic_ext.simulate.accounting import CATEGORIES
from hvd_elastic_ext.simulate.job import Result
from hvd_elastic_ext.simulate.measured import Measured
from hvd_elastic_ext.simulate.study import Choice, Spread, percent_worse, spread
from hvd_elastic_ext.simulate.versus import Restarted


def of_job(results: Sequence[Result], *, priced: bool = False) -> str:
    """Print the use of the hosts' time, with a line for each category, and the job's results."""
    rows = []
    for name, what in CATEGORIES.items():
        share = spread([100.0 * result.share(name) for result in results])
        if round(share.mean, 3) or name == "useful":
            label = "goodput" if name == "useful" else name.replace("_", " ")
            rows.append((label, *_cells(share), what))
    text = plain(("hosts' time", "%", "±", "what"), rows, right=("%", "±"))
    return _failure(results) + text + "\n" + "".join(f"{line}\n" for line in _facts(results, priced=priced))


def _cells(value: Spread) -> tuple[str, str]:
    return f"{value.mean:.3f}", "" if value.half is None else f"{value.half:.3f}"


def _facts(results: Sequence[Result], *, priced: bool) -> list[str]:
    first, many = results[0], len(results) > 1
    what = f"{len(results)} seeds, on average" if many else f"{duration(first.lasted_s)}"
    counts = ", ".join(
        f"{_counted([getattr(result, name) for result in results], noun)}{more}"
        for name, noun, more in (
            ("steps", "step", ""),
            ("kept", "", "of all ranks"),
            ("worlds", "world", ""),
            ("rollbacks", "roll-back", " behind a step"),
            ("checkpoints", "checkpoint", ""),
            ("sleeps", "sleep", ""),
        )
    )
    lines = [f"{what}: {counts}"]
    took = [result.took_s for result in results if result.took_s is not None]
    if took:
        some = "" if len(took) == len(results) else f", with {len(took)} of {len(results)} seeds"
        lines.append(f"training is done after {_lasts(took)}{some}")
    if many:
        lines.append(f"goodput by seed: {_range([100.0 * result.goodput for result in results])} %")
    if priced:
        lines.append(f"cost: {spread([result.cost for result in results])}")
    if first.sizes:
        of_first = " (first seed)" if many else ""
        lines.append(f"hosts asked for{of_first}: {' → '.join(map(str, first.sizes))}")
    return lines


def _failure(results: Sequence[Result]) -> str:
    """Say first that a job fails, and when."""
    failed = [result for result in results if result.failed is not None]
    if not failed:
        return ""
    first = failed[0]
    of_seeds = f" with {len(failed)} of {len(results)} seeds, first" if len(results) > 1 else ""
    when = "" if first.failed_s is None else f" after {duration(first.failed_s)} of {duration(first.lasted_s)}"
    return f"The job fails{of_seeds}{when}: {first.failed}\n\n"


def _lasts(values: Sequence[float]) -> str:
    """Format a duration with half of its confidence interval."""
    mean, half = spread(values)
    return duration(mean) if half is None else f"{duration(mean)} ± {duration(half)}"


def _range(values: Sequence[float]) -> str:
    return f"lowest {min(values):.1f}, median {statistics.median(values):.1f}, highest {max(values):.1f}"


def _mean(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:,.0f}" if mean >= 100 or mean == int(mean) else f"{mean:.1f}"


def _counted(values: Sequence[int], noun: str) -> str:
    """The mean with its noun, such as "1 world" and "1.5 worlds"; without a noun, with a space."""
    mean = _mean([float(value) for value in values])
    return f"{mean} {noun and (noun if mean == '1' else f'{noun}s')}"


def of_choices(choices: Sequence[Choice], *, priced: bool, timed: bool) -> str:
    """Print one line for each combination, the best first."""
    headings = [
        "options",
        "goodput %",
        "±",
        "less than the best by %",
        "± ",
        "kept steps",
        *(["time to finish"] if timed else []),
        *(["cost"] if priced else []),
        "fails",
    ]
    rows = []
    for choice in choices:
        if not choice.results:
            rows.append([choice.name, *[""] * (len(headings) - 2), choice.refused])
            continue
        goodput = spread([100.0 * each for each in choice.values(lambda result: result.goodput)])
        took = [result.took_s for result in choice.results if result.took_s is not None]
        times = [_lasts(took) if choice.ends else "not in the trace"]
        less = ("", "") if choice is choices[0] else _cells(percent_worse(choices[0], choice))
        cost = [f"{spread(choice.values(lambda result: result.cost))}"]
        failed = sum(result.failed is not None for result in choice.results)
        kept = _mean(choice.values(lambda result: float(result.kept)))
        fails = f"{failed} of {len(choice.results)}" if failed else ""
        rows.append(
            [choice.name, *_cells(goodput), *less, kept, *(times if timed else []), *(cost if priced else []), fails]
        )
    return plain(headings, rows, right=tuple(headings[1:-1]))


def versus(results: Sequence[Result], others: Sequence[Restarted], *, stock: bool = False) -> str:
    """Print the comparison with a job without elasticity."""
    rows = []
    other = "stock Horovod" if stock else "restarted from its last checkpoint"
    for name, goodputs, kept in (
        ("hvd-elastic run", [each.goodput for each in results], [each.kept for each in results]),
        (other, [each.goodput for each in others], [each.kept for each in others]),
    ):
        rows.append((name, *_cells(spread([100.0 * each for each in goodputs])), _mean([float(each) for each in kept])))
    text = plain(("job", "goodput %", "±", "kept steps"), rows, right=("goodput %", "±", "kept steps"))
    more = sum(each.kept for each in results) / max(1, sum(each.kept for each in others))
    interval = duration(statistics.fmean(each.interval_s for each in others))
    starts = _counted([each.starts for each in others], "time")
    starts = "once" if starts == "1 time" else starts
    return f"{text}\n{more:.2f} times the steps are kept; the other job starts {starts}, saves every {interval}\n"


def beside(results: Sequence[Result], measured: Measured) -> str:
    """Print the results of the journal's own job beside the prediction."""
    figures: list[tuple[str, float | None, list[float]]] = [
        (
            "goodput %",
            None if measured.goodput is None else 100.0 * measured.goodput,
            [100.0 * each.goodput for each in results],
        ),
        ("steps", measured.steps, [float(each.steps) for each in results]),
        ("of all ranks, kept", measured.kept, [float(each.kept) for each in results]),
        ("steps done again", measured.lost, [float(each.lost) for each in results]),
        ("seconds without a step", measured.downtime_s, [each.downtime_s for each in results]),
        ("worlds", measured.worlds, [float(each.worlds) for each in results]),
    ]
    rows = []
    for name, was, forecast in figures:
        off = f"{100.0 * (statistics.fmean(forecast) - was) / was:+.1f}" if was else ""
        rows.append((name, "not known" if was is None else _mean([float(was)]), _mean(forecast), off))
    return plain(("the journal's job", "was", "predicted", "off by %"), rows, right=("was", "predicted", "off by %"))


def as_json(
    results: Sequence[Result], others: Sequence[Restarted] = (), measured: Measured | None = None
) -> Mapping[str, Any]:
    """Return all figures of each job, and of the jobs compared with it."""
    found: dict[str, Any] = {"goodput": _spread([each.goodput for each in results]), "jobs": _jobs(results)}
    if others:
        found["restarted"] = [{"goodput": each.goodput, **dataclasses.asdict(each)} for each in others]
    if measured is not None:
        names = ("goodput", "steps", "kept", "lost", "downtime_s", "worlds")
        found["measured"] = {name: getattr(measured, name) for name in names}
    return found


def choice_as_json(choice: Choice, best: Choice) -> Mapping[str, Any]:
    """Return all figures of one combination."""
    if not choice.results:
        return {"options": dict(choice.changed), "refused": choice.refused, "jobs": []}
    less = percent_worse(best, choice)
    return {
        "options": dict(choice.changed),
        "refused": None,
        "goodput": _spread([each.goodput for each in choice.results]),
        "less_than_best_percent": {"mean": less.mean, "half": less.half},
        "jobs": _jobs(choice.results),
    }


def _spread(values: Sequence[float]) -> Mapping[str, float | None]:
    found = spread(values)
    return {"mean": found.mean, "half": found.half, "lowest": min(values), "highest": max(values)}


def _jobs(results: Sequence[Result]) -> list[Mapping[str, Any]]:
    return [{"goodput": each.goodput, **dataclasses.asdict(each)} for each in results]

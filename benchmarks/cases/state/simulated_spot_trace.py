"""The predictions of ``hvd-elastic simulate`` for ``spot-trace``, beside the measurements.

The model is made from the same runs. For ours it is the model of ``--from-journal``. Stock Horovod and torchrun have no
journal: their times come from their steps, and the model is that of ``--versus restart``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import kept_work, replay, steps
from benchmarks.cases.state import spot_trace
from benchmarks.jobs import ELASTIC_TIMEOUT_S
from benchmarks.model import Case, Figure, Timing, Trial, Values
from benchmarks.steps import Stamp
from hvd_elastic_ext.simulate import measured, options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import simulate
from hvd_elastic_ext.simulate.traces.rows import Row, Trace, checked
from hvd_elastic_ext.simulate.versus import in_place as in_place_of
from hvd_elastic_ext.simulate.versus import restarted

SEEDS: Final = range(10)
PEER_SEEDS: Final = range(200)
BARS: Final = {"ours": 5.0, "stock": 10.0, "torchrun": 10.0}
WHO: Final = {"ours": "ours", "stock": "stock Horovod", "torchrun": "torchrun"}
WHAT: Final = ("steps kept, of all ranks", "time without a step", "steps done again")
SAVE_EVERY: Final = 40
"""Steps from one save to the next, as in ``benchmarks/scripts/spot.py``."""
COMMIT_EVERY: Final = 5
"""Steps from one commit to the next, as there."""
NOTICED_S: Final = 1.0
"""Seconds between two runs of stock's discovery script."""
FIELDS: Final = ("kept", "downtime_s", "lost")
PAUSE_S: Final = 1.0
"""If rank 0 does no step for this many seconds, the job does not train."""


class Found(NamedTuple):
    """Measured or predicted values. ``done``: the number of steps, with each repetition."""

    kept: float
    downtime_s: float
    lost: float
    done: float


def measure(trial: Trial) -> Values:
    """Run all three contenders, one after the other."""
    values: dict[str, Sequence[Timing]] = {}
    for contender in ("ours", "stock", "torchrun"):
        folder = trial.folder / contender
        folder.mkdir()
        side = dataclasses.replace(trial, side="ours" if contender == "ours" else "stock")
        run = spot_trace.play_through(side, contender, folder)
        was, said = of_ours(run, folder) if contender == "ours" else of_peer(run, in_place=contender == "stock")
        for name, value in zip(quantities(contender), off(was, said), strict=True):
            values[name] = [Timing(value)]
        for name, one, other in zip(WHAT, was, said, strict=False):
            values[f"{WHO[contender]}: {name}, measured"] = [Timing(one)]
            values[f"{WHO[contender]}: {name}, predicted"] = [Timing(other)]
    return values


def quantities(contender: str) -> list[str]:
    """Return the names of the figures that have a bar."""
    return [f"{WHO[contender]}: {name}, off by" for name in WHAT]


def off(was: Found, said: Found) -> list[float]:
    """Return the errors of a prediction in percent. Repeated steps are few, so their error is in percent of all
    steps."""
    return [
        100.0 * abs(said.kept - was.kept) / max(1.0, was.kept),
        100.0 * abs(said.downtime_s - was.downtime_s) / max(1.0, was.downtime_s),
        100.0 * abs(said.lost - was.lost) / max(1.0, was.done),
    ]


def of_ours(run: spot_trace.Played, folder: Path) -> tuple[Found, Found]:
    """Return the measurements of our job, and the mean prediction from its journal over all seeds."""
    told = measured.read(folder / "journal.jsonl")
    given: dict[str, Any] = {
        "num_proc": run.hosts,
        "min_num_proc": 1,
        "max_num_proc": run.hosts,
        "checkpoint_every": spot_trace.CHECKPOINT,
        "elastic_timeout_s": float(ELASTIC_TIMEOUT_S),
    }
    settings = options.settings(given, told.trace)
    results = [simulate(told.trace, settings, told.times, seed=seed) for seed in SEEDS]
    kept, downtime_s, lost = (statistics.fmean(getattr(each, name) for each in results) for name in FIELDS)
    work = kept_work.work(stamps_of(folder), since=0.0, until=math.inf)
    return Found(work.kept, told.downtime_s, told.lost, told.steps + told.lost), Found(kept, downtime_s, lost, 0.0)


def stamps_of(folder: Path) -> list[Stamp]:
    """Return all steps of a job that has ended."""
    lines = (folder / "stamps").read_text().splitlines(keepends=True)
    return [stamp for line in lines if (stamp := steps.parse(line)) is not None]


# --- stock


def of_peer(run: spot_trace.Played, *, in_place: bool) -> tuple[Found, Found]:
    """Return the measurements of a peer from the moment when all its hosts train, and the prediction by its own
    times."""
    within = [each for each in run.stamps if each.rank == 0 and run.since < each.mono <= run.until]
    pauses = list(gaps(within))
    done = kept_work.work(run.stamps, since=run.since, until=run.until)
    again = sum(max(0, one.step + 1 - other.step) for one, other in itertools.pairwise(within))
    last = max(0.0, run.until - within[-1].mono - PAUSE_S)
    was = Found(done.kept, sum(pauses) + last, again, len(within))
    trace = trace_of(run.events, hosts=run.hosts, ends=run.until - run.since)
    settings = options.settings({"min_num_proc": 1, "checkpoint_every": str(SAVE_EVERY)}, trace)
    if in_place:
        results = [in_place_of(trace, settings, times_in_place(within, trace, run.since))]
    else:
        times, starts = times_of(within, trace, run.since)
        results = [restarted(trace, settings, times, grows=True, starts=drawn(starts, seed)) for seed in PEER_SEEDS]
    kept, downtime_s, lost = (statistics.fmean(getattr(each, name) for each in results) for name in FIELDS)
    return was, Found(kept, downtime_s, lost, 0.0)


def drawn(starts: Sequence[Length], seed: int) -> Callable[[], float]:
    """Return a function that gives a random duration of a start at each call."""
    chance = random.Random(seed)
    seconds, weights = zip(*starts, strict=True) if starts else ((0.0,), (1.0,))
    return lambda: chance.choices(seconds, weights)[0]


def gaps(firsts: Sequence[Stamp]) -> Iterator[float]:
    """Yield the seconds without a step of rank 0 at each change of the world."""
    for one, other in itertools.pairwise(firsts):
        if changed(one, other):
            yield other.mono - one.mono


def changed(one: Stamp, other: Stamp) -> bool:
    """Whether the world has changed between two steps."""
    return (one.pid, one.size) != (other.pid, other.size) or other.mono - one.mono > PAUSE_S


class Length(NamedTuple):
    """A duration, and its probability."""

    seconds: float
    probability: float


def lengths(ended: Sequence[float], cut_short: Sequence[float]) -> list[Length]:
    """Return the distribution of a duration, of which some samples are complete and others were cut short.

    This is the estimate of Kaplan and Meier (Journal of the American Statistical Association 53, 1958). If the longest
    sample was cut short, it counts as complete.
    """
    seen = sorted([*((each, True) for each in ended), *((each, False) for each in cut_short)])
    found, left = list[Length](), 1.0
    for at, (seconds, ends) in enumerate(seen):
        if ends or at == len(seen) - 1:
            share = left / (len(seen) - at)
            found.append(Length(seconds, share))
            left -= share
    return found


def times_of(firsts: Sequence[Stamp], trace: Trace, since: float) -> tuple[Times, list[Length]]:
    """Return the times of a job that trains at the beginning, and those of its starts.

    A start begins again when another host leaves (at its notice, if it has one), and when a new host has started its
    own processes: the earlier start was cut short.
    """
    left = [since + row.at - row.notice for row in trace.rows if row.event == "down"]
    came = [since + row.at for row in trace.rows if row.event == "up" and row.at > 0.0]
    joins, ended, cut_short = list[float](), list[float](), list[float]()
    pauses = [(one, other) for one, other in itertools.pairwise(firsts) if changed(one, other)]
    for one, other in pauses:
        before = [at for at in came if at < one.mono]
        joins += [one.mono - max(before)] if other.size > one.size and before else []
    agent_s = statistics.fmean(joins) if joins else 0.0
    anew = sorted([*left, *(at + agent_s for at in came)])
    for one, other in pauses:
        begun = [one.mono, *(at for at in anew if one.mono < at < other.mono)]
        ended.append(other.mono - begun[-1])
        cut_short += [later - at for at, later in itertools.pairwise(begun)]
    step_s, sizes = paces_of(firsts)
    none = Times(step_s=step_s, sizes=sizes, join_s=0.0, sync_s=0.0, load_s=0.0, write_s=0.0, boot_s=0.0)
    return dataclasses.replace(none, agent_s=agent_s, cold_s=-agent_s), lengths(ended, cut_short)


def times_in_place(firsts: Sequence[Stamp], trace: Trace, since: float) -> Times:
    """Return the times of stock Horovod: of changes without the hosts that left, and of changes that wait for new
    hosts."""
    left = [since + row.at - row.notice for row in trace.rows if row.event == "down"]
    came = [since + row.at for row in trace.rows if row.event == "up" and row.at > 0.0]
    changes, boots = list[float](), list[float]()
    for one, other in itertools.pairwise(firsts):
        if not changed(one, other):
            continue
        newest = max((at for at in came if at < other.mono), default=-math.inf)
        waits = newest > one.mono - 2 * NOTICED_S or other.step <= one.step - COMMIT_EVERY
        begun = max([one.mono, *(at for at in left if one.mono < at < (newest if waits else other.mono))])
        if waits:
            boots.append(other.mono - max(one.mono, newest))
        if newest > begun or not waits:  # the world had stopped before they came
            changes.append((newest if waits else other.mono) - begun)
    step_s, sizes = paces_of(firsts)
    change_s = statistics.fmean(changes) if changes else 0.0
    boot_s = statistics.fmean(boots) if boots else change_s
    none = Times(step_s=step_s, sizes=sizes, every=COMMIT_EVERY, sync_s=0.0, load_s=0.0, write_s=0.0, gloo_s=0.0)
    return dataclasses.replace(
        none, join_s=change_s, boot_s=boot_s, agent_s=NOTICED_S, cold_s=-boot_s - change_s - NOTICED_S
    )


def paces_of(firsts: Sequence[Stamp]) -> tuple[float, dict[int, float]]:
    """Return the seconds of a step: over all sizes, and for each size of the world."""
    paces = defaultdict[int, list[float]](list)
    for one, other in itertools.pairwise(firsts):
        if not changed(one, other):
            paces[one.size].append(other.mono - one.mono)
    sizes = {size: statistics.fmean(values) for size, values in paces.items()}
    return statistics.fmean(itertools.chain.from_iterable(paces.values())), sizes


def trace_of(events: Sequence[replay.Event], *, hosts: int, ends: float) -> Trace:
    """Return the replayed trace in the form of the simulation."""
    told: dict[int, float] = {}
    rows = [Row(0.0, f"h{number}", "up") for number in range(hosts)]
    for event in events:
        if event.at_s > ends:
            break
        if event.what == "told":
            told[event.host] = event.at_s
        elif event.what == "comes":
            rows.append(Row(event.at_s, f"h{event.host}", "up"))
        else:
            notice_s = event.at_s - told.get(event.host, event.at_s)
            rows.append(Row(event.at_s, f"h{event.host}", "down", notice_s))
    return checked(rows, where="spot-trace", ends=ends)


CASE: Final = Case(
    name="simulate-spot-trace",
    about="what `simulate` predicts for spot-trace, with the times of the very run, beside what happens",
    figures=(
        *(Figure(name, bar_s=BARS[each], unit="%") for each in WHO for name in quantities(each)),
        *(
            Figure(f"{WHO[each]}: {name}, {which}", unit="s" if name == WHAT[1] else "steps")
            for each in WHO
            for name in WHAT
            for which in ("measured", "predicted")
        ),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)

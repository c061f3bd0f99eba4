"""The cost of a durable checkpoint for a job of two ranks: the stall, and slower steps during the write."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks import jobs
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

STALL: Final = "commit that is made durable, of any other"
COMMIT: Final = "any other commit"
SAVE: Final = "stall of torch.save and fsync (stock), of a commit that is made durable (ours)"
ASYNC: Final = "stall of dcp.async_save"
SLOWER: Final = "step while it is written, of any other"
WRITTEN: Final = "from the commit to durable"
PARAMETERS, QUICK_PARAMETERS = 50_300_000, 1_000_000
STEPS, QUICK_STEPS = 600, 140
EVERY: Final = 10
SEAL_EVERY: Final = 60
TIMEOUT_S: Final = 400.0

Span = tuple[float, float]


def measure(trial: Trial) -> Values:
    size = trial.pick((PARAMETERS, STEPS), (QUICK_PARAMETERS, QUICK_STEPS))
    result, place = trial.folder / "figures.json", trial.folder / "checkpoints"
    place.mkdir()
    command = [sys.executable, "-m", "benchmarks.scripts.checkpoint_stall", str(result), trial.side, *map(str, size)]
    command += [str(EVERY), str(place)]
    options = ("--checkpoint-dir", str(place), "--checkpoint-every", str(SEAL_EVERY), "--checkpoint-keep", "1")
    shape = jobs.Shape((f"{jobs.HOSTS[0]}:2",), 2, ours=options)
    try:
        with jobs.running(trial, shape, command=command) as job:
            job.wait_for("figures", result.exists, timeout=TIMEOUT_S)
            if trial.side == "ours":  # on a slow machine, the write may take longer than the training
                job.wait_for("a checkpoint", lambda: bool(job.records("sealed")), timeout=TIMEOUT_S)
            sealed = [(record.mono - record.get("seconds"), record.mono) for record in job.records("sealed")]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    measured: dict[str, list[float]] = json.loads(result.read_text())
    return _ours(measured, sealed) if trial.side == "ours" else _stock(measured)


def _ours(measured: dict[str, list[float]], sealed: Sequence[Span]) -> Values:
    commits, steps = spans(measured["commits"]), spans(measured["steps"])
    kept = [nearest(commits, at) for at, _ in sealed]
    if not kept:
        raise BenchmarkError("no checkpoint was made")
    others = [length(each) for each in commits[2:] if each not in kept]  # the first commits allocate memory
    usual = statistics.median(others)
    return {
        STALL: [Timing(100 * statistics.median(map(length, kept)) / usual)],
        COMMIT: [Timing(usual)],
        SAVE: [Timing(statistics.median(map(length, kept)))],
        SLOWER: [Timing(slower(steps, sealed))],
        WRITTEN: [Timing(length(each)) for each in sealed],
    }


def _stock(measured: dict[str, list[float]]) -> Values:
    steps, written = spans(measured["steps"]), spans(measured["written"])
    return {
        COMMIT: [Timing(statistics.median(map(length, spans(measured["commits"]))))],
        SAVE: [Timing(length(each)) for each in spans(measured["saves"])],
        ASYNC: [Timing(length(each)) for each in spans(measured["async"])],
        SLOWER: [Timing(slower(steps, written))],
        WRITTEN: [Timing(length(each)) for each in written],
    }


def spans(flat: Sequence[float]) -> list[Span]:
    """Return pairs of a start and an end."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def length(span: Span) -> float:
    return span[1] - span[0]


def nearest(commits: Sequence[Span], at: float) -> Span:
    """Return the commit that ended last before ``at``. (It is reported a moment later.)"""
    return max((each for each in commits if each[1] <= at + 0.05), default=commits[0])


def slower(steps: Sequence[Span], writing: Sequence[Span]) -> float:
    """Return the mean step during a write, in percent of the mean of the other steps."""
    within = [length(step) for step in steps if any(begun <= step[0] and step[1] <= end for begun, end in writing)]
    without = [length(step) for step in steps if all(step[1] < begun or end < step[0] for begun, end in writing)]
    if not within or not without:
        raise BenchmarkError("no step fell into the writing of a checkpoint")
    return 100 * statistics.fmean(within) / statistics.fmean(without)


CASE: Final = Case(
    name="checkpoint-stall",
    about="a State of 604 MB on each of 2 ranks is made durable while they train",
    figures=(
        Figure(STALL, unit="%", bar_s=110, sides=("ours",)),
        Figure(COMMIT),
        Figure(SAVE),
        Figure(ASYNC, sides=("stock",)),
        Figure(SLOWER, unit="%", bar_s=115),
        Figure(WRITTEN, bar_ratio=1.2),
    ),
    measure=measure,
    repeats=2,
)

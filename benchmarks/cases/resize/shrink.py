"""A world loses a host or a worker: the time until the others train on."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import jobs, netns, steps
from benchmarks.model import SIDES, BenchmarkError, Case, Figure, Side, Timing, Trial, Values

REMOVAL: Final = "hosts file to first step at size {}"
BARE: Final = "bare hvd.shutdown() and hvd.init() of {} ranks"
KILL: Final = "kill to next step, {} to {} workers"
CUT: Final = "link cut to first step at size 1"
STEPS: Final = (40, 8)
QUICK_RANKS: Final = 3
"""Ranks in a quick run of ``removal-16`` and ``removal-32``."""
LINK_TIMEOUT_S: Final = 3
MANY_START_S: Final = 180.0
"""Limit in seconds for the start of many interpreters that import torch, and for stock's start over ssh, step by
step."""


def measure(
    trial: Trial,
    quantity: str,
    shape: jobs.Shape,
    lose: Callable[[jobs.Job], float],
    *,
    size: int,
    steps_each: int = 0,
    start_s: float = jobs.START_TIMEOUT_S,
    deadline_s: float = 60.0,
) -> Values:
    """Return the time from the return of ``lose`` to the first step of a world of ``size`` - 1."""
    with jobs.training(trial, shape) as job:
        job.settle(size, steps_each=steps_each or trial.pick(*STEPS), timeout=start_s)
        lost = lose(job)

        def step() -> float | None:
            first = steps.first_at(job.stamps(), size=size - 1, after=lost)
            return None if first is None else first.mono

        found: Timing = job.time_until(f"step of a world of {size - 1}", step, since=lost, deadline=deadline_s)
        return {quantity: [found]}


def unlist(job: jobs.Job, trial: Trial, staying: str) -> float:
    """Leave only the host ``staying`` in the hosts file."""
    jobs.between_polls(job, random.Random(trial.number))
    return job.set_hosts(jobs.lines([staying])).mono


def removal(trial: Trial) -> Values:
    """Remove the host of rank 1, one of two hosts."""
    shape = jobs.Shape(hosts=jobs.HOSTS[:2], max_np=2)
    lose = lambda job: unlist(job, trial, steps.members(job.stamps())[0].host)  # noqa: E731
    return measure(trial, REMOVAL.format(1), shape, lose, size=2)


def removal_of_many(trial: Trial, most: int) -> Values:
    """Remove a host with one rank; all other ranks are on another host.

    The time depends on how processes find one another: each asks for the addresses of all others. The same without a
    launcher is measured beside it (``benchmarks/scripts/bare_ranks.py``).
    """
    ranks = trial.pick(most, QUICK_RANKS)
    staying = f"{jobs.HOSTS[0]}:{ranks - 1}"
    shape = jobs.Shape(hosts=(staying, jobs.HOSTS[1]), max_np=ranks)
    found = measure(
        trial,
        REMOVAL.format(most - 1),
        shape,
        lambda job: unlist(job, trial, staying),
        size=ranks,
        steps_each=8,
        start_s=MANY_START_S,
        deadline_s=90.0,
    )
    return found if trial.side == "stock" else {**found, BARE.format(most - 1): [bare(trial, ranks - 1)]}


def bare(trial: Trial, ranks: int) -> Timing:
    """Return the time from the first ``hvd.shutdown()`` to the first reduction of the next world. All ranks know their
    places."""
    folder = trial.folder / "bare"
    folder.mkdir()
    job, result = jobs.Job(trial.side, folder), folder / "result"
    try:
        job.launch([sys.executable, "-m", "benchmarks.scripts.bare_ranks", str(ranks), str(result)])
        return Timing(job.wait_for("bare world", lambda: number(result), timeout=MANY_START_S))
    finally:
        job.end()


def number(path: Path) -> float | None:
    """Return the number that a program has written to a file; None before."""
    text = path.read_text() if path.exists() else ""
    return float(text) if text else None


def removal_case(ranks: int, *, bar_ratio: float | None = None, sides: tuple[Side, ...] = SIDES) -> Case:
    """Return the case in which one of ``ranks`` ranks leaves."""
    floor = BARE.format(ranks - 1)
    return Case(
        name=f"removal-{ranks}",
        about=f"one of {ranks} ranks on one machine leaves; the others train on",
        figures=(
            Figure(REMOVAL.format(ranks - 1), bar_ratio=bar_ratio, floor=floor),
            Figure(floor, sides=("ours",)),
        ),
        measure=lambda trial: removal_of_many(trial, ranks),
        repeats=2,
        sides=sides,
    )


def kill(trial: Trial, size: int) -> Values:
    """Kill one rank, another one in each repetition: the loss of rank 0, which coordinates, may cost more."""

    def lose(job: jobs.Job) -> float:
        return job.kill(steps.members(job.stamps())[trial.number % size].pid).mono

    shape = jobs.Shape(hosts=jobs.HOSTS[:size], max_np=size)
    return measure(trial, KILL.format(size, size - 1), shape, lose, size=size)


def link_cut(trial: Trial) -> Values:
    """Cut off the host of rank 1, which stays listed. No connection breaks; only silence shows that the host is
    gone."""
    names = ("h1", "h2")
    with netns.made(trial, names) as hosts:

        def lose(job: jobs.Job) -> float:
            lost = steps.members(job.stamps())[1].host
            if lost not in names:
                raise BenchmarkError(f"rank 1 says that it is on {lost!r}")
            return hosts.cut(lost).mono

        shape = jobs.Shape(
            hosts=names,
            max_np=2,
            ours=("--heartbeat-timeout", str(LINK_TIMEOUT_S)),
            within=hosts.within(trial.folder),
            interface=netns.INTERFACE,
        )
        return measure(trial, CUT, shape, lose, size=2, start_s=MANY_START_S, deadline_s=40.0)


def kill_case(size: int, repeats: int) -> Case:
    """Return the case. ``repeats`` is odd: stock's times with three workers form two groups, and a median must be one
    of them."""
    quantity = KILL.format(size, size - 1)
    return Case(
        name=f"kill-recovery-{size}",
        about=f"kill -9 of one of {size} workers; the others train on",
        figures=(Figure(quantity, "median", bar_ratio=1.2, slack_s=0.05), Figure(quantity, "maximum")),
        measure=lambda trial: kill(trial, size),
        repeats=repeats,
    )


CASES: Final = (
    kill_case(2, repeats=15),
    kill_case(3, repeats=5),
    Case(
        name="link-cut",
        about=f"one of 2 hosts is cut off; the other trains on (--heartbeat-timeout {LINK_TIMEOUT_S})",
        figures=(Figure(CUT, bar_s=4.5),),
        measure=link_cut,
        repeats=2,
        missing=netns.missing,
    ),
    Case(
        name="graceful-removal",
        about="one of 2 hosts is taken out of the hosts file; the other trains on",
        figures=(Figure(REMOVAL.format(1), bar_s=0.25, bar_ratio=1 / 3),),
        measure=removal,
    ),
    removal_case(16, bar_ratio=1 / 5),
    removal_case(32, sides=("ours",)),  # stock's run takes minutes
)

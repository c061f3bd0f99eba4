"""Commits, roll-backs, checks and syncs, each by a script of ``benchmarks/scripts`` in a world that never changes.

A bare copy or broadcast of the same bytes is measured beside them on both sides. It is the floor for ours. As it is the
same work on both sides, it also shows the noise of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks import jobs
from benchmarks.model import Case, Figure, Timing, Trial, Values

COMMIT: Final = "save()"
RESTORE: Final = "restore()"
COPY: Final = "the same bytes, copied in place"
PINNED: Final = "the same bytes, copied into pinned memory"
PINNED_BACK: Final = "the same bytes, copied back from pinned memory"
GROWTH: Final = "memory after 200 commits more than after two"
ADDED: Final = "added to a step"
STEP: Final = "the step without it"
SYNC: Final = "sync() and commit"
AGAIN: Final = "sync() when all agree"
FLAT: Final = "the same bytes, one flat broadcast"
COMMITS: Final = {COMMIT: "commit", RESTORE: "restore", COPY: "copy", GROWTH: "growth_mb"}
PARAMETERS: Final = 50_300_000
"""Parameters of a State of 604 MB with Adam."""
TIMEOUT_S: Final = 300.0


def by_script(
    script: str,
    quantities: Mapping[str, str],
    *,
    full: tuple[int | str, ...],
    quick: tuple[int | str, ...],
    ranks: int = 1,
) -> Callable[[Trial], Values]:
    """Run ``script`` with the arguments ``full`` or ``quick``. ``quantities``: names of its figures in the table."""

    def measure(trial: Trial) -> Values:
        found = jobs.figures(trial, script, ranks=ranks, arguments=trial.pick(full, quick), timeout=TIMEOUT_S)
        return {quantity: [Timing(value) for value in found[name]] for quantity, name in quantities.items()}

    return measure


def check(ranks: int, *, bar: float) -> Case:
    """Measure ``check_host_updates()`` after each step of about 6 ms: two blocks of 100 steps."""
    return Case(
        name=f"check-{ranks}",
        about=f"a look for host updates after each step, {ranks} ranks",
        figures=(Figure(ADDED, bar_ratio=bar), Figure(STEP)),
        measure=by_script("check", {ADDED: "added", STEP: "step"}, full=(2, 100), quick=(1, 10), ranks=ranks),
    )


def no_gpu() -> str | None:
    """Return the reason if this machine has no GPU; None if it has one."""
    import torch

    return None if torch.cuda.is_available() else "needs a GPU: torch sees no CUDA device"


def on_a_gpu(name: str, about: str, *, full: tuple[int | str, ...], quick: tuple[int | str, ...]) -> Case:
    """Measure commits and roll-backs of a state on a GPU, beside copies into pinned memory and back.

    The ratio has no bar: stock's copy stays on the GPU, takes its memory, and is lost with the process.
    """
    return Case(
        name=name,
        about=about,
        figures=(
            Figure(COMMIT, floor=PINNED, bar_floor=1.1),
            Figure(RESTORE, floor=PINNED_BACK, bar_floor=1.1),
            Figure(PINNED),
            Figure(PINNED_BACK),
        ),
        measure=by_script(
            "commit",
            {COMMIT: "commit", RESTORE: "restore", PINNED: "copy", PINNED_BACK: "copy_back"},
            full=(*full, "cuda"),
            quick=(*quick, "cuda"),
        ),
        repeats=3,
        missing=no_gpu,
    )


CASES: Final = (
    Case(
        name="commit-large",
        about="commits and roll-backs of 50 million weights with Adam (604 MB), in one process",
        figures=(
            Figure(COMMIT, bar_ratio=0.75, floor=COPY, bar_floor=1.15),
            Figure(RESTORE, floor=COPY, bar_floor=1.2),
            Figure(COPY),
            Figure(GROWTH, bar_s=5.0, unit="MB"),
        ),
        measure=by_script("commit", COMMITS, full=(PARAMETERS, 1, 20), quick=(PARAMETERS // 50, 1, 1)),
        repeats=3,
    ),
    Case(
        name="commit-small",
        about="commits of 2,000 small tensors with Adam (8,000 tensors in all), in one process",
        figures=(
            Figure(COMMIT, bar_ratio=0.6, floor=COPY, bar_floor=2.0),
            Figure(RESTORE),
            Figure(COPY),
            Figure(GROWTH, bar_s=5.0, unit="MB"),
        ),
        measure=by_script("commit", COMMITS, full=(512_000, 2000, 20), quick=(25_600, 100, 1)),
        repeats=3,
    ),
    on_a_gpu(
        "commit-gpu",
        "the same 604 MB on a GPU",
        full=(PARAMETERS, 1, 20),
        quick=(PARAMETERS // 50, 1, 1),
    ),
    on_a_gpu(
        "commit-gpu-small",
        "the same 8,000 small tensors on a GPU",
        full=(512_000, 2000, 20),
        quick=(25_600, 100, 1),
    ),
    check(2, bar=1 / 8),
    check(4, bar=1 / 5),
)
SYNC_CASE: Final = Case(
    name="sync-newcomer",
    about="50 million weights with Adam (604 MB) from rank 0 to a newcomer on rank 1",
    figures=(Figure(SYNC, bar_ratio=0.65, floor=FLAT, bar_floor=1.6), Figure(AGAIN, bar_s=0.005), Figure(FLAT)),
    measure=by_script(
        "sync", {SYNC: "sync", AGAIN: "again", FLAT: "flat"}, full=(PARAMETERS, 7), quick=(1_000_000, 1), ranks=2
    ),
    repeats=1,
)

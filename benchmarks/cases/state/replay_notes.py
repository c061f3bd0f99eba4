"""What ``run --replay`` costs while nothing is lost: time of each step, and memory for its notes.

The bars are 1 % of a step of 10 ms, and 1 MB.
"""

from __future__ import annotations

from typing import Final

from benchmarks.cases.state.in_process import by_script
from benchmarks.model import Case, Figure

ADDED: Final = "added to a step"
STEP: Final = "the step without it"
NOTES: Final = "notes of 1,000 steps, each with another learning rate"

CASE: Final = Case(
    name="replay-notes",
    about="what --replay notes of each step, so that it can be executed again",
    figures=(Figure(ADDED, bar_s=0.0001), Figure(STEP), Figure(NOTES, bar_s=1.0, unit="MB")),
    measure=by_script(
        "replay_notes",
        {ADDED: "added", STEP: "step", NOTES: "notes_mb"},
        full=(10, 200),
        quick=(2, 20),
    ),
    repeats=3,
    sides=("ours",),
)

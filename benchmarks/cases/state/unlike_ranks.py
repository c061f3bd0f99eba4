"""Shares by measured speed: two ranks, of which one takes twice as long for a sample. The limit is 1.5 times the
throughput of equal shares.

Stock has equal shares only. A bare loop that has the right shares from the start, and commits nothing, is beside it.
"""

from __future__ import annotations

from typing import Final

from benchmarks.cases.state.in_process import by_script
from benchmarks.model import Case, Figure

STEP: Final = "a step, once the shares have followed the speed"
EQUAL: Final = "a step with equal shares"
BEST: Final = "a bare step with the right shares"
BAR: Final = round(1 / 1.4, 3)

CASE: Final = Case(
    name="unlike-ranks",
    about="two ranks share global batches of 96 samples; one sleeps for 3 ms a sample, the other for 6 ms",
    figures=(
        Figure(STEP, bar_ratio=BAR, floor=EQUAL, bar_floor=BAR),
        Figure(EQUAL),
        Figure(BEST),
    ),
    measure=by_script(
        "unlike_ranks",
        {STEP: "measured", EQUAL: "equal", BEST: "best"},
        full=(96, 30, 3000),
        quick=(24, 5, 200),
        ranks=2,
    ),
    repeats=3,
)

"""The seeds of a soak."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.faults.chaos.plan import plan
from tests.faults.chaos.run import run

_FIRST: Final = int(os.environ.get("HVD_TEST_SEED", "1"))
SEEDS: Final = tuple(range(_FIRST, _FIRST + int(os.environ.get("HVD_TEST_SEEDS", "4"))))
"""Four, or ``HVD_TEST_SEEDS``, from ``HVD_TEST_SEED`` on."""
TIMEOUT_S: Final = 600.0
"""For one seed: more than all of its waits take together."""


def check(seed: int, folder: Path, *, checkpoints: bool) -> None:
    """Run a seed; its plan is printed before, and told again with what happened if anything is wrong."""
    drawn = plan(seed, checkpoints=checkpoints)
    print(drawn)
    report = run(drawn, folder)
    assert report.well, str(report)

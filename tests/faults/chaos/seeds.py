"""The seeds of a soak test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from tests.faults.chaos.plan import plan
from tests.faults.chaos.run import run

_FIRST: Final = int(os.environ.get("HVD_TEST_SEED", "1"))
SEEDS: Final = tuple(range(_FIRST, _FIRST + int(os.environ.get("HVD_TEST_SEEDS", "3"))))
"""Three seeds, or ``HVD_TEST_SEEDS`` of them, from ``HVD_TEST_SEED`` on."""
TIMEOUT_S: Final = 600.0
"""Limit in seconds for one seed: longer than all of its waits together."""


def check(seed: int, folder: Path, *, checkpoints: bool, **how: Any) -> None:
    """Run a seed. Prints its plan first. Raises ``AssertionError`` with the plan and all events if something is
    wrong. ``how``: as in :func:`run`."""
    drawn = plan(seed, checkpoints=checkpoints)
    print(drawn)
    report = run(drawn, folder, **how)
    assert report.well, str(report)

"""Look for histories in which the driver breaks a promise; the first one found is shrunk to a script, and told."""

from __future__ import annotations

import os
import random
from typing import Final

import pytest

from tests.unit.launcher.model.history import drawn
from tests.unit.launcher.model.play import play, shrunk

FIRST: Final = int(os.environ.get("HVD_TEST_SEED", "0"))
"""Seed of the first history. Without one the same histories are played each time, wherever that is."""
COUNT: Final = int(os.environ.get("HVD_TEST_HISTORIES", "25000"))
"""How many are played by a soak."""


def by_seeds(first: int, count: int) -> None:
    """Play the histories of so many seeds, one after the other."""
    for number in range(first, first + count):
        failure = play(drawn(random.Random(number).randrange))
        if failure is not None:
            pytest.fail(f"seed {number}: {shrunk(failure)}", pytrace=False)

"""Searches for histories in which the driver violates a rule. Reports the first one, reduced to a short script."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Final

import pytest

from tests.unit.launcher.model.history import History, drawn
from tests.unit.launcher.model.play import play, shrunk

FIRST: Final = int(os.environ.get("HVD_TEST_SEED", "0"))
"""Seed of the first history. By default, each run on any machine plays the same histories."""
COUNT: Final = int(os.environ.get("HVD_TEST_HISTORIES", "20000"))
"""The number of histories in a soak test."""


def by_seeds(first: int, count: int, *, draw: Callable[[Callable[[int], int]], History] = drawn) -> None:
    """Play the histories of this many seeds, one after the other."""
    for number in range(first, first + count):
        failure = play(draw(random.Random(number).randrange))
        if failure is not None:
            pytest.fail(f"seed {number}: {shrunk(failure)}", pytrace=False)

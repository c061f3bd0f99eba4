"""Look for histories in which the driver breaks a promise; the first one found is shrunk to a script, and told."""

from __future__ import annotations

import contextlib
import os
import random
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.unit.launcher.model.history import MOST, RANGE, Raw, decode, drawn
from tests.unit.launcher.model.play import Failure, play, shrunk

FIRST: Final = int(os.environ.get("HVD_TEST_SEED", "0"))
"""Seed of the first history. Without one the same histories are played each time, wherever that is."""
COUNT: Final = int(os.environ.get("HVD_TEST_HISTORIES", "100000"))
"""How many are played by a soak."""
_NUMBER: Final = st.integers(0, RANGE - 1)
_RAW: Final = st.tuples(_NUMBER, _NUMBER, _NUMBER, _NUMBER)


def by_hypothesis(count: int, *, part: int) -> None:
    """Play so many histories that hypothesis builds; another ``part`` is other ones.

    What fails is shrunk by :func:`shrunk`, which knows what a plain history is, and takes seconds.
    """
    found: list[Failure] = []

    @seed(FIRST + part)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(_RAW, st.lists(_RAW, min_size=1, max_size=MOST))
    def look(shape: Raw, raw: list[Raw]) -> None:
        failure = play(decode(shape, raw))
        if failure is not None:
            found.append(failure)
            raise AssertionError(failure.promise)

    with contextlib.suppress(AssertionError):
        look()
    if found:
        pytest.fail(str(shrunk(found[0])), pytrace=False)


def by_seeds(first: int, count: int) -> None:
    """Play the histories of so many seeds, one after the other."""
    for number in range(first, first + count):
        failure = play(drawn(random.Random(number).randrange))
        if failure is not None:
            pytest.fail(f"seed {number}: {shrunk(failure)}", pytrace=False)

"""The pytest plugin behind tests/conftest.py."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.clock import ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that moves only by ``advance``."""
    return ManualClock()

"""Real Horovod worlds on this machine, once for the stock State and once for ours."""

from __future__ import annotations

from collections.abc import Iterator

import horovod.torch as hvd
import pytest

from tests.contract.worker import run_worlds
from tests.contract.worker.run_worlds import Saw


@pytest.fixture(scope="session")
def ours() -> dict[str, Saw]:
    """What two ranks with our State saw, by check."""
    return run_worlds.saw(run_worlds.OURS)


@pytest.fixture(scope="session")
def stock() -> dict[str, Saw]:
    """The same for the stock State."""
    return run_worlds.saw(run_worlds.STOCK)


@pytest.fixture(scope="session")
def three() -> dict[str, Saw]:
    """What three ranks with our State saw."""
    return run_worlds.saw(run_worlds.THREE)


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    """Horovod as a world of one, in this process."""
    hvd.init()
    yield
    hvd.shutdown()

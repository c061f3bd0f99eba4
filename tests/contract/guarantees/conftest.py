"""Horovod as a world of one, in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.worker.conftest import alone as alone  # a fixture
from tests.contract.worker.user_states import with_handlers


@pytest.fixture
def handlers() -> Iterator[None]:
    """A handler of the user's in Horovod's registry."""
    with with_handlers():
        yield

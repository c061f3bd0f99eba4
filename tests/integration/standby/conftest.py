"""One job for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.standby.small_launcher import Job


@pytest.fixture
def job() -> Iterator[Job]:
    with Job() as made:
        yield made

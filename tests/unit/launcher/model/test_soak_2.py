"""Half of the 100,000 histories of `make soak`; the other half is another file's, so that both are played at a time."""

from __future__ import annotations

import secrets

import pytest

from tests.unit.launcher.model.hunting import by_seeds


@pytest.mark.soak
@pytest.mark.idle
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_every_promise_holds_in_5000_histories_more(part: int) -> None:
    by_seeds(secrets.randbelow(1 << 48), 5000)

"""Half of the histories of `make soak`. The other half is in another file, so that both can run in parallel."""

from __future__ import annotations

import pytest

from tests.unit.launcher.model.search import COUNT, FIRST, by_seeds


@pytest.mark.soak
@pytest.mark.idle
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_every_promise_holds_in_many_histories_more(part: int) -> None:
    count = COUNT // 20
    by_seeds(FIRST + (part + 0) * count, count)

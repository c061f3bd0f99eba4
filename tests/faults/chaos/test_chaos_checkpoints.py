"""The same with durable checkpoints, where all agents may be killed at once. It is a file of its own, so that both can
run in parallel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos.seeds import SEEDS, TIMEOUT_S, check


@pytest.mark.soak
@pytest.mark.crowd
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_loses_nothing_that_is_held_or_durable_whatever_is_broken(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path, checkpoints=True)

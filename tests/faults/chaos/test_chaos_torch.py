"""The same random faults in a job of torch, whose processes live through changes of their world."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos.seeds import SEEDS, TIMEOUT_S, check


@pytest.mark.soak
@pytest.mark.crowd
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_a_job_of_torch_loses_nothing_that_an_agent_holds_whatever_is_broken(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path, checkpoints=False, engine="torch")

"""The same random faults, for a shorter time, in a job of TensorFlow, whose collectives run in threads of graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos.seeds import SEEDS, TIMEOUT_S, check
from tests.support.tensorflow import needs_tensorflow

FAULTS_S = 30.0


@needs_tensorflow
@pytest.mark.soak
@pytest.mark.crowd
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_a_job_of_tensorflow_loses_nothing_that_an_agent_holds_whatever_is_broken(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path, checkpoints=False, trains="tensorflow", faults_s=FAULTS_S)

"""A job of TensorFlow that loses a worker and a host: what it trained with in the history that counts."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.integration.launcher.conftest import Launched, launched
from tests.support.tensorflow import needs_tensorflow

__all__ = ["launched"]

SCRIPT: Final = Path(__file__).with_name("consumption.py")
SAMPLES: Final = 240


@needs_tensorflow
@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["loop", "fit"])
def test_a_job_that_loses_a_worker_and_a_host_trains_with_each_sample_once_an_epoch(
    launched: Launched, way: str
) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1", "127.0.0.2:1")
    # The host of the worker that is lost stays away: worlds of 3, 2 and 1 need no padding here.
    options = ("-np", "3", "--min-np", "1", "--settle", "0.2", "--blacklist-cooldown-range", "600", "600")
    with launched.run(*options, sys.executable, SCRIPT, launched.directory, way) as process:
        launched.wait_for_steps(2, timeout=120)
        launched.set_hosts("localhost:1")
        launched.wait_for_steps(1, timeout=60)
        (launched.directory / "hurry").touch()
        assert process.wait(100) == 0, process.output
    steps = int(re.findall(r"done after (\d+) steps", process.stdout)[0])
    assert [record.get("steps_lost") for record in launched.events("rolled_back")] != []
    assert [record.get("size") for record in launched.events("resized")] == [3, 2, 1]

    lines = [line.split() for file in launched.directory.glob("*.consumed") for line in file.read_text().splitlines()]
    newest: dict[int, int] = {}
    for began, step, *_ in lines:
        newest[int(step)] = max(newest.get(int(step), 0), int(began))
    assert sorted(newest) == list(range(steps))
    assert len(set(newest.values())) == 3, "each world trained"
    trained = Counter(
        (int(epoch), int(sample))
        for began, step, epoch, samples in lines
        if int(began) == newest[int(step)]
        for sample in samples.split(",")
    )
    assert trained == Counter((epoch, sample) for epoch in range(2) for sample in range(SAMPLES))
    rolled_back = [line for line in lines if int(line[0]) != newest[int(line[1])]]
    assert rolled_back, "some batches were trained twice, and count once"

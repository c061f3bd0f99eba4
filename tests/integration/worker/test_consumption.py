"""A real elastic job that grows and loses a worker: what it consumed in the history that counts."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.worker.conftest import ElasticJob
from tests.support.waiting import wait_until

HERE = Path(__file__).parent
SAMPLES = {str(index) for index in range(180)}
RECORDS = {f"{shard}{index}" for shard, length in (("a", 100), ("b", 7), ("d", 73)) for index in range(length)}


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_job_that_grows_and_loses_a_worker_consumes_everything_once_an_epoch(job: ElasticJob, tmp_path: Path) -> None:
    job.set_hosts("localhost:1")
    with job.run(HERE / "consumption.py", tmp_path) as process:
        wait_until(lambda: job.size() == 1, what="a first step", timeout=60, show=lambda: process.output)
        job.set_hosts("localhost:1", "127.0.0.1:1")
        wait_until(lambda: job.size() == 2, what="a world of two", timeout=80, show=lambda: process.output)
        (tmp_path / "hurry").touch()
        os.kill(job.worker_on(process, "127.0.0.1"), signal.SIGKILL)
        assert process.wait(90) == 0, process.output
        steps = int(re.findall(r"done after (\d+) steps", process.stdout)[0])
    assert job.events("rolled_back"), "the loss was met by a roll-back"

    samples, records = consumed(tmp_path, steps)
    for epoch in ("0", "1"):
        for times, everything in ((samples[epoch], SAMPLES), (records[epoch], RECORDS)):
            assert set(times) == everything
            assert sum(times.values()) - len(times) <= 1, "padding of a world of two"


def consumed(directory: Path, steps: int) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """By epoch: how often each sample and each record stands in the last version of the steps."""
    lines = [line.split() for file in directory.glob("*.consumed") for line in file.read_text().splitlines()]
    newest: dict[int, int] = {}
    for began, step, *_ in lines:
        newest[int(step)] = max(newest.get(int(step), 0), int(began))
    assert len(set(newest.values())) >= 2, "more than one world took part"
    samples: dict[str, Counter[str]] = {"0": Counter(), "1": Counter()}
    records: dict[str, Counter[str]] = {"0": Counter(), "1": Counter()}
    for began, step, epoch, indices, texts in lines:
        if int(began) == newest[int(step)] and int(step) <= steps:
            samples[epoch].update(indices.split(","))
            records[epoch].update(texts.split(","))
    return samples, records

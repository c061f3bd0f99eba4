"""Real elastic jobs under Horovod's own launcher and driver."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.worker.conftest import DIGITS, HOROVODRUN, ElasticJob
from tests.support.processes import run_process
from tests.support.waiting import wait_until

HERE = Path(__file__).parent


def test_the_digits_example_learns_in_one_process(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with run_process([sys.executable, DIGITS, "--epochs", "6", "--report", report]) as process:
        assert process.wait(60) == 0, process.output
    told = json.loads(report.read_text())
    assert told["accuracy"] >= 0.95
    assert (told["epochs"], told["size"]) == (6, 1)


@pytest.mark.soak
def test_the_digits_example_learns_under_plain_horovodrun(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    launch = [HOROVODRUN, "-np", "2", "-H", "localhost:2", "--gloo", sys.executable, DIGITS]
    with run_process([*launch, "--epochs", "8", "--report", report]) as process:
        assert process.wait(100) == 0, process.output
    told = json.loads(report.read_text())
    assert told["accuracy"] >= 0.95
    assert (told["epochs"], told["size"]) == (8, 2)
    assert len(re.findall(r"^.*epoch \d+/8  loss", process.stdout, re.MULTILINE)) == 8


@pytest.mark.soak
def test_digits_grow_then_lose_a_worker_and_finish(job: ElasticJob, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    job.set_hosts("localhost:1")
    arguments = ("--epochs", "12", "--step-delay", "0.02", "--report", report)
    with job.run(DIGITS, *arguments) as process:
        wait_until(lambda: job.size() == 1, what="a first step", timeout=60, show=lambda: process.output)
        job.set_hosts("localhost:1", "127.0.0.1:1")
        wait_until(lambda: job.size() == 2, what="a world of two", timeout=60, show=lambda: process.output)
        os.kill(job.worker_on(process, "127.0.0.1"), signal.SIGKILL)
        wait_until(lambda: job.events("rolled_back"), what="a roll-back", timeout=60, show=lambda: process.output)
        assert process.wait(90) == 0, process.output
    told = json.loads(report.read_text())
    assert told["accuracy"] >= 0.95
    assert (told["epochs"], told["size"]) == (12, 1)
    back = job.events("rolled_back")[0]
    assert 0 <= back.get("steps_lost") <= 5
    assert [event.get("size") for event in job.events("synced")] == [1, 2, 1]


@pytest.mark.soak
@pytest.mark.parametrize(("state", "loop"), [("ours", "stock"), ("stock", "ours")])
def test_our_state_and_our_loop_serve_with_horovods_own_counterpart(job: ElasticJob, state: str, loop: str) -> None:
    job.set_hosts("localhost:1")
    with job.run(HERE / "mixed.py", state, loop, "150") as process:
        process.wait_for("world of 1", timeout=60)
        job.set_hosts("localhost:1", "127.0.0.1:1")
        process.wait_for("world of 2", timeout=60)
        assert process.wait(60) == 0, process.output
    prints = re.findall(r"done (\w+)", process.stdout)
    assert len(prints) == 2
    assert len(set(prints)) == 1, "the newcomer ended with another model than the veteran"

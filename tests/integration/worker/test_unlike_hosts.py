"""Real elastic jobs on hosts of unlike speed, whose ranks share the global batch by measured speed."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched

SCRIPT = Path(__file__).with_name("unlike.py")
OPTIONS = ("--settle", "0.5", "--blacklist-cooldown-range", "1", "2", "-np", "2", "--min-np", "1")
DATA = {
    "samples": set(map(str, range(720))),
    "records": {f"{shard}{index}" for shard, length in (("a", 200), ("b", 7), ("d", 401)) for index in range(length)},
}


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_a_job_whose_shares_change_consumes_everything_once_and_trains_as_one_process_though_a_rank_is_killed(
    tmp_path: Path, engine: str
) -> None:
    job = Launched(tmp_path)
    job.set_hosts("localhost:1", "127.0.0.1:1")
    command = ("--engine", engine, *OPTIONS, sys.executable, SCRIPT, tmp_path, "127.0.0.1", "2", "2", *DATA)
    with job.run(*command) as process:
        job.wait_for("other shares", lambda: job.events("shares"), timeout=90)
        os.kill(job.pids()["127.0.0.1"], signal.SIGKILL)
        job.wait_for("a world of one", lambda: job.steps_at(1) > 2)
        job.wait_for("a world of two again", lambda: job.steps_at(2) > 2)
        known = len(job.events("shares"))
        job.wait_for("its other shares", lambda: len(job.events("shares")) > known)
        changes = job.events("shares")
        (tmp_path / "hurry").touch()
        assert process.wait(120) == 0, process.output
    done = re.findall(r"done after (\d+) steps, off by (\S+)", process.stdout)
    assert {float(off) < 1e-9 for _, off in done} == {True}
    assert job.events("rolled_back"), "the loss was met by a roll-back"
    for change in changes:
        slow_first = change.get("sample_s")[0] > change.get("sample_s")[1]
        few, many = change.get("rows") if slow_first else change.get("rows")[::-1]
        assert 6 <= few <= 10 < 14 <= many <= 18, change
        assert few + many == 24
    for (kind, epoch), times in consumed(tmp_path, int(done[0][0])).items():
        assert set(times) == DATA[kind], (kind, epoch, "something was missed")
        assert set(times.values()) == {1}, (kind, epoch, "something came twice")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_rank_too_slow_even_for_the_least_share_is_neither_named_nor_drained_as_a_straggler(tmp_path: Path) -> None:
    job = Launched(tmp_path)
    job.set_hosts("localhost:1", "127.0.0.1:1", "127.1:1")
    options = ("-np", "3", "--min-np", "1", "--heartbeat-interval", "0.2", "--drain-stragglers")
    with job.run(*options, sys.executable, SCRIPT, tmp_path, "127.0.0.1", "12", "9", "samples") as process:
        job.wait_for("other shares", lambda: job.events("shares"), timeout=90)
        since = len(job.events("stepped"))
        judged = since + 60  # steps of half a second; a straggler is named after 20 s
        job.wait_for("as many steps as are judged", lambda: len(job.events("stepped")) > judged, timeout=120)
        process.terminate()
        process.wait(60)
    assert min(job.events("shares")[0].get("rows")) == 2, "a quarter of the equal share, 8"
    assert not job.events("straggler") + job.events("struck")
    assert [record.get("cause") for record in job.events("resized")] == ["start"]


def consumed(directory: Path, steps: int) -> dict[tuple[str, str], Counter[str]]:
    """By kind of data and epoch: how often each stands in the last version of the steps."""
    lines = [line.split() for file in directory.glob("*.consumed") for line in file.read_text().splitlines()]
    newest: dict[int, int] = {}
    for began, step, *_ in lines:
        newest[int(step)] = max(newest.get(int(step), 0), int(began))
    assert len(set(newest.values())) >= 3, "three worlds took part"
    found = {(kind, epoch): Counter[str]() for kind in DATA for epoch in ("0", "1")}
    for began, step, epoch, kind, parts in lines:
        if int(began) == newest[int(step)] and int(step) <= steps and parts != "-":
            found[kind, epoch].update(parts.split(","))
    return found

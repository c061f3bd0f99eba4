"""Real elastic jobs whose ranks train alone between averages."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched

SCRIPT = Path(__file__).with_name("alone.py")
OPTIONS = ("--settle", "0.5", "--blacklist-cooldown-range", "1", "2", "-np", "3", "--min-np", "1")
EPOCHS, SAMPLES = 2, set(map(str, range(720)))


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("engine", "kind"), [("horovod", "LocalSGD"), ("horovod", "DiLoCo"), ("torch", "DiLoCo")])
def test_a_loss_costs_the_others_no_step_a_newcomer_enters_at_an_average_and_a_notice_forces_one(
    tmp_path: Path, engine: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKS", "3")  # else training may be over before a slow process is back
    job = Launched(tmp_path)
    job.set_hosts("localhost:1", "127.0.0.1:1", "127.1:1")
    command = ("--engine", engine, *OPTIONS, sys.executable, SCRIPT, tmp_path, EPOCHS, 12, kind)
    with job.run(*command) as process:
        job.wait_for("an average of three", lambda: of(job, 3), timeout=90)
        victim = job.pids()["127.0.0.1"]
        job.wait_for("steps after it", lambda: pending(lives(tmp_path)[victim]) > 2)
        os.kill(victim, signal.SIGKILL)
        job.wait_for("an average of two", lambda: of(job, 2))
        job.wait_for(
            "one of three again",
            lambda: len(of(job, 3)) > 1 and job.events("averaged")[-1] in of(job, 3),
            timeout=120,
        )
        before, successor = len(job.events("averaged")), job.pids()["127.0.0.1"]
        job.set_hosts("localhost:1", "127.0.0.1:1")  # the other host leaves, with all that it has done
        job.wait_for("a world of two", lambda: job.events("resized")[-1].get("size") == 2)
        (tmp_path / "hurry").touch()
        assert process.wait(120) == 0, process.output
    assert len({*re.findall(r"weights (\w+)", process.stdout)}) == 1, process.stdout
    assert not job.events("rolled_back")
    begins = re.findall(rf"process {successor} begins with (\d+) moments", process.stdout)
    assert successor != victim
    assert begins[0] == "6", "those of its slot's last average"
    early = [record for record in job.events("averaged")[before:] if record.get("stop")]
    assert early, "the notice was met by an average"
    assert [len(record.get("weights")) for record in early] == [3]
    averaged: Counter[tuple[str, str]] = Counter()
    for pid, lines in lives(tmp_path).items():
        for last, line in pairwise(lines):
            if last[0] == line[0] == "step":
                assert line[1] == last[2], "a step begins with the weights that the last one has left"
        left = pending(lines)
        assert (left > 0) == (pid == victim), "only the killed process has something that is in no average"
        done = [line for line in lines if line[0] == "step"]
        averaged.update((line[3], sample) for line in done[: len(done) - left] for sample in line[4].split(","))
    assert set(averaged) == {(str(epoch), sample) for epoch in range(EPOCHS) for sample in SAMPLES}
    worlds = len(job.events("resized"))
    assert sum(averaged.values()) - len(averaged) <= 2 * (worlds + EPOCHS), "only what fills up a part comes twice"


def of(job: Launched, size: int) -> list[object]:
    return [record for record in job.events("averaged") if len(record.get("weights")) == size]


def lives(directory: Path) -> dict[int, list[list[str]]]:
    """The lines of each process, by its number."""
    found = {}
    for file in directory.glob("*.alone"):
        found[int(file.name.split(".")[-2])] = [line.split() for line in file.read_text().splitlines()]
    return found


def pending(lines: list[list[str]]) -> int:
    """How many steps it has done since its last average."""
    kinds = [line[0] for line in lines]
    return kinds[::-1].index("average") if "average" in kinds else len(kinds)

"""Real jobs that lose a rank, and whose survivors execute the lost steps again as they were."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launcher.conftest import Launched

SCRIPT = Path(__file__).with_name("replayed.py")
HOSTS = ("localhost:1", "127.0.0.1:1", "127.1:1")
OPTIONS = ("--replay", "--settle", "0.5", "--blacklist-cooldown-range", "100", "200", "--min-np", "1")
AT, COMMITTED, STEPS = 27, 20, 33
KILLS = 6
"""Of each of two jobs."""


def run(directory: Path, size: int, *, victim: int, engine: str = "horovod", kind: str = "samples") -> int:
    """Run a job of ``size`` ranks, of which ``victim`` is killed in step :data:`AT`. Return the last lost step: AT
    itself if its gradients had been sent by then."""
    job = Launched(directory)
    job.set_hosts(*HOSTS[:size])
    script = (sys.executable, SCRIPT, directory, victim, AT, STEPS, kind)
    with job.run("--engine", engine, "-np", str(size), *OPTIONS, *script) as process:
        assert process.wait(150) == 0, process.output
    last = COMMITTED + max(record.get("steps_lost") for record in job.events("rolled_back"))
    assert last in (AT - 1, AT)
    [replayed] = job.events("replayed")
    assert (replayed.get("steps"), replayed.get("former")) == (last - COMMITTED, size)
    return last


def steps_of(directory: Path) -> tuple[dict[int, list[dict[str, Any]]], dict[int, list[dict[str, Any]]]]:
    """What the ranks did in each step before the loss and after it, by step."""
    before, after = defaultdict(list), defaultdict(list)
    for file in sorted(directory.glob("*.steps")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        size = lines[0]["size"]
        for line in lines:
            (before if line["size"] == size else after)[line["step"]].append(line)
    return before, after


def micro_batches(lines: list[dict[str, Any]]) -> list[Any]:
    """The samples of all micro-batches of a step, with the numbers that generators drew in each."""
    return sorted(micro for line in lines for micro in line["draws"])


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("engine", "victim", "kind"),
    [
        ("horovod", 1, "samples"),
        pytest.param("horovod", 0, "records", marks=pytest.mark.soak),
        pytest.param("torch", 0, "samples", marks=pytest.mark.soak),
    ],
)
def test_one_survivor_of_two_repeats_the_lost_steps_bit_for_bit(
    tmp_path: Path, engine: str, victim: int, kind: str
) -> None:
    last = run(tmp_path, 2, victim=victim, engine=engine, kind=kind)
    before, after = steps_of(tmp_path)
    assert sorted(after) == list(range(COMMITTED + 1, STEPS + 1))
    for step in range(COMMITTED + 1, last + 1):
        [again] = after[step]
        first = next(line for line in before[step] if line["rank"] != victim)
        assert again["weights"] == first["weights"], step
        assert again["buffers"] == first["buffers"], step
        assert again["after"] == first["after"], step
        if step < AT:  # the victim had no time to write this one
            assert micro_batches([again]) == micro_batches(before[step]), step


@pytest.mark.soak
@pytest.mark.timeout(200)
@pytest.mark.parametrize("engine", ["horovod", "torch"])
def test_two_survivors_of_three_repeat_the_lost_steps_but_for_the_order_of_additions(
    tmp_path: Path, engine: str
) -> None:
    run(tmp_path, 3, victim=1, engine=engine)
    before, after = steps_of(tmp_path)
    for step in range(COMMITTED + 1, AT):
        assert micro_batches(after[step]) == micro_batches(before[step]), step
        assert len(after[step]) == 2
        for again in after[step]:
            [first] = [line for line in before[step] if line["after"] == again["after"]]
            assert first["rank"] != 1, "each survivor's generators are where they would have been"
            assert off(again["weights"], first["weights"]) <= 1e-6, step
            assert off(again["buffers"], first["buffers"]) <= 1e-6, step


def off(found: list[float], wanted: list[float]) -> float:
    """How far the values are from those that are wanted, relative to the largest of these."""
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True)) / max(map(abs, wanted))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("size", "engine"), [(2, "horovod"), (3, "torch")])
def test_random_kills_leave_one_history_of_steps(tmp_path: Path, size: int, engine: str) -> None:
    job, chance = Launched(tmp_path), random.Random(size)
    job.set_hosts(*HOSTS[:size])
    options = ("--replay", "--engine", engine, "--settle", "0.2", "--blacklist-cooldown-range", "1", "1")
    limits = ("-np", str(size), "--min-np", "1", "--failure-budget", "1000")
    script = (sys.executable, SCRIPT, tmp_path, "-1", "0", "1000000", "samples")
    with job.run(*options, *limits, *script) as process:
        for _ in range(KILLS):
            wanted = chance.randint(3, 40)
            job.wait_for("a whole world that trains", lambda n=wanted: steps_of_world(job, size) > n, timeout=120)
            os.kill(chance.choice(sorted(job.pids().values())), signal.SIGKILL)
            job.wait_for("a smaller world", lambda: steps_of_world(job, size - 1) > 0, timeout=60)
        job.wait_for("the last of the lost steps", lambda: replayed(job) == sum(lost_steps(job, size)), timeout=60)
        process.terminate()
        process.wait(60)
    lost = lost_steps(job, size)
    assert len(lost) == KILLS
    assert replayed(job) == sum(lost) > 0
    repeated, changes, before = 0, 0, []
    for step, versions in sorted(histories(tmp_path).items()):
        repeated += len(versions) > 1
        whole = [micro_batches(lines) for lines in versions if len(lines) == lines[0]["size"]]
        if not whole:  # a rank was killed right after it, and a commit; or the job ended
            continue
        assert whole.count(whole[0]) == len(whole), step
        for lines in versions:
            assert all(micro in whole[0] for micro in micro_batches(lines)), step
            for line in lines:
                assert off(line["weights"], versions[0][0]["weights"]) <= (0.0 if size == 2 else 1e-6), step
        changes += versions[0][0]["weights"] != before
        before = versions[0][0]["weights"]
    assert repeated == sum(lost)
    assert changes > 0.99 * step, "it trains to the end"


def steps_of_world(job: Launched, size: int) -> int:
    """The steps of the newest world if it has this size: its first ones are told before that it has formed."""
    formed = job.events("resized")
    return job.steps_at(size) if formed and formed[-1].get("size") == size else 0


def lost_steps(job: Launched, size: int) -> list[int]:
    return [record.get("steps_lost") for record in job.events("resized") if record.get("size") == size - 1]


def replayed(job: Launched) -> int:
    return sum(record.get("steps") for record in job.events("replayed"))


def histories(directory: Path) -> dict[int, list[list[dict[str, Any]]]]:
    """By step: what the ranks of each world did in it, in the order of the worlds. A rank that was killed right after
    a step may not have written it."""
    found: dict[int, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for file in directory.glob("*.steps"):
        for text in file.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                line = json.loads(text)
                found[line["step"]][line["world"]].append(line)
    return {step: [lines for _, lines in sorted(worlds.items())] for step, worlds in found.items()}

"""``hvd-elastic replay`` of real jobs."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.launcher.conftest import ELASTIC, Launched
from tests.support.processes import run_process
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).with_name("one_step.py")


@pytest.mark.parametrize(("engine", "size"), [("horovod", 2), pytest.param("torch", 1, marks=pytest.mark.soak)])
def test_a_step_of_a_job_is_executed_as_it_was_and_nothing_of_the_job_changes(
    tmp_path: Path, engine: str, size: int
) -> None:
    job = Launched(tmp_path)
    job.set_hosts(*("localhost:1", "127.0.0.1:1")[:size])
    where = (
        "--job",
        "digits",
        "--checkpoint-dir",
        tmp_path / "checkpoints",
        "--checkpoint-every",
        "1",
        "--checkpoint-keep",
        "99",
    )
    with job.run("--engine", engine, "-np", str(size), "--replay", *where, sys.executable, SCRIPT, tmp_path) as process:
        assert process.wait(60) == 0, process.output
    before = files(tmp_path)
    [first, last] = replay(tmp_path)["steps"][-1]
    job_steps = steps(tmp_path)
    assert last == max(job_steps)
    report = replay(tmp_path, "--step", str(first + 2))
    assert report["step"] == first + 2 <= last
    done = job_steps[first + 2]
    assert [rank["samples"] for rank in report["ranks"]] == [line["samples"] for line in done]
    loss, norms = sum(line["loss"] for line in done) / size, done[0]["norms"]
    if size == 1:
        assert report["loss"] == loss
        assert [row["norm_at_update"] for row in report["gradients"]] == norms
    else:
        assert report["loss"] == pytest.approx(loss, rel=1e-6)
        assert [row["norm_at_update"] for row in report["gradients"]] == pytest.approx(norms, rel=1e-6)
    assert not (tmp_path / "wrong").exists()
    assert before.items() <= files(tmp_path).items()
    assert {path.name.partition("-")[0] for path in files(tmp_path).keys() - before.keys()} == {"alone"}
    if size > 1:
        nothing_is_left_of_one_that_is_ended(tmp_path, first + 2)


def nothing_is_left_of_one_that_is_ended(directory: Path, step: int) -> None:
    """Nobody waits for its script, which may never come to that step."""
    still = directory / "still"
    command = [*ELASTIC, "replay", "digits", "--step", str(step)]
    with run_process(command, cwd=directory, env={"STANDS_STILL": str(still)}) as process:
        number = wait_until(lambda: still.exists() and still.read_text(), what="a script that stands still", timeout=60)
        script = psutil.Process(int(number))
        process.terminate()
        process.wait(30)
        script.wait(30)
    assert "Traceback" not in process.output


def replay(directory: Path, *options: str) -> Any:
    """What ``hvd-elastic replay`` prints."""
    with run_process([*ELASTIC, "replay", "digits", "--json", *options], cwd=directory) as process:
        assert process.wait(60) == 0, process.output
    return json.loads(process.output)


def files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def steps(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """What the ranks of the job did in each step, rank 0 first."""
    found = defaultdict(list)
    for file in directory.glob("job-*.steps"):
        for line in map(json.loads, file.read_text().splitlines()):
            found[line["step"]].append(line)
    return {step: sorted(lines, key=lambda line: line["rank"]) for step, lines in found.items()}

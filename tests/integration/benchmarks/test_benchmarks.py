"""``python -m benchmarks`` for real: figures exist, and are not judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.cases import CASES
from tests.support import marks
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
BENCHMARKS = [sys.executable, "-m", "benchmarks", "--quick"]
WORKER = f"{sys.executable} -c import time"
"""How the command line of a training process of ``hosts-change-to-driver`` begins; its launchers' only contain it."""
TWINS = {
    "growth-slow-boot",
    "kill-recovery-3",
    "removal-16",
    "removal-32",
    "check-4",
    "commit-small",
    "commit-gpu-small",
    "torch-kill-3",
    "tensorflow-join-loop",
    "tensorflow-kill-fit",
    "simulate-10000",
}
"""Cases that another one measures with the same code and other sizes."""
TESTED_ELSEWHERE = {
    "spare-recovery",
    "spare-recovery-torch",
    "successor",
    "torch-stop",
    "torch-join-dies",
    "unlike-ranks",
}
"""Cases that wait long for what a test of their own tries: ``test_spares.py``, ``test_run.py``,
``test_torch_in_place.py``, ``test_unlike_hosts.py``."""
MISSING = ("needs a GPU", "needs chromium", "needs torchft")


def table_cells(report: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines() if line[:1] == "|"]


@pytest.mark.soak
def test_a_quick_run_of_the_cheapest_case_prints_a_row_for_each_figure(tmp_path: Path) -> None:
    data = tmp_path / "report.json"
    command = [*BENCHMARKS, "hosts-change-to-driver", "--json", str(data)]
    with run_process(command, cwd=ROOT, env={"TMPDIR": str(tmp_path)}) as process:
        assert process.wait(100) == 0, process.output
        assert process.tree() == []
    header, rule, *rows = table_cells(process.stdout)
    assert header == ["case", "what", "ours / stock", "ours", "stock", "bar for ours"]
    assert set("".join(rule)) == {"-"}
    assert [row[1] for row in rows] == ["hosts file to driver, median", "hosts file to driver, p99"]
    assert all(len(row) == 6 and "no figure" not in row for row in rows)
    assert "load average before the run" in process.stdout
    measured = json.loads(data.read_text())["repetitions"]
    assert [(r["side"], len(r["values"]["hosts file to driver"])) for r in measured] == [("stock", 4), ("ours", 4)]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def wait_for_worker(process: RunningProcess) -> None:
    wait_until(
        lambda: any(marks.command_line(pid).startswith(WORKER) for pid in process.tree()),
        what="a worker of the job",
        timeout=60,
        show=lambda: process.output,
    )


@pytest.mark.soak
def test_a_run_that_is_told_to_end_ends_its_job_and_reports_what_there_is(tmp_path: Path) -> None:
    # In the background of a shell SIGINT is ignored: SIGTERM must not rest on it.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *BENCHMARKS, "hosts-change-to-driver"]
    with run_process(command, cwd=ROOT, env={"TMPDIR": str(tmp_path)}) as process:
        wait_for_worker(process)
        process.terminate()
        assert process.wait(60) == 130, process.output
        assert process.tree() == []
    assert "interrupted" in process.stderr
    assert table_cells(process.stdout)[2][3:5] == ["no figure", "no figure"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    command = [*BENCHMARKS, "hosts-change-to-driver"]
    with run_process(command, cwd=ROOT, env={"TMPDIR": str(tmp_path)}) as process:
        wait_for_worker(process)
        process.kill()
        wait_until(lambda: process.tree() == [], what="the end of every process", timeout=30)


@pytest.mark.soak
@pytest.mark.timeout(1560)
def test_a_quick_run_of_each_kind_of_case_measures_both_sides(tmp_path: Path) -> None:
    names = {case.name for case in CASES if not (case.missing() or "").startswith(MISSING)}
    assert {case.name for case in CASES} > TWINS | TESTED_ELSEWHERE
    names -= TWINS | TESTED_ELSEWHERE
    light = [sys.executable, "-m", "tests.integration.benchmarks.light", "--quick"]
    with run_process([*light, *sorted(names)], cwd=ROOT, env={"TMPDIR": str(tmp_path)}) as process:
        assert process.wait(1500) == 0, process.output
    rows = table_cells(process.stdout)[2:]
    assert {row[0] for row in rows} == names
    assert not any("no figure" in cell for row in rows for cell in row)

"""CI tells a test that failed by chance from one that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUMMARY = "==== 1 failed, 3 passed in 4.05s ====\n"
ONCE = """
from pathlib import Path

def test_it():
    runs = Path(__file__).with_name("runs")
    runs.write_text(f"{runs.read_text()}x" if runs.exists() else "x")
    assert len(runs.read_text()) != WRONG
"""


def unstable(place: Path, log: str, *, runs: int = 1) -> str | None:
    """What CI lists as unstable; None if it stays failed."""
    (place / "log").write_text(log)
    script = f'source {ROOT}/scripts/lib/unstable.sh; passes_alone log {runs} >&2 && echo "${{unstable[@]}}"'
    shell = ["bash", "-euo", "pipefail", "-c", script]
    env = {"VENV": sys.prefix, "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it starts sooner
    done = subprocess.run(shell, cwd=place, env=env, capture_output=True, text=True, timeout=90)
    return done.stdout.strip() if done.returncode == 0 else None


def put(place: Path, name: str, *, wrong: int = 0) -> str:
    """A test that fails in run number ``wrong``."""
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ONCE.replace("WRONG", str(wrong)))
    return f"{name}::test_it"


def test_a_test_that_failed_once_and_passes_three_times_alone_is_unstable(tmp_path: Path) -> None:
    name = put(tmp_path, "tests/faults/test_a.py")

    assert unstable(tmp_path, f"FAILED {name} - AssertionError: x - y\n{SUMMARY}") == name
    assert (tmp_path / "tests/faults/runs").read_text() == "xxx"


def test_a_test_that_fails_once_more_has_failed(tmp_path: Path) -> None:
    name = put(tmp_path, "tests/faults/test_a.py", wrong=3)

    assert unstable(tmp_path, f"ERROR {name} - OSError\n{SUMMARY}") is None
    assert (tmp_path / "tests/faults/runs").read_text() == "xxx"


@pytest.mark.parametrize("names", [["tests/unit/test_a.py"], [f"tests/e2e/test_{each}.py" for each in "abc"], []])
def test_unit_tests_and_three_tests_and_no_test_at_all_have_no_second_chance(tmp_path: Path, names: list[str]) -> None:
    log = "".join(f"FAILED {put(tmp_path, name)}\n" for name in names)

    assert unstable(tmp_path, log + SUMMARY) is None


def test_a_run_that_did_not_come_to_its_end_has_failed(tmp_path: Path) -> None:
    log = f"FAILED {put(tmp_path, 'tests/faults/test_a.py')}\n"

    assert unstable(tmp_path, log) is None
    assert unstable(tmp_path, log + SUMMARY, runs=4) is None

"""scripts/setup and scripts/build-horovod on a fresh machine."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest


def run(tree: Path, *command: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def setup(tree: Path, python: str, *, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return run(tree, "scripts/setup", "--python", python, environment=environment)


@pytest.fixture
def path_without_tools(tmp_path: Path, base_python: str) -> str:
    """A PATH with Python and a shell, but no compiler, make or CMake."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, target in {
        "python3": base_python,
        "bash": "/bin/bash",
        "env": "/usr/bin/env",
        "dirname": "/usr/bin/dirname",
    }.items():
        (tools / name).symlink_to(target)
    return str(tools)


@pytest.mark.parametrize("script", ["setup", "build-horovod"])
def test_one_message_names_all_missing_tools_before_anything_is_made(
    fresh_tree: Path, bare_environment: dict[str, str], tmp_path: Path, path_without_tools: str, script: str
) -> None:
    environment = bare_environment | {"PATH": path_without_tools, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(fresh_tree, f"scripts/{script}", environment=environment)
    assert done.returncode == 1
    for package in ("g++", "gcc", "make", "cmake"):
        assert f"(Debian package: {package})" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (fresh_tree / ".venv").exists()
    assert not (tmp_path / "cache").exists()


def test_a_venv_directory_of_another_kind_is_not_removed(
    fresh_tree: Path, bare_environment: dict[str, str], base_python: str
) -> None:
    (fresh_tree / ".venv").mkdir()
    (fresh_tree / ".venv/thesis.txt").write_text("the only copy")
    done = setup(fresh_tree, base_python, environment=bare_environment)
    assert done.returncode == 1
    assert "is not a virtual environment; move it away" in done.stderr
    assert (fresh_tree / ".venv/thesis.txt").read_text() == "the only copy"


def test_a_python_that_does_not_run_gives_one_line(fresh_tree: Path, bare_environment: dict[str, str]) -> None:
    done = run(fresh_tree, "scripts/setup", "--python", "/no/such/python", environment=bare_environment)
    assert done.returncode == 1
    assert "/no/such/python" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_killed_set_up_finishes_the_next_time_and_then_has_nothing_to_do(
    fresh_tree: Path, bare_environment: dict[str, str], base_python: str
) -> None:
    # Another project's settings, which must not matter.
    environment = bare_environment | {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "VIRTUAL_ENV": "/nowhere"}
    kill_while_installing(fresh_tree, base_python, environment=environment)

    finished = setup(fresh_tree, base_python, environment=environment)
    assert finished.returncode == 0, finished.stderr
    assert "interrupted while installing" in finished.stderr or "no working .venv" in finished.stderr
    assert "pip will download" in finished.stderr
    code = "import horovod.torch as hvd, hvd_elastic_ext, torch; print(torch.__version__, hvd.gloo_built())"
    proof = run(fresh_tree, str(fresh_tree / ".venv/bin/python"), "-I", "-c", code, environment=environment)
    assert proof.stdout.startswith("2.13.0")
    check = run(fresh_tree, str(fresh_tree / ".venv/bin/python"), "-I", "-m", "pip", "check", environment=environment)
    assert check.returncode == 0, check.stdout

    written = (fresh_tree / ".venv/hvd-setup.json").stat().st_mtime_ns
    again = run(fresh_tree, "scripts/setup", environment=environment)
    assert (again.returncode, again.stderr, again.stdout) == (0, "", "")
    assert (fresh_tree / ".venv/hvd-setup.json").stat().st_mtime_ns == written
    assert sorted(path.name for path in Path(environment["HOME"]).iterdir()) == []


def kill_while_installing(tree: Path, python: str, *, environment: dict[str, str]) -> None:
    with subprocess.Popen(
        ["scripts/setup", "--python", python], cwd=tree, env=environment, stderr=subprocess.DEVNULL
    ) as killed:
        deadline = time.monotonic() + 60
        while not (tree / ".venv/pyvenv.cfg").exists():
            assert killed.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while processes_in(tree):
        assert time.monotonic() < deadline, f"left running: {processes_in(tree)}"
        time.sleep(0.05)


def processes_in(tree: Path) -> list[str]:
    """Command lines of the processes that were started from the tree."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(tree) in line and entry.name != str(os.getpid()):
            found.append(line)
    return found

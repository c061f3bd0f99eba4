"""Commands are shown and logged, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tooling.build_horovod import Request, build_environment, fits, parallel_jobs
from tooling.errors import ToolingError
from tooling.processes import clean_environment, output_of, run_logged


def test_a_failure_shows_the_last_forty_lines_and_the_log(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    command = [sys.executable, "-c", "for i in range(100): print('line', i)\nraise SystemExit(3)"]
    with pytest.raises(ToolingError) as caught:
        run_logged(command, label="Building", log=log, environment=os.environ)
    message = str(caught.value)
    assert message.startswith("Building failed (exit status 3)")
    assert message.endswith(f"The complete log: {log}")
    assert "line 59\n" not in message
    assert "line 60\n" in message
    assert log.read_text().count("line") == 100


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(ToolingError, match=r"exit status 127\):\nno-such-command: No such file"):
        output_of(["no-such-command"], environment=os.environ)


SUPERVISOR = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where these tests run in the background of a shell
sys.path.insert(0, sys.argv[1])
from tooling.processes import raise_on_sigterm, run_logged
raise_on_sigterm()
run_logged(["sh", "-c", "sleep 600 & wait"], label="x", log=Path(sys.argv[2]), environment=os.environ)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("whom", "how"),
    [
        ("supervisor", signal.SIGTERM),
        ("supervisor", signal.SIGINT),
        ("supervisor", signal.SIGKILL),
        ("guard", signal.SIGKILL),
    ],
)
def test_the_whole_tree_ends_with_its_supervisor_or_guard(
    tmp_path: Path, root: Path, how: signal.Signals, whom: str
) -> None:
    command = [sys.executable, "-c", SUPERVISOR, str(root / "scripts"), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as supervisor:
        pids = tree_below(supervisor.pid, at_least=3)
        os.kill(supervisor.pid if whom == "supervisor" else pids[0], how)
        supervisor.wait(20)
    deadline = time.monotonic() + 10
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline, f"left running: {[pid for pid in pids if not gone(pid)]}"
        time.sleep(0.02)


def tree_below(pid: int, *, at_least: int) -> list[int]:
    """The guard, the command and the command's own child, once all of them run."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found, layer = [], [pid]
        while layer:
            layer = [child for parent in layer for child in children(parent)]
            found += layer
        if len(found) >= at_least:
            return found
        time.sleep(0.02)
    raise AssertionError("the tree of processes never grew")


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_pip_keeps_its_indexes_and_no_setting_that_installs_elsewhere() -> None:
    cleaned = clean_environment(
        {
            "PIP_INDEX_URL": "https://index",
            "PIP_FIND_LINKS": "/wheels",
            "PIP_TARGET": "/elsewhere",
            "PIP_CONSTRAINT": "/theirs",
            "PYTHONPATH": "/theirs",
            "PYTHONHOME": "/theirs",
            "VIRTUAL_ENV": "/theirs",
            "MAKEFLAGS": "w -j --jobserver-auth=3,4",
            "https_proxy": "http://proxy",
        }
    )
    kept = {name for name in cleaned if cleaned[name] not in ("0", "1", "ignore")}
    assert kept == {"PIP_INDEX_URL", "PIP_FIND_LINKS", "https_proxy"}
    assert cleaned["PIP_USER"] == "0"


def test_the_build_sees_only_variables_of_the_key() -> None:
    theirs = {"PATH": "/bin", "CXXFLAGS": "-O1", "HOROVOD_WITH_TENSORFLOW": "1", "MAKEFLAGS": "w", "PYTHONPATH": "/x"}
    built = build_environment(theirs, venv=Path("/venv"), request=Request(python="p"), jobs=2)
    assert built["CXXFLAGS"] == "-O1"
    assert built["PATH"] == "/venv/bin:/bin"
    assert built["MAKEFLAGS"] == "-j2"
    assert not {"HOROVOD_WITH_TENSORFLOW", "PYTHONPATH", "HOROVOD_GPU_OPERATIONS"} & set(built)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, {"WITH_PYTORCH", "WITHOUT_TENSORFLOW", "WITHOUT_MPI"}),
        ({"mpi": True}, {"WITH_PYTORCH", "WITHOUT_TENSORFLOW", "WITH_MPI"}),
        ({"with_tensorflow": True}, {"WITH_PYTORCH", "WITH_TENSORFLOW", "WITHOUT_MPI"}),
        ({"with_tensorflow": True, "with_torch": False}, {"WITHOUT_PYTORCH", "WITH_TENSORFLOW", "WITHOUT_MPI"}),
    ],
    ids=["torch", "MPI", "both", "TensorFlow"],
)
def test_options_become_horovods_switches(asked: dict[str, bool], wanted: set[str]) -> None:
    built = build_environment({}, venv=Path("/v"), request=Request(python="p", **asked), jobs=1)
    switches = {name.removeprefix("HOROVOD_") for name, value in built.items() if value == "1"}
    assert switches == {*wanted, "WITH_GLOO", "WITHOUT_MXNET"}
    assert "HOROVOD_GPU_OPERATIONS" not in built


def test_with_cuda_horovod_uses_nccl() -> None:
    built = build_environment({}, venv=Path("/v"), request=Request(python="p", cuda=True), jobs=1)
    assert built["HOROVOD_GPU_OPERATIONS"] == "NCCL"


@pytest.mark.parametrize(
    ("installed", "wanted", "fit"),
    [
        ("2.13.0+cpu", None, True),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0+cu130", False),
        ("2.13.0", "2.12.0", False),
    ],
)
def test_an_installed_torch_fits_if_it_is_the_requested_one(installed: str, wanted: str | None, fit: bool) -> None:
    assert fits(installed, wanted) is fit


@pytest.mark.parametrize(("cores", "gigabytes", "jobs"), [(2, 16, 2), (64, 16, 8), (8, 1, 1), (1, 100, 1)])
def test_cores_and_memory_limit_the_number_of_compilers(cores: int, gigabytes: int, jobs: int) -> None:
    assert parallel_jobs(cores, gigabytes * 1024**3) == jobs

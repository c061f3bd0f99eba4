"""One message names everything that is missing, with the package that brings it."""

import sys
from pathlib import Path

import pytest
from tooling import prerequisites
from tooling.errors import ToolingError
from tooling.prerequisites import Purpose, cmake_is_recent, find_nccl, find_nvcc, hints, missing, needs_of, require

NAMES = {
    "python3 -m venv": "python3-venv",
    "g++": "g++",
    "gcc": "gcc",
    "make": "make",
    "cmake 3.13 or newer": "cmake",
    "Python.h": "python3-dev",
    "mpicxx": "libopenmpi-dev",
    "mpirun": "openmpi-bin",
}


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("HOROVOD_CMAKE", raising=False)


@pytest.mark.usefixtures("bare_machine")
def test_one_message_names_every_missing_package(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ToolingError) as caught:
        require(Purpose(python=str(python), mpi=True))
    *lines, command = str(caught.value).splitlines()
    for name, package in NAMES.items():
        assert any(f"  {name}: " in line and f"(Debian package: {package})" in line for line in lines), name
    assert command.endswith(f"apt-get install {' '.join(sorted(NAMES.values()))}")


def test_a_python_that_does_not_exist_is_the_only_thing_reported() -> None:
    with pytest.raises(ToolingError, match=r"^no-such-python is not a program that can be run; give --python"):
        require(Purpose(python="no-such-python", mpi=True))


def test_mpi_and_cuda_are_needed_only_on_request() -> None:
    plain = {need.name for need in needs_of(Purpose(python=sys.executable))}
    assert not plain & {"mpicxx", "mpirun", "nvcc", "nccl.h"}
    assert {"nvcc", "nccl.h"} <= {need.name for need in needs_of(Purpose(python=sys.executable, cuda=True))}


@pytest.mark.usefixtures("bare_machine")
def test_the_compiler_in_cxx_is_the_one_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache my-compiler")
    assert "ccache my-compiler" in prerequisites.report(missing(needs_of(Purpose(python=sys.executable))))


@pytest.mark.parametrize(
    ("version", "recent"),
    [("3.25.1", True), ("4.0.0", True), ("3.13.0", True), ("3.7.2", False), ("2.99", False), ("", False)],
)
def test_cmake_must_be_3_13_or_newer(version: str, recent: bool) -> None:
    assert cmake_is_recent(f"cmake version {version}") is recent


def test_cuda_is_found_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc, nccl = tmp_path / "bin/nvcc", tmp_path / "include/nccl.h"
    for path in (nvcc, nccl):
        path.parent.mkdir()
        path.touch()
    monkeypatch.setenv("HOROVOD_CUDA_HOME", str(tmp_path))
    assert (find_nvcc(), find_nccl()) == (str(nvcc), nccl)


@pytest.mark.usefixtures("bare_machine")
def test_an_optional_thing_that_is_missing_is_a_hint_with_its_command(tmp_path: Path) -> None:
    (hint,) = hints()
    assert "mpirun" in hint
    assert hint.endswith("apt-get install openmpi-bin libopenmpi-dev")
    (tmp_path / "mpirun").touch(mode=0o755)
    assert hints() == []

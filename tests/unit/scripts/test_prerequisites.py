"""What is missing is said all at once, with the package that brings it."""

import sys
from pathlib import Path

import pytest
from tooling.errors import ToolingError
from tooling.prerequisites import (
    Purpose,
    cmake_is_recent,
    find_nccl,
    find_nvcc,
    hints,
    missing,
    needs_of,
    report,
    require,
)


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("HOROVOD_CMAKE", raising=False)


@pytest.mark.usefixtures("bare_machine")
def test_a_bare_machine_is_told_every_package_in_one_message(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ToolingError) as caught:
        require(Purpose(python=str(python), mpi=True))
    message = str(caught.value)
    for name, package in [
        ("python3 -m venv", "python3-venv"),
        ("g++", "g++"),
        ("gcc", "gcc"),
        ("make", "make"),
        ("cmake 3.13 or newer", "cmake"),
        ("Python.h", "python3-dev"),
        ("mpicxx", "libopenmpi-dev"),
        ("mpirun", "openmpi-bin"),
    ]:
        assert f"  {name}: " in message
        assert f"(Debian package: {package})" in message
    assert message.splitlines()[-1].endswith(
        "apt-get install cmake g++ gcc libopenmpi-dev make openmpi-bin python3-dev python3-venv"
    )


def test_a_python_that_is_not_there_is_the_only_thing_said() -> None:
    with pytest.raises(ToolingError, match=r"^no-such-python is no program that can be run; give --python"):
        require(Purpose(python="no-such-python", mpi=True))


def test_a_machine_with_everything_is_told_nothing() -> None:
    needs = [need for need in needs_of(Purpose(python=sys.executable, build=False)) if need.name == "python3 -m venv"]
    assert missing(needs) == []


def test_mpi_and_cuda_are_needed_only_when_asked_for() -> None:
    plain = {need.name for need in needs_of(Purpose(python=sys.executable))}
    assert not plain & {"mpicxx", "mpirun", "nvcc", "nccl.h"}
    assert {"nvcc", "nccl.h"} <= {need.name for need in needs_of(Purpose(python=sys.executable, cuda=True))}


@pytest.mark.usefixtures("bare_machine")
def test_the_compiler_named_in_cxx_is_the_one_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache my-compiler")
    assert "ccache my-compiler" in report(missing(needs_of(Purpose(python=sys.executable))))


@pytest.mark.parametrize(
    ("line", "recent"),
    [
        ("cmake version 3.25.1", True),
        ("cmake version 4.0.0", True),
        ("cmake version 3.13.0", True),
        ("cmake version 3.7.2", False),
        ("cmake version 2.99", False),
        ("", False),
    ],
)
def test_cmake_must_be_3_13_or_newer(line: str, recent: bool) -> None:
    assert cmake_is_recent(line) is recent


def test_cuda_is_found_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "bin/nvcc").touch()
    (tmp_path / "include/nccl.h").touch()
    monkeypatch.setenv("HOROVOD_CUDA_HOME", str(tmp_path))
    assert find_nvcc() == str(tmp_path / "bin/nvcc")
    assert find_nccl() == tmp_path / "include/nccl.h"


@pytest.mark.usefixtures("bare_machine")
def test_what_can_be_done_without_is_a_hint_with_the_command_that_brings_it() -> None:
    (hint,) = hints()
    assert "mpirun" in hint
    assert hint.endswith("apt-get install openmpi-bin libopenmpi-dev")


def test_what_is_there_is_no_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpirun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hints() == []

"""What the machine needs before anything is downloaded or built, and which Debian package brings it."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import ToolingError

MINIMUM_CMAKE = (3, 13)


@dataclass(frozen=True)
class Need:
    """One thing a build needs.

    `present` has no side effects; `package` is the Debian (and Ubuntu) package.
    """

    name: str
    package: str
    why: str
    present: Callable[[], bool]


@dataclass(frozen=True)
class Purpose:
    """What is to be done; options add needs."""

    python: str
    build: bool = True
    mpi: bool = False
    cuda: bool = False


def missing(needs: Iterable[Need]) -> list[Need]:
    """Return the unmet needs, in the same order."""
    return [need for need in needs if not need.present()]


def report(absent: list[Need]) -> str:
    """Return one message with every missing thing, and one command that installs them all."""
    lines = ["Missing on this machine (nothing was downloaded or built):"]
    lines += [f"  {need.name}: {need.why} (Debian package: {need.package})" for need in absent]
    packages = sorted({need.package for need in absent})
    lines.append(f"On Debian or Ubuntu, as root: apt-get install {' '.join(packages)}")
    return "\n".join(lines)


def hints() -> list[str]:
    """Return one line for each missing optional thing, with the command that installs it."""
    return [
        f"Not installed: {need.name} ({need.why}; everything else works without). "
        f"On Debian or Ubuntu, as root: apt-get install {need.package}"
        for need in missing([_command("mpirun", "openmpi-bin libopenmpi-dev", "runs jobs and tests under MPI")])
    ]


def require(purpose: Purpose) -> None:
    """Raise one ToolingError that names everything that `purpose` lacks."""
    if shutil.which(purpose.python) is None:
        raise ToolingError(f"{purpose.python} is not a program that can be run; give --python the path of a Python.")
    absent = missing(needs_of(purpose))
    if absent:
        raise ToolingError(report(absent))


def needs_of(purpose: Purpose) -> list[Need]:
    """List what `purpose` needs."""
    needs = [_venv(purpose.python)]
    if purpose.build:
        needs += _build_needs(purpose.python)
    if purpose.build and purpose.mpi:
        needs += [
            _command("mpicxx", "libopenmpi-dev", "compiles Horovod's MPI part"),
            _command("mpirun", "openmpi-bin", "starts MPI jobs"),
        ]
    if purpose.build and purpose.cuda:
        needs += [
            Need("nvcc", "nvidia-cuda-toolkit", "compiles Horovod's CUDA part", lambda: find_nvcc() is not None),
            Need("nccl.h", "libnccl-dev", "the NCCL headers, for GPU operations", lambda: find_nccl() is not None),
        ]
    return needs


def _venv(python: str) -> Need:
    return Need(
        "python3 -m venv",
        "python3-venv",
        f"makes the virtual environment ({python} lacks venv or ensurepip)",
        lambda: _runs([python, "-I", "-c", "import venv, ensurepip"]),
    )


def _build_needs(python: str) -> list[Need]:
    compiler = os.environ.get("CXX", "g++")
    return [
        _command(compiler, "g++", "compiles Horovod"),
        _command("gcc", "gcc", "tells Horovod the instructions of this processor"),
        _command("make", "make", "runs Horovod's build"),
        Need("cmake 3.13 or newer", "cmake", "configures Horovod's build", _cmake_is_recent),
        Need("Python.h", "python3-dev", f"the headers of {python}", lambda: _has_python_headers(python)),
    ]


def _command(name: str, package: str, why: str) -> Need:
    return Need(name, package, why, lambda: shutil.which(name.split()[0]) is not None)


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _cmake_is_recent() -> bool:
    return cmake_is_recent(first_line([os.environ.get("HOROVOD_CMAKE", "cmake"), "--version"]) or "")


def cmake_is_recent(version_line: str) -> bool:
    """Whether Horovod's build accepts this output of `cmake --version`."""
    found = re.search(r"(\d+)\.(\d+)", version_line)
    return found is not None and (int(found[1]), int(found[2])) >= MINIMUM_CMAKE


def _has_python_headers(python: str) -> bool:
    code = "import os, sysconfig; raise SystemExit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
    return _runs([python, "-I", "-c", code])


def find_nvcc() -> str | None:
    """Return the CUDA compiler Horovod would use, or None."""
    home = os.environ.get("HOROVOD_CUDA_HOME") or os.environ.get("CUDA_HOME")
    places = [Path(home) / "bin"] if home else []
    on_path = shutil.which("nvcc")
    found = [str(place / "nvcc") for place in [*places, Path("/usr/local/cuda/bin")] if (place / "nvcc").exists()]
    return (found[0] if home and found else None) or on_path or (found[0] if found else None)


def find_nccl() -> Path | None:
    """Return the NCCL header Horovod would use, or None."""
    places = [Path(os.environ[name]) for name in ("HOROVOD_NCCL_INCLUDE",) if name in os.environ]
    homes = [os.environ[name] for name in ("HOROVOD_NCCL_HOME", "HOROVOD_CUDA_HOME", "CUDA_HOME") if name in os.environ]
    places += [Path(home) / "include" for home in homes]
    places += [Path("/usr/local/cuda/include"), Path("/usr/include"), Path("/usr/local/include")]
    return next((place / "nccl.h" for place in places if (place / "nccl.h").exists()), None)


def first_line(command: list[str]) -> str | None:
    """Return the first line a command prints, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else None

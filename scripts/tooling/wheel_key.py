"""The facts that a Horovod wheel depends on, and their key. Pure, except `facts_of_this_machine`."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import ToolingError
from .horovod_source import HOROVOD_VERSION, PATCH_VERSION
from .prerequisites import find_nccl, find_nvcc, first_line

# Variables that Horovod's build may see. All others are withheld, so that builds with one key are equal.
BUILD_VARIABLES = (
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH",
    "CMAKE_PREFIX_PATH", "HOROVOD_CMAKE", "HOROVOD_BUILD_ARCH_FLAGS", "HOROVOD_BUILD_CUDA_CC_LIST", "HOROVOD_CUDA_HOME",
    "HOROVOD_NCCL_HOME", "HOROVOD_NCCL_INCLUDE", "HOROVOD_NCCL_LIB", "HOROVOD_NCCL_LINK", "HOROVOD_DEBUG", "CUDA_HOME",
)  # fmt: skip
ARCHITECTURE_FLAGS = ("avx", "f16c", "fma")


@dataclass(frozen=True)
class WheelFacts:
    """Everything that a wheel depends on. Equal values may share one wheel."""

    horovod: str
    patch: int
    torch: str | None
    """Full version with its local tag: 2.13.0+cpu and 2.13.0+cu130 are not interchangeable."""
    tensorflow: str | None
    python_tag: str
    """Implementation, version and ABI, such as cpython-311-x86_64-linux-gnu."""
    compiler: str
    libc: str
    machine: str
    """Architecture, and the processor features that Horovod compiles for."""
    mpi: str | None
    cuda: str | None
    flags: tuple[tuple[str, str], ...]

    def key(self) -> str:
        """Return the key: 16 hexadecimal digits, equal for equal facts only."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self) -> str:
        """Return the facts as indented JSON, for a file beside the wheel."""
        return json.dumps(asdict(self), sort_keys=True, indent=2) + "\n"


NAMES = {"patch": "our changes to its source, version", "python_tag": "Python", "machine": "processor"}
"""Facts whose names say little."""


def differences(had: Mapping[str, object], facts: WheelFacts) -> list[str]:
    """Return in words what of the facts in a `facts.json` differs from these."""
    wanted = json.loads(facts.describe())
    changed = sorted(name for name in wanted if had.get(name) != wanted[name])
    return [f"{NAMES.get(name, name)} {had.get(name) or 'none'}, now {wanted[name] or 'none'}" for name in changed]


def facts_of_this_machine(
    *, torch: str | None, tensorflow: str | None, python_tag: str, mpi: bool, cuda: bool
) -> WheelFacts:
    """Return the facts for a build on this machine."""
    return WheelFacts(
        horovod=HOROVOD_VERSION,
        patch=PATCH_VERSION,
        torch=torch,
        tensorflow=tensorflow,
        python_tag=python_tag,
        compiler=_version_of([*os.environ.get("CXX", "g++").split(), "--version"]),
        libc=" ".join(platform.libc_ver()),
        machine=f"{platform.machine()} {processor_features(_cpuinfo())}".strip(),
        mpi=_version_of(["mpirun", "--version"]) if mpi else None,
        cuda=_cuda() if cuda else None,
        flags=build_flags(os.environ),
    )


def build_flags(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables of an environment that the build may see."""
    return tuple((name, environment[name]) for name in BUILD_VARIABLES if environment.get(name))


def processor_features(cpuinfo: str) -> str:
    """Return the features in /proc/cpuinfo that change the build."""
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.M)
    present = set(found[1].split()) if found else set()
    return " ".join(flag for flag in ARCHITECTURE_FLAGS if flag in present)


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _cuda() -> str:
    nvcc, header = find_nvcc(), find_nccl()
    lines = header.read_text(errors="replace") if header else ""
    nccl = ".".join(re.findall(r"^#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", lines, re.M))
    return f"{_version_of([nvcc or 'nvcc', '--version'], last=True)}, NCCL {nccl}"


def _version_of(command: list[str], *, last: bool = False) -> str:
    # nvcc prints its build number on the last line, other programs on the first.
    line = first_line(["sh", "-c", '"$@" | tail -n 1', "sh", *command]) if last else first_line(command)
    if not line:
        raise ToolingError(f"`{' '.join(command)}` does not run; the key of a cached wheel needs its version.")
    return line

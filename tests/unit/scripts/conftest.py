"""Makes the tooling of scripts/ importable; it is not part of the installed package."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture
def root() -> Path:
    """The root of the tree."""
    return ROOT


@pytest.fixture
def facts() -> object:
    """Facts of a wheel, none of them empty."""
    from tooling.wheel_key import WheelFacts

    return WheelFacts(
        horovod="0.28.1",
        patch=1,
        torch="2.13.0+cpu",
        tensorflow="2.21.0",
        python_tag="cpython-311-x86_64-linux-gnu",
        compiler="g++ (Debian 12.2.0-14) 12.2.0",
        libc="glibc 2.36",
        machine="x86_64 avx f16c fma",
        mpi="mpirun (Open MPI) 4.1.4",
        cuda="Build cuda_12.4, NCCL 2.21.5",
        flags=(("CXXFLAGS", "-O2"),),
    )

"""Horovod's source distribution, and the changes that make it build with a current torch and TensorFlow.

torch 2.1 and later refuse anything below C++17, Horovod 0.28.1 asks for C++14. GCC 13 no longer includes two headers by
chance. Horovod builds for CUDA whenever it finds nvcc beside a CUDA build of torch, which the machine often cannot. And
the packages of TensorFlow 2.16 and later lack headers of XLA that one of its files includes.
"""

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

from .errors import ToolingError

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCH_VERSION = 4
"""Raise it when PATCHES changes, so that the cache builds new wheels."""


@dataclass(frozen=True)
class Patch:
    """One replacement, which must fit exactly once."""

    path: str
    old: str
    new: str


PATCHES = (
    Patch("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    Patch("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    Patch("horovod/common/common.h", "#include <memory>\n", "#include <memory>\n#include <stdexcept>\n"),
    Patch("horovod/common/group_table.h", "#include <queue>\n", "#include <queue>\n#include <string>\n"),
    # CUDA 13 compiles nothing below C++17.
    Patch("horovod/common/ops/cuda/CMakeLists.txt", "set(CMAKE_CUDA_STANDARD 11)", "set(CMAKE_CUDA_STANDARD 17)"),
    Patch(
        "cmake/Modules/FindPytorch.cmake",
        "(CUDA_HOME is not None)",
        "(CUDA_HOME is not None) and 'HOROVOD_GPU_OPERATIONS' in __import__('os').environ",
    ),
    Patch(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        'if (Tensorflow_VERSION VERSION_LESS "2.16")\n'
        '    list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
        "endif()",
    ),
)


def verify(sdist: Path) -> None:
    """Raise ToolingError unless the file is the known source distribution."""
    found = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise ToolingError(
            f"{sdist} is not Horovod {HOROVOD_VERSION} as published: its SHA-256 is {found}, expected {SDIST_SHA256}. "
            "Delete it and try again; if that does not help, your package index has another file."
        )


def unpack(sdist: Path, into: Path) -> Path:
    """Verify, unpack and patch; return the source directory."""
    verify(sdist)
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # the first releases of 3.10 and 3.11 have no filters
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(into)  # noqa: S202 - verified by hash, so every member is known
    source = into / f"horovod-{HOROVOD_VERSION}"
    apply_patches(source)
    return source


def apply_patches(source: Path) -> None:
    """Change the files in place; raise ToolingError, with nothing changed, unless each patch fits exactly once."""
    changed: dict[Path, str] = {}
    for patch in PATCHES:
        path = source / patch.path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text.count(patch.old) != 1:
            raise ToolingError(
                f"{path}: expected `{patch.old}` exactly once, found it {text.count(patch.old)} times; "
                f"this is not the source of Horovod {HOROVOD_VERSION}, or it was patched before."
            )
        changed[path] = text.replace(patch.old, patch.new)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")

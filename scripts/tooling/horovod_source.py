"""Horovod's source distribution, and our changes to it: it builds with a current torch and TensorFlow, stops at the
first operation that fails, and sleeps while nothing happens.

torch 2.1 and later refuse anything below C++17, Horovod 0.28.1 asks for C++14. GCC 13 no longer includes two headers by
chance. Horovod builds for CUDA whenever it finds nvcc beside a CUDA build of torch, which the machine often cannot. And
the packages of TensorFlow 2.16 and later lack headers of XLA that one of its files includes.

Where an operation fails because a peer is lost, Horovod's loop goes on with the next one, while other ranks still wait
in the failed one. Gloo does not number its messages. So those ranks take the next operation's data for what they wait
for: they end by SIGABRT if it is longer, and go on with wrong numbers if it is not. The rank itself may wait for ever:
a message for the failed operation blocks its connection. Nothing outside of the loop can act in between.

Gloo's loop looks up 100 times a second. Whoever takes a socket out of it waits for the next look: in ``hvd.init()`` one
end of each connection, one after the other. Now it is woken.
"""

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

from .errors import ToolingError

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCH_VERSION = 7
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
    # The loop ends after an operation that failed here. What fails on all ranks, such as one whose shapes differ, has a
    # response of its own, or is a std::logic_error, such as for a type that Gloo does not have. A failure of NCCL is
    # one, too: no data of Gloo's are lost then, and its loop goes on as before.
    Patch(
        "horovod/common/operations.cc",
        "  Status status;\n  try {\n",
        "  Status status;\n  bool everywhere = response.response_type() == Response::ERROR;\n  try {\n",
    ),
    Patch(
        "horovod/common/operations.cc",
        "    status = Status::UnknownError(ex.what());\n  }\n",
        "    status = Status::UnknownError(ex.what());\n"
        "    everywhere |= dynamic_cast<const std::logic_error*>(&ex) != nullptr;\n"
        "  }\n",
    ),
    Patch(
        "horovod/common/operations.cc",
        "      e.FinishWithCallback(status);\n    }\n  }\n}\n\n#if HAVE_MPI\n",
        "      e.FinishWithCallback(status);\n    }\n"
        "    if (!status.ok() && !everywhere) {\n"
        '      throw std::runtime_error("an operation has failed: " + status.reason());\n'
        "    }\n"
        "  }\n}\n\n#if HAVE_MPI\n",
    ),
    Patch(
        "horovod/common/operations.cc",
        "          e.FinishWithCallback(status);\n        }\n        return;\n",
        "          e.FinishWithCallback(status);\n        }\n"
        '        throw std::runtime_error("no memory for an operation: " + status.reason());\n',
    ),
    # torch throws where there is no memory, and the operation would never be answered.
    Patch(
        "horovod/torch/adapter_v2.cc",
        "  *tensor = std::make_shared<TorchPersistentBuffer>(device_, size);\n",
        "  try {\n"
        "    *tensor = std::make_shared<TorchPersistentBuffer>(device_, size);\n"
        "  } catch (const std::exception& ex) {\n"
        "    return Status::UnknownError(ex.what());\n"
        "  }\n",
    ),
    # Gloo's loop sleeps until something happens, and is woken by whoever waits for it.
    Patch(
        "third_party/gloo/gloo/transport/tcp/loop.cc",
        "    cv_.notify_all();\n",
        "    {\n      std::lock_guard<std::mutex> guard(m_);\n      cv_.notify_all();\n    }\n",
    ),
    Patch(
        "third_party/gloo/gloo/transport/tcp/loop.cc",
        "epoll_wait(fd_, events.data(), events.size(), 10)",
        "epoll_wait(fd_, events.data(), events.size(), -1)",
    ),
    Patch(
        "third_party/gloo/gloo/transport/tcp/loop.cc",
        "    std::unique_lock<std::mutex> lock(m_);\n",
        "    std::unique_lock<std::mutex> lock(m_);\n    defer([] {});\n",
    ),
    Patch(
        "third_party/gloo/gloo/transport/tcp/loop.cc",
        "    done_ = true;\n",
        "    done_ = true;\n    defer([] {});\n",
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
        text = changed.get(path) or (path.read_text(encoding="utf-8") if path.exists() else "")
        if text.count(patch.old) != 1:
            raise ToolingError(
                f"{path}: expected `{patch.old}` exactly once, found it {text.count(patch.old)} times; "
                f"this is not the source of Horovod {HOROVOD_VERSION}, or it was patched before."
            )
        changed[path] = text.replace(patch.old, patch.new)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")

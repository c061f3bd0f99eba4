"""Limits of memory that are too small, said before commits are taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.worker.commits.memory_limits import held_bytes, levels, memory_warning

GIB = 1 << 30
NO_LIMIT = "9223372036854771712"  # as a cgroup of the first version says it


def root_with(place: Path, cgroup: str, **files: object) -> Path:
    """A file system with a process in ``cgroup``, and files below /sys/fs/cgroup: ``a__b`` for ``a/memory.b``."""
    for name, content in {"proc/self/cgroup": cgroup, **files}.items():
        *folders, last = name.split("__")
        path = place / name if name.startswith("proc") else place.joinpath("sys/fs/cgroup", *folders, f"memory.{last}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return place


LEVELS: dict[str, tuple[str, dict[str, object], list[tuple[int, int]]]] = {
    "of the second version, up to the root": (
        "0::/pods/one/main",
        {
            "pods__one__main__max": "max", "pods__one__main__current": 5, "pods__one__max": 4 * GIB,
            "pods__one__high": "max", "pods__one__current": GIB, "pods__max": 9 * GIB,
        },
        [(4 * GIB, GIB), (9 * GIB, 0)],
    ),
    "a soft one where it is smaller": ("0::/job", {"job__max": 4 * GIB, "job__high": 2 * GIB}, [(2 * GIB, 0)]),
    "page cache is not in use, but memfds are": (
        "0::/",
        {"max": 8 * GIB, "current": 4 * GIB, "stat": f"anon {GIB}\nfile {3 * GIB}\nshmem {GIB}"},
        [(8 * GIB, 2 * GIB)],
    ),
    "of the first version": (
        "5:cpu,cpuacct:/\n4:memory:/docker/abc\n1:name=systemd:/x\n0::/",
        {
            "memory__docker__abc__limit_in_bytes": NO_LIMIT, "memory__docker__limit_in_bytes": 4 * GIB,
            "memory__docker__usage_in_bytes": 3 * GIB,
            "memory__docker__stat": f"cache 1\ntotal_cache {2 * GIB}\ntotal_shmem {GIB}",
        },
        [(4 * GIB, 2 * GIB)],
    ),
    "in a container that sees the host's path": ("4:memory:/docker/a", {"memory__limit_in_bytes": GIB}, [(GIB, 0)]),
    "with a path above the namespace's top": ("0::/../../etc", {"max": GIB}, [(GIB, 0)]),
}  # fmt: skip


@pytest.mark.parametrize("case", LEVELS)
def test_the_limits_of_a_cgroup_and_of_those_above_it_are_found(tmp_path: Path, case: str) -> None:
    cgroup, files, expected = LEVELS[case]
    found = list(levels(root_with(tmp_path, cgroup, **files)))
    assert [(level.limit, level.used) for level in found] == expected
    assert all(Path(level.where).exists() for level in found)


@pytest.mark.parametrize("text", ["", "nonsense", "::::", "0::/", "4:memory:/"])
def test_what_cannot_be_read_limits_nothing(tmp_path: Path, text: str) -> None:
    root = root_with(tmp_path, text, max="what?", current="?")
    assert memory_warning(commit_bytes=1 << 50, root=root, environ={}) is None
    assert memory_warning(commit_bytes=1 << 50, root=root / "nowhere", environ={}) is None


@pytest.mark.parametrize(
    ("limit", "options", "sentence"),
    [
        (3 * GIB, {}, None),
        (
            4 * GIB - 1, {"copies": 3},
            "the memory limit of 3.99 GiB ({root}/sys/fs/cgroup/job/memory.max) is too small: 3 copies of a commit of "
            "1.00 GiB need 3.00 GiB beside the 1.00 GiB in use; raise it to 4.00 GiB at least",
        ),
        (7 * GIB, {"processes": 3}, None),
        (4 * GIB, {"copies": 3}, None),
        (
            7 * GIB, {"processes": 4},
            "the memory limit of 7.00 GiB ({root}/sys/fs/cgroup/job/memory.max) is too small: 2 copies of a commit of "
            "1.00 GiB for each of 4 processes need 8.00 GiB beside the 1.00 GiB in use; raise it to 9.00 GiB at least",
        ),
    ],
)  # fmt: skip
def test_the_level_with_the_least_left_decides_and_the_limit_it_takes_is_said(
    tmp_path: Path, limit: int, options: dict[str, int], sentence: str | None
) -> None:
    root = root_with(tmp_path, "0::/job", job__max=limit, job__current=GIB, max=99 * GIB, current=2 * GIB)
    found = memory_warning(commit_bytes=GIB, **options, root=root, environ={})
    assert found == (sentence and sentence.format(root=root))


def test_commit_memory_that_was_handed_down_is_measured_and_not_asked_for_twice(tmp_path: Path) -> None:
    root = root_with(tmp_path, "0::/", max=3 << 20, current=2 << 20)
    descriptor = os.memfd_create("hvd-test")
    try:
        os.posix_fallocate(descriptor, 0, 1 << 20)
        given = {"HVD_ELASTIC_COMMIT_FDS": f"{descriptor},{descriptor}"}
        assert held_bytes(given) == 2 << 20
        assert held_bytes({"HVD_ELASTIC_COMMIT_FDS": "nonsense,99999"}) == held_bytes({}) == 0
        assert memory_warning(commit_bytes=1 << 20, root=root, environ=given) is None
        assert memory_warning(commit_bytes=1 << 20, root=root, environ={}) is not None
    finally:
        os.close(descriptor)


def test_the_limits_of_this_machine_can_be_read() -> None:
    assert memory_warning(commit_bytes=1) is None

"""Limits of memory that are too small, said before commits are taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_ext.worker.commits.memory_limits import Demand, Level, held_bytes, levels, memory_warning, too_small

GIB = 1 << 30
NO_LIMIT = "9223372036854771712"  # as a cgroup of the first version says it

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Builds a file system's root with files of the given names and texts."""

    def build(**files: dict[str, str]) -> Path:
        for folder in files.values():
            for name, text in folder.items():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text)
        return tmp_path

    return build


def second(path: str, **files: str) -> dict[str, str]:
    return {f"sys/fs/cgroup{path}/{name.replace('_', '.', 1)}": text for name, text in files.items()}


def first(path: str, **files: str) -> dict[str, str]:
    return {f"sys/fs/cgroup/memory{path}/{name.replace('_', '.', 1)}": text for name, text in files.items()}


def test_commits_that_fit_are_no_reason_to_say_anything() -> None:
    assert too_small([Level(4 * GIB, GIB, "x")], Demand(GIB, copies=3)) is None
    assert too_small([], Demand(1 << 50)) is None


def test_one_byte_too_little_is_said_with_the_limit_that_it_takes() -> None:
    sentence = too_small([Level(4 * GIB - 1, GIB, "/x/memory.max")], Demand(GIB, copies=3))
    assert sentence == (
        "the memory limit of 3.99 GiB (/x/memory.max) is too small: 3 copies of a commit of 1.00 GiB need 3.00 GiB "
        "beside the 1.00 GiB in use; raise it to 4.00 GiB at least"
    )


def test_every_process_that_shares_the_limit_counts() -> None:
    level = Level(8 * GIB, GIB, "x")
    assert too_small([level], Demand(GIB, processes=3)) is None
    sentence = too_small([level], Demand(GIB, processes=4))
    assert "2 copies of a commit of 1.00 GiB for each of 4 processes need 8.00 GiB" in sentence
    assert "raise it to 9.00 GiB" in sentence


def test_the_cgroup_with_the_least_left_decides() -> None:
    roomy, crowded = Level(8 * GIB, GIB, "own"), Level(10 * GIB, 9 * GIB, "parent")
    sentence = too_small([roomy, crowded], Demand(GIB))
    assert "(parent)" in sentence


def test_what_a_process_has_in_memory_already_is_not_asked_for_twice() -> None:
    level = Level(3 * GIB, 2 * GIB, "x")  # in use: the two copies that the process before it left
    assert too_small([level], Demand(GIB, copies=2, held_bytes=2 * GIB)) is None
    assert too_small([level], Demand(GIB, copies=2)) is not None


def test_limits_of_the_second_version_are_found_up_to_the_root(tree: Tree) -> None:
    root = tree(
        process={"proc/self/cgroup": "0::/pods/pod1/main\n"},
        own=second("/pods/pod1/main", memory_max="max\n", memory_current="5\n"),
        pod=second("/pods/pod1", memory_max=f"{4 * GIB}\n", memory_high="max", memory_current=f"{GIB}\n"),
        pods=second("/pods", memory_max=f"{9 * GIB}\n"),
    )
    assert [(level.limit, level.used) for level in levels(root)] == [(4 * GIB, GIB), (9 * GIB, 0)]


def test_a_soft_limit_counts_where_it_is_smaller(tree: Tree) -> None:
    root = tree(
        process={"proc/self/cgroup": "0::/job\n"}, own=second("/job", memory_max=f"{4 * GIB}", memory_high=f"{2 * GIB}")
    )
    (level,) = levels(root)
    assert (level.limit, level.where) == (2 * GIB, str(root / "sys/fs/cgroup/job/memory.high"))


def test_page_cache_is_not_in_use_but_memfds_are(tree: Tree) -> None:
    stat = f"anon {GIB}\nfile {3 * GIB}\nshmem {GIB}\n"
    root = tree(
        process={"proc/self/cgroup": "0::/\n"},
        own=second("", memory_max=f"{8 * GIB}", memory_current=f"{4 * GIB}", memory_stat=stat),
    )
    (level,) = levels(root)
    assert level.used == 2 * GIB


def test_limits_of_the_first_version_are_found(tree: Tree) -> None:
    stat = f"cache 1\ntotal_cache {2 * GIB}\ntotal_shmem {GIB}\n"
    root = tree(
        process={"proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/abc\n1:name=systemd:/x\n0::/\n"},
        own=first("/docker/abc", memory_limit_in_bytes=NO_LIMIT),
        parent=first("/docker", memory_limit_in_bytes="4294967296\n", memory_usage_in_bytes=f"{3 * GIB}"),
        stat=first("/docker", memory_stat=stat),
    )
    (level,) = levels(root)
    assert (level.limit, level.used) == (4 * GIB, 2 * GIB)


def test_in_a_container_that_sees_the_hosts_path_the_limit_stands_at_the_top(tree: Tree) -> None:
    root = tree(
        process={"proc/self/cgroup": "4:memory:/docker/abc\n"}, top=first("", memory_limit_in_bytes=str(2 * GIB))
    )
    assert [level.limit for level in levels(root)] == [2 * GIB]


def test_a_path_above_the_namespaces_top_leads_nowhere_else(tree: Tree) -> None:
    root = tree(process={"proc/self/cgroup": "0::/../../etc\n"}, top=second("", memory_max=str(GIB)))
    assert [level.limit for level in levels(root)] == [GIB]


@pytest.mark.parametrize("text", ["", "nonsense\n", "::::\n", "0::/\n", "4:memory:/\n"])
def test_what_cannot_be_read_limits_nothing(tree: Tree, text: str) -> None:
    root = tree(process={"proc/self/cgroup": text}, top=second("", memory_max="what?", memory_current="?"))
    assert memory_warning(commit_bytes=1 << 50, root=root, environ={}) is None
    assert memory_warning(commit_bytes=1 << 50, root=root / "nowhere", environ={}) is None


def test_the_whole_of_it_from_files_to_a_sentence(tree: Tree) -> None:
    root = tree(process={"proc/self/cgroup": "0::/\n"}, own=second("", memory_max=str(GIB), memory_current="0"))
    assert memory_warning(commit_bytes=GIB // 2, copies=2, root=root, environ={}) is None
    sentence = memory_warning(commit_bytes=GIB // 2, copies=3, root=root, environ={})
    assert "raise it to 1.50 GiB" in sentence


def test_commit_memory_that_was_handed_down_is_measured() -> None:
    descriptor = os.memfd_create("hvd-test")
    try:
        os.posix_fallocate(descriptor, 0, 1 << 20)
        assert held_bytes({"HVD_ELASTIC_COMMIT_FDS": f"{descriptor},{descriptor}"}) == 2 << 20
        assert held_bytes({"HVD_ELASTIC_COMMIT_FDS": "nonsense,99999"}) == 0
        assert held_bytes({}) == 0
    finally:
        os.close(descriptor)


def test_the_limits_of_this_machine_can_be_read() -> None:
    assert memory_warning(commit_bytes=1, copies=1) is None

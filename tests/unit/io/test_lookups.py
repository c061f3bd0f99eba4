"""The entries a path leads through, links followed: what a watch has to watch."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_ext.io.file_watch import MAX_LINKS, lookups


def plain(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/hosts").touch()


def configmap(root: Path) -> None:
    (root / "..1").mkdir()
    (root / "..1/hosts").touch()
    (root / "..data").symlink_to("..1")
    (root / "hosts").symlink_to("..data/hosts")


def dots_behind_a_link(root: Path) -> None:
    (root / "x/y").mkdir(parents=True)
    (root / "x/hosts").touch()
    (root / "link").symlink_to("x/y")


@pytest.mark.parametrize(
    ("make", "path", "entries"),
    [
        (plain, "a/hosts", ["a", "a/hosts"]),
        (plain, "a/b/hosts", ["a", "a/b"]),
        (configmap, "hosts", ["hosts", "..data", "..1", "..1/hosts"]),
        (dots_behind_a_link, "link/../hosts", ["link", "x", "x/y", "x/hosts"]),
        (lambda root: (root / "hosts").symlink_to(root / "a"), "hosts", ["hosts", "a"]),
        (lambda root: None, "a\0b", ["a\0b"]),
    ],
)
def test_a_path_leads_through_its_directories_and_links_up_to_what_is_missing(
    tmp_path: Path, make: Callable[[Path], None], path: str, entries: list[str]
) -> None:
    root = tmp_path.resolve()
    make(root)
    assert [str(entry.relative_to(root)) for entry in lookups(root / path) if root in entry.parents] == entries


def test_links_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(lookups(tmp_path / "a")) <= len(tmp_path.parts) + MAX_LINKS

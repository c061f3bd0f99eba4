"""Files that are opened where a user says: links, pipes and files of other users, and shared folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.own_files import make_folder, open_output, write_output

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: run the tests as root")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp."""
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def opened(path: Path, *, new: bool = False) -> None:
    descriptor = open_output(path, option="--journal", new=new)
    os.write(descriptor, b"line\n")
    os.close(descriptor)


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        opened(path)
    line = str(caught.value)
    assert line.startswith("--journal: ")
    assert "\n" not in line
    return line


def test_a_file_is_appended_to_and_its_folders_are_made_for_this_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for _ in range(2):
            opened(tmp_path / "a" / "b" / "file")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b" / "file").read_text() == "line\n" * 2
    assert {path.stat().st_mode & 0o022 for path in tmp_path.rglob("*")} == {0}


@needs_root
def test_in_another_users_folder_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("roots own\n")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "journal").symlink_to(tmp_path / "victim")
    os.chown(theirs, NOBODY, NOBODY)
    assert f"{theirs} belongs to user nobody, who could lead the output elsewhere" in refused(theirs / "journal")
    assert "name another with --journal" in refused(theirs / "new")
    assert (tmp_path / "victim").read_text() == "roots own\n"


@needs_root
def test_in_a_folder_like_tmp_ones_own_files_are_used_and_nothing_of_others(shared: Path) -> None:
    opened(shared / "mine")
    opened(shared / "mine")
    (shared / "theirs").touch()
    os.chown(shared / "theirs", NOBODY, NOBODY)
    assert "belongs to user nobody" in refused(shared / "theirs")
    (shared / "link").symlink_to(shared / "mine")
    os.lchown(shared / "link", NOBODY, NOBODY)
    assert "is a link of another user" in refused(shared / "link")
    (shared / "name").hardlink_to(shared / "mine")
    assert "has 2 names, and others may have given it this one" in refused(shared / "name")
    (shared / "folder").mkdir()
    os.chown(shared / "folder", NOBODY, NOBODY)
    assert "belongs to user nobody" in refused(shared / "folder" / "file")


@needs_root
def test_folders_below_the_named_one_are_checked_too(shared: Path) -> None:
    (shared / "board" / "job").mkdir(parents=True)
    os.chown(shared / "board" / "job", NOBODY, NOBODY)
    with pytest.raises(UsageError, match=r"^--tensorboard: .*/job belongs to user nobody"):
        make_folder(shared / "board" / "job" / "run", option="--tensorboard", below=shared / "board")


def test_a_folder_that_everybody_may_write_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert f"chmod o-w {tmp_path}/open, or name another with --journal" in refused(tmp_path / "open" / "file")


def test_ones_own_link_in_ones_own_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    opened(tmp_path / "link")
    assert (tmp_path / "file").read_text() == "line\n"


def test_a_file_is_written_anew_and_not_through_links_of_others(tmp_path: Path, shared: Path) -> None:
    for text in ("a long text", "short"):
        write_output(tmp_path / "page.html", text, option="--export")
        assert (tmp_path / "page.html").read_text() == text
    with pytest.raises(FileNotFoundError):
        write_output(tmp_path / "none" / "page.html", "", option="--export")
    if os.geteuid() == 0:
        (shared / "page.html").symlink_to(tmp_path / "page.html")
        os.lchown(shared / "page.html", NOBODY, NOBODY)
        with pytest.raises(UsageError, match="is a link of another user"):
            write_output(shared / "page.html", "theirs", option="--export")
    assert (tmp_path / "page.html").read_text() == "short"


@needs_root
def test_one_file_is_written_into_a_folder_of_another_user_but_not_over_a_file_of_theirs(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    write_output(theirs / "page.html", "mine", option="--export")
    assert (theirs / "page.html").read_text() == "mine"
    (theirs / "other.html").write_text("theirs")
    os.chown(theirs / "other.html", NOBODY, NOBODY)
    (tmp_path / "file").write_text("kept")
    (theirs / "link.html").symlink_to(tmp_path / "file")
    os.lchown(theirs / "link.html", NOBODY, NOBODY)
    for name in ("other.html", "link.html"):
        with pytest.raises(UsageError):
            write_output(theirs / name, "mine", option="--export")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_new_file_takes_the_place_of_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("link", "new"):
        opened(tmp_path / "new", new=True) if name == "new" else None
        with pytest.raises(FileExistsError):
            opened(tmp_path / name, new=True)
    assert not (tmp_path / "file").exists()


def test_devices_are_written_and_a_pipe_without_a_reader_is_an_error_at_once(tmp_path: Path) -> None:
    opened(Path("/dev/null"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        opened(tmp_path / "pipe")

"""When a file that others rewrite is whole, and what is said when it is not."""

import os
import threading
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.io import file_watch
from hvd_elastic_ext.io.file_watch import MAX_BYTES, RELEASE, SETTLE, SETTLE_EMPTY, BeingWritten, read_text


def no_pause(seconds: float) -> None:
    pytest.fail(f"paused for {seconds} s although the kernel knows who has the file open")


@pytest.fixture
def mute_kernel(monkeypatch):
    """The kernel says nothing about writers, as on network file systems."""
    monkeypatch.setattr(file_watch, "_lease", lambda fd: None)


@pytest.mark.parametrize("text", ["a:1\n", ""])
def test_a_file_nobody_writes_is_read_at_once(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_text(text)
    assert read_text(path, pause=no_pause) == text


@pytest.mark.parametrize("so_far", ["", "a:1\n", "a:1\nb:"])
def test_a_file_somebody_has_open_for_writing_is_never_taken(tmp_path, so_far):
    path = tmp_path / "hosts"
    with path.open("w") as writer:
        writer.write(so_far)
        writer.flush()
        with pytest.raises(BeingWritten, match="being written"):
            read_text(path)
    assert read_text(path, pause=no_pause) == so_far


def test_a_file_whose_writer_has_just_closed_it_is_asked_about_again(tmp_path):
    path = tmp_path / "hosts"
    writer = path.open("w")
    writer.write("a:1\n")
    writer.flush()
    pauses: list[float] = []

    def closes(seconds: float) -> None:  # the kernel lets go a moment after it has said so
        pauses.append(seconds)
        if len(pauses) == 2:
            writer.close()

    assert read_text(path, pause=closes) == "a:1\n"
    assert pauses == [*RELEASE[:2]]


def test_other_readers_do_not_count_as_writers(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a:1\n")
    with path.open():
        assert read_text(path, pause=no_pause) == "a:1\n"


def test_asking_the_kernel_leaves_no_lease_that_would_hold_up_a_writer(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a:1\n")
    assert read_text(path) == "a:1\n"
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # EWOULDBLOCK if a lease were left


@pytest.mark.parametrize(("text", "settle"), [("a:1\n", SETTLE), ("", SETTLE_EMPTY)])
def test_where_the_kernel_is_mute_a_file_must_stand_still_and_an_empty_one_for_longer(
    tmp_path, mute_kernel, text, settle
):
    path = tmp_path / "hosts"
    path.write_text(text)
    pauses: list[float] = []
    assert read_text(path, pause=pauses.append) == text
    assert pauses == [settle]


def test_where_the_kernel_is_mute_a_file_that_changes_meanwhile_is_not_taken(tmp_path, mute_kernel):
    path = tmp_path / "hosts"
    path.touch()
    with pytest.raises(BeingWritten, match="stands still"):
        read_text(path, pause=lambda _: path.write_text("a:1\n") and None)


def too_long(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "hosts: does not exist$"),
        (lambda path: path.mkdir(), "is a directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("hosts"), "too many levels"),
        (lambda path: path.write_bytes(b"a:1\nb:1\n\xff\xfe:1\n"), "line 3 is not UTF-8"),
        (too_long, f"has {MAX_BYTES + 1} bytes"),
    ],
    ids=["missing", "a directory", "a pipe", "links in a circle", "not UTF-8", "far too long"],
)
def test_what_cannot_be_read_is_unavailable_with_the_reason(tmp_path, make, why):
    make(tmp_path / "hosts")
    with pytest.raises(SourceUnavailable, match=why):
        read_text(tmp_path / "hosts")


def test_a_path_with_a_null_byte_is_unavailable():
    with pytest.raises(SourceUnavailable, match="is not a path"):
        read_text(Path("/tmp/a\0b"))


@pytest.fixture
def ordinary_user():
    """Root may read everything, so be somebody else for the length of the test."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_a_file_one_may_not_read_is_unavailable(tmp_path, request):
    path = tmp_path / "hosts"
    path.write_text("a:1\n")
    path.chmod(0)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(SourceUnavailable, match="may not be read by this user"):
        read_text(path)


def test_a_writer_that_truncates_in_a_loop_is_never_read_half_way(tmp_path):
    path = tmp_path / "hosts"
    texts = {"a:1\nb:1\n", "c:1\n" * 500}
    path.write_text("c:1\n" * 500)
    done = threading.Event()

    def rewrite() -> None:
        while not done.is_set():
            for text in texts:
                path.write_text(text)

    writer = threading.Thread(target=rewrite, daemon=True)
    writer.start()
    taken = refused = 0
    try:
        while taken < 300 and refused < 200_000:
            try:
                assert read_text(path) in texts
                taken += 1
            except BeingWritten:
                refused += 1
    finally:
        done.set()
        writer.join()
    assert taken > 0

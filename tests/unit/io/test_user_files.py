"""A file that a user has named is read if it is a regular file or a given input, and only up to a bound."""

from __future__ import annotations

import errno
import gzip
import os
import socket
import threading

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io import user_files

EXPECTED = "give a text file"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for descriptor in ends:
        os.close(descriptor)


def _text(path, **bounds):
    return user_files.read_text(path, expected=EXPECTED, **bounds)


def test_a_text_is_read_without_its_byte_order_mark_and_with_plain_ends_of_lines(path):
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert _text(path) == "a\nb\nc\n"


def test_a_fifo_is_refused_at_once_and_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(UsageError, match=r"file: cannot be read: it is a pipe \(FIFO\), not a regular file; give"):
        _text(path)
    with pytest.raises(OSError, match="not a regular file"):
        user_files.open_regular(path)


def test_a_device_a_folder_and_a_socket_are_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, what in (("/dev/zero", "a device"), (tmp_path, "a folder"), (tmp_path / "socket", "")):
            with pytest.raises(UsageError, match=f"cannot be read: .*{what}"):
                _text(name)


def test_a_file_over_its_bound_is_refused_and_one_at_the_bound_is_read(path):
    path.write_bytes(b"x" * 100)
    assert len(_text(path, most=100)) == 100
    with pytest.raises(UsageError, match="it has more than 99 bytes; give a text file"):
        _text(path, most=99)
    with pytest.raises(OSError, match="more than") as found:
        user_files.read_regular(path, most=99)
    assert found.value.errno == errno.EFBIG


def test_a_gzip_bomb_is_refused_without_unpacking_more_than_the_bound(tmp_path):
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(UsageError, match="it has more than 2 MiB"):
        _text(bomb, most=2 << 20)


@pytest.mark.parametrize(
    "damage", [b"", b"plain", b"\x1f\x8b\x08\0\0\0\0\0\0\3damaged", gzip.compress(b"a" * 99, mtime=0)[:-9]]
)
def test_damaged_gzip_is_one_line(tmp_path, damage):
    path = tmp_path / "a.gz"
    path.write_bytes(damage)
    if not damage:
        assert _text(path) == ""
        return
    with pytest.raises(UsageError, match=r"a\.gz: cannot be read: it is not gzip, or is damaged; give a text file"):
        _text(path)


def test_bytes_that_are_no_text_name_the_line(path):
    path.write_bytes(b"a\nb\xff\n")
    with pytest.raises(UsageError, match="line 2 is not UTF-8 text"):
        _text(path)


def test_a_missing_file_and_a_name_with_a_nul_are_one_line(path):
    with pytest.raises(UsageError, match="No such file or directory; give a text file"):
        _text(path)
    with pytest.raises(UsageError, match="cannot be read: embedded null byte"):
        _text("a\0b")


def test_a_pipe_that_the_shell_has_opened_is_read_to_its_end(pipe):
    out, into = os.dup(pipe[0]), os.dup(pipe[1])

    def fill():
        with os.fdopen(into, "wb") as file:
            file.write(b"time,count\n" * 20_000)  # more than a pipe holds

    writer = threading.Thread(target=fill)
    writer.start()
    os.close(pipe[1])
    try:
        assert len(_text(f"/dev/fd/{out}")) == 220_000
    finally:
        writer.join()
        os.close(out)
        os.dup2(pipe[0], pipe[1])  # the fixture closes both


def test_a_pipe_without_a_byte_ends_at_its_deadline_and_one_over_the_bound_is_refused(pipe):
    name = f"/dev/fd/{pipe[0]}"
    with pytest.raises(OSError, match="no byte came for") as found:
        user_files.read_given(name, silent_s=0.05)
    assert found.value.errno == errno.ETIMEDOUT
    os.write(pipe[1], b"x" * 100)
    with pytest.raises(OSError, match="more than 50 bytes"):
        user_files.read_given(name, most=50)

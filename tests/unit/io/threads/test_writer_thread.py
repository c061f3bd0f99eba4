"""What is written where a reader stands still, is slow, went away or knows few letters. Pipes are real ones."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from hvd_elastic_ext.io.threads import writer_thread
from hvd_elastic_ext.io.threads.writer_thread import Appended, Outlet, Stream, write_message
from tests.support.waiting import wait_until

LINE = "x" * 999 + "\n"


class Pipe:
    """Standard output as of a process in a pipe, and its reader."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def stream(self, encoding: str = "utf-8") -> TextIO:
        return open(self.writer, "w", encoding=encoding, closefd=False)

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            if descriptor >= 0:
                os.close(descriptor)

    def hang_up(self) -> None:
        os.close(self.reader)
        self.reader = -1

    def read(self, size: int) -> str:
        """So many bytes, or what comes until the end of one line, if that is later."""
        data = b""
        while len(data) < size or not data.endswith(b"\n"):
            data += os.read(self.reader, 1 << 16)
        return data.decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    before = set(threading.enumerate())
    made = Pipe()
    yield made
    made.close()  # whoever is stuck in it is not any more
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with much to do a thread may have to wait for its turn, which is not standing still."""
    monkeypatch.setattr(writer_thread, "STALL_S", 30.0)
    monkeypatch.setattr(writer_thread, "CLOSE_S", 60.0)


def test_everything_comes_out_in_its_order(pipe: Pipe) -> None:
    out, sink = Outlet("out"), Stream(pipe.stream())
    lines = [f"{number}\n" for number in range(2000)]
    for line in lines:
        out.put(sink, line)
    assert out.close() == 0
    assert pipe.read(len("".join(lines))) == "".join(lines)


def test_who_stands_still_holds_nobody_up_and_what_finds_no_room_is_counted_and_said(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    out, sink = Outlet("out", room=200_000), Stream(pipe.stream())
    for number in range(1000):
        out.put(sink, f"{number:03}{LINE}")
    assert caplog.messages == ["out is not read: output is dropped until there is room again"]
    kept = pipe.read(150_000)
    wait_until(lambda: len(caplog.messages) == 2, what="room again", timeout=60)
    lost = int(caplog.messages[1].removeprefix("out is read again; ").split()[0])
    assert 600 < lost < 900  # a pipe has 64 KiB
    out.put(sink, "after the gap\n")
    while "after the gap" not in kept:
        kept += pipe.read(1)
    assert [int(line[:3]) for line in kept.splitlines()[:-1]] == list(range(1000 - lost))
    assert out.close() == 0


def test_closing_gives_up_on_who_stands_still_and_counts_what_is_lost(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "STALL_S", 0.05)
    out, sink = Outlet("out"), Stream(pipe.stream())
    for _ in range(200):
        out.put(sink, LINE)
    lost = out.close()
    assert 100 < lost <= 200  # a pipe has 64 KiB
    assert out.close() == 0
    out.put(sink, "too late\n")


def test_closing_waits_for_a_reader_that_is_slow_but_gets_on(pipe: Pipe) -> None:
    out, sink = Outlet("out"), Stream(pipe.stream())
    for _ in range(300):
        out.put(sink, LINE)
    read: list[str] = []
    reader = threading.Timer(0.1, lambda: read.append(pipe.read(300_000)))
    reader.start()
    assert out.close() == 0
    reader.join()
    assert read == [LINE * 300]


def test_a_process_ends_although_nobody_reads_its_last_words(pipe: Pipe) -> None:
    script = (
        "import sys\n"
        "from hvd_elastic_ext.io.threads import writer_thread as outlet\n"
        "outlet.STALL_S = 0.1\n"
        "out = outlet.Outlet('out')\n"
        "out.put(outlet.Stream(sys.stdout), 'x' * 1_000_000)\n"
        "assert out.close() == 1\n"
        "outlet.write_message(sys.stderr, 'y' * 1_000_000)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], stdout=pipe.writer, stderr=pipe.writer, timeout=60, check=False
    )
    assert ended.returncode == 0


def test_a_descriptor_that_does_not_want_to_wait_gets_everything_all_the_same(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    os.set_blocking(pipe.writer, False)
    out, sink = Outlet("out"), Stream(pipe.stream())
    for _ in range(300):
        out.put(sink, LINE)
    assert pipe.read(300_000) == LINE * 300
    assert out.close() == 0
    assert not caplog.records


@pytest.mark.parametrize(
    ("encoding", "shown"), [("latin-1", "é \\u20ac \\ufffd\n"), ("ascii", "\\xe9 \\u20ac \\ufffd\n")]
)
def test_letters_that_a_terminal_does_not_know_are_shown_as_numbers(
    pipe: Pipe, encoding: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    for stream in (pipe.stream(encoding), memory):
        out = Outlet("out")
        out.put(Stream(stream), "é € \ufffd\n")
        assert out.close() == 0
    assert os.read(pipe.reader, 100).decode(encoding) == shown
    memory.seek(0)
    assert memory.read() == shown
    assert not caplog.records


def test_a_reader_that_went_away_is_told_of_once_and_others_go_on(
    pipe: Pipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe.hang_up()
    out, gone, file = Outlet("out"), Stream(pipe.stream()), Appended(tmp_path / "new" / "file", option="--x")
    for _ in range(3):
        out.put(gone, "to nobody\n")
        out.put(file, "to a file\n")
    assert out.close() == 0
    assert (tmp_path / "new" / "file").read_text() == "to a file\n" * 3
    (said,) = caplog.messages
    assert "Broken pipe" in said


def test_a_full_disk_is_told_of_once_and_closing_does_not_fail(caplog: pytest.LogCaptureFixture) -> None:
    out, full = Outlet("out"), Appended(Path("/dev/full"), option="--x")
    for _ in range(3):
        out.put(full, LINE)
    assert out.close() == 0
    (said,) = caplog.messages
    assert said == "/dev/full cannot be written (No space left on device); the job goes on, and lines are lost"


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "hangs")
    out, there = Outlet("out"), Appended(tmp_path / "there", option="--x")
    out.put(Appended(tmp_path / "hangs", option="--x"), "one\n")
    out.put(there, "two\n")
    assert out.close() == 0
    assert (tmp_path / "there").read_text() == "two\n"
    (said,) = caplog.messages
    assert f"{tmp_path}/hangs cannot be written" in said


def test_last_words_are_written_when_somebody_reads_them(pipe: Pipe) -> None:
    write_message(None, "to nobody\n")  # a process that was started without a stream
    write_message(pipe.stream(), "the end\n")
    assert pipe.read(8) == "the end\n"

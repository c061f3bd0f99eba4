"""Lines of training processes: made complete, and written to the right place."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.pace import WAIT
from hvd_elastic_ext.io.output_files import INDEX, parse_mark
from hvd_elastic_ext.io.threads import writer_thread
from hvd_elastic_ext.io.wait_line import ERASE
from hvd_elastic_ext.launcher.job import output
from hvd_elastic_ext.launcher.job.output import MAX_BAR_BYTES, MAX_LINE_BYTES, Console, LineAssembler, Log, Outlets
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread may have to wait for the CPU. That must not count as a blocked stream."""
    monkeypatch.setattr(writer_thread, "STALL_S", 30.0)
    monkeypatch.setattr(writer_thread, "CLOSE_S", 60.0)


@pytest.fixture
def stuck() -> Iterator[int]:
    """A stream without a reader. It is read at the end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    before = set(threading.enumerate())
    yield writer
    os.close(reader)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    os.close(writer)


def test_the_terminal_gets_time_and_label_and_the_file_does_not(tmp_path: Path) -> None:
    terminal = io.StringIO()
    with Outlets(terminal, io.StringIO()) as outlets:
        console = Console(outlets, tmp_path, timestamps=True, rank=lambda _: 0)
        console.take(ProcessId(Seat("a", 0), 1), "stdout", "hello\n")
    stamp, rest = terminal.getvalue().split("[", 1)
    assert rest == "0]<stdout>:hello\n"
    assert len(stamp.split()) == 5  # day, month, date, time, year
    assert (tmp_path / "rank.0" / "stdout").read_text() == "hello\n"


def test_a_stream_that_nobody_reads_holds_up_neither_the_other_nor_files_nor_who_speaks(
    stuck: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    with open(stuck, "w", closefd=False) as stdout, Outlets(stdout, said) as outlets:
        console = Console(outlets, tmp_path, timestamps=False, rank=lambda life: life.seat.slot)
        life = ProcessId(Seat("a", 0), 1)
        for stream in ("stdout", "stderr"):
            console.take(life, stream, f"to {stream}\n")
        console.close()
        wait_until(lambda: said.getvalue() == "[0]<stderr>:to stderr\n", what="what is said to who reads", timeout=60)
        for stream in ("stdout", "stderr"):
            file = tmp_path / "rank.0" / stream
            wait_until(lambda file=file: file.exists() and file.read_text(), what=f"a line in {file}", timeout=60)
            assert file.read_text() == f"to {stream}\n"
        monkeypatch.setattr(writer_thread, "STALL_S", 0.2)
    assert [message.split(": ")[1] for message in caplog.messages] == ["the last 1 lines of output were dropped"]


def test_what_goes_to_one_place_over_two_streams_keeps_its_order() -> None:
    reader, writer = os.pipe()
    with open(reader) as received, open(writer, "w") as one, open(os.dup(writer), "w") as other:
        with Outlets(one, other) as outlets:
            for number in range(500):
                (outlets.stdout if number % 2 else outlets.stderr)(f"{number}\n")
        assert [int(received.readline()) for _ in range(500)] == list(range(500))


def test_the_launchers_own_log_goes_the_way_of_its_standard_error() -> None:
    said = io.StringIO()
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "a %s", ("word",), None)
    with Outlets(io.StringIO(), said) as outlets:
        outlets.stderr("before\n")
        Log(outlets.stderr).emit(record)
    assert said.getvalue() == "before\na word\n"


def test_letters_that_a_terminal_does_not_know_raise_nothing(caplog: pytest.LogCaptureFixture) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with Outlets(terminal, io.StringIO()) as outlets:
        console = Console(outlets, None, timestamps=False, rank=lambda _: 0)
        for text in ("caf\u00e9 \u20ac\n", "caf\udce9\n"):
            console.take(ProcessId(Seat("a", 0), 1), "stdout", text)
    terminal.seek(0)
    assert terminal.read() == "[0]<stdout>:caf\u00e9 \\u20ac\n[0]<stdout>:caf\\ufffd\n"
    assert not caplog.records


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))), st.integers(1, 5))
def test_lines_come_out_whole_however_they_were_cut(texts: list[str], size: int) -> None:
    data = "".join(f"{text}\n" for text in texts).encode()
    pieces = [data[at : at + size].decode("utf-8", "surrogateescape") for at in range(0, len(data), size)]
    assembler = LineAssembler()
    assert [line for piece in pieces for line in assembler.feed(piece)] == [f"{text}\n" for text in texts]
    assert assembler.flush() == []


def test_a_line_that_never_ended_is_ended_at_the_end() -> None:
    assembler = LineAssembler()
    assert assembler.feed("one\nprompt> ") == ["one\n"]
    assert assembler.flush() == ["prompt> \n"]
    assert assembler.flush() == []


@pytest.mark.parametrize("end", ["its process and what that started end", "its host is lost"])
def test_what_a_process_leaves_unfinished_goes_to_the_rank_that_it_had(end: str, tmp_path: Path) -> None:
    terminal, ranks, life = io.StringIO(), {0: 3}, ProcessId(Seat("a", 0), 1)
    with Outlets(terminal, io.StringIO()) as outlets:
        console = Console(outlets, tmp_path, timestamps=False, rank=lambda life: ranks.get(life.seat.slot))
        console.take(life, "stdout", "a line\nno newline at the end")
        expected = "a line\nno newline at the end\n"
        if end == "its host is lost":
            ranks.clear()
            console.close()
        else:
            console.exited(life)
            ranks.clear()  # as the driver does after an exit
            console.take(life, "stdout", ", said its child\nand more\nnot all")
            console.ended(life)
            expected = "a line\nno newline at the end, said its child\nand more\nnot all\n"
    assert (tmp_path / "rank.3" / "stdout").read_text() == expected
    assert terminal.getvalue() == "".join(f"[3]<stdout>:{line}\n" for line in expected.splitlines())
    assert not (tmp_path / "rank.a[0]").exists()


def test_the_next_process_of_a_slot_and_one_without_a_rank_are_no_longer_that_rank(tmp_path: Path) -> None:
    terminal, ranks = io.StringIO(), {1: 3}
    with Outlets(terminal, io.StringIO()) as outlets:
        console = Console(outlets, None, timestamps=False, rank=lambda life: ranks.get(life.number))
        one, next_one = (ProcessId(Seat("a", 0), number) for number in (1, 2))
        console.exited(one)
        console.ended(one)
        ranks.clear()
        console.take(next_one, "stdout", "hello\n")
        console.take(one, "stdout", "numbered anew\n")
    assert terminal.getvalue() == "[a slot 0]<stdout>:hello\n[a slot 0]<stdout>:numbered anew\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (["10%\r20%\r30%\n"], ["\r10%", "\r20%", "\r30%\n"]),
        (["\r10%", "\r20%", "\rdone\nnext\n"], ["\r10%", "\r20%", "\rdone\n", "next\n"]),
        (["\r1", "0%"], ["\r1", "\r10%"]),
        (["10%\r", "20%\r"], ["\r10%", "\r20%"]),
        (["a line\r\n", "\r\n"], ["a line\r\n", "\r\n"]),
        (["\r\u2588".encode()[:2].decode("utf-8", "surrogateescape")], ["\r\ufffd"]),
    ],
    ids=["at once", "each state", "in pieces", "returns at the end", "line ends of Windows", "half a letter"],
)
def test_a_progress_bar_is_shown_as_it_comes(written: list[str], shown: list[str]) -> None:
    assembler = LineAssembler()
    assert [piece for text in written for piece in assembler.feed(text)] == shown


def test_a_long_line_after_a_return_waits_for_its_end() -> None:
    assembler = LineAssembler()
    assert sum(len(piece) for _ in range(10 * MAX_BAR_BYTES) for piece in assembler.feed("\r" * (_ == 0) + "x")) < 1e6
    assert assembler.feed("\n") == ["\r" + "x" * 10 * MAX_BAR_BYTES + "\n"]


class CountedPieces:
    """Finds the pieces of a text, and counts how much text it reads."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.read = 0

    def findall(self, data: bytes) -> list[bytes]:
        self.read += len(data)
        return self._pattern.findall(data)


@pytest.mark.parametrize(
    ("begin", "piece", "count"),
    [("\r", "." * 50, 4000), ("\r" * 10, ".", 4000), ("", "\r", 4000), ("\r", "x\r\r", 4000)],
)
def test_text_that_comes_in_small_pieces_is_read_once(
    begin: str, piece: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each piece that follows: after one carriage return, 4,000 pieces took seconds of the launcher."""
    counted = CountedPieces(output.PIECE)
    monkeypatch.setattr(output, "PIECE", counted)
    assembler = LineAssembler()
    shown = sum(map(len, assembler.feed(begin)))
    for _ in range(count):
        shown += sum(map(len, assembler.feed(piece)))
    size = len(begin) + count * len(piece)
    assert counted.read <= 4 * size
    assert shown <= 4 * size + MAX_BAR_BYTES**2  # a short state of a bar is shown again as it grows


def test_a_million_short_lines_are_written_in_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece costs the launcher's loop time, in which training waits behind a full pipe."""
    puts: list[int] = []
    real = writer_thread.Outlet.put
    monkeypatch.setattr(
        writer_thread.Outlet, "put", lambda self, sink, text: (puts.append(len(text)), real(self, sink, text))
    )
    text = "".join(f"{number}\n" for number in range(50_000))
    said = io.StringIO()
    with Outlets(said, io.StringIO()) as outlets:
        console = Console(outlets, tmp_path, timestamps=False, rank=lambda _: 3)
        for at in range(0, len(text), 65536):
            console.take(ProcessId(Seat("a", 0), 1), "stdout", text[at : at + 65536])
    assert len(puts) <= 2 * (len(text) // 65536 + 1)
    assert (tmp_path / "rank.3" / "stdout").read_text() == text
    assert said.getvalue() == "".join(f"[3]<stdout>:{number}\n" for number in range(50_000))


def test_after_a_full_disk_the_files_of_output_go_on_with_a_mark_and_the_index_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full, real, writes = threading.Event(), writer_thread._write_all, list[bytes]()

    def limited(descriptor: int, data: bytes) -> None:
        if full.is_set() and Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path):
            real(descriptor, data[:3])  # as a full disk does: a part is there
            writes.append(data)
            raise OSError(28, "No space left on device")
        real(descriptor, data)

    monkeypatch.setattr(writer_thread, "_write_all", limited)
    lives = [ProcessId(Seat("a", 0), 1), ProcessId(Seat("b", 0), 1)]
    file = tmp_path / "rank.0" / "stdout"
    with Outlets(io.StringIO(), io.StringIO()) as outlets:
        console = Console(outlets, tmp_path, timestamps=False, rank=lambda _: 0)
        console.take(lives[0], "stdout", "one\n")
        wait_until(lambda: file.exists() and file.read_text() == "one\n", what="the first line", timeout=60)
        full.set()
        console.take(lives[0], "stdout", "lost 1\nlost 2\n")
        wait_until(lambda: writes, what="a write that fails", timeout=60)
        wait_until(lambda: caplog.messages, what="a line about it", timeout=60)
        full.clear()
        console.take(lives[1], "stdout", "two\n")
    assert file.read_text() == "one\nlos\n[hvd-elastic: 2 lines (14 characters) are missing here]\ntwo\n"
    marks = [parse_mark(line) for line in (tmp_path / INDEX).read_text().splitlines()]
    assert [(mark.host, mark.at) for mark in marks if mark is not None] == [("a", 0), ("b", 7)]
    assert [line.partition(" (")[0] for line in caplog.messages] == [
        f"{file} cannot be written",
        f"{file} can be written again",
    ]


def test_no_line_of_the_log_or_of_a_transport_drives_a_terminal() -> None:
    said = io.StringIO()
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "it answers %s", ("\x1b[2J\x9b1m\rOK",), None)
    with Outlets(io.StringIO(), said) as outlets:
        Log(outlets.stderr).emit(record)
        Console(outlets, None, timestamps=False, rank=lambda _: 0).remark("h1", "\x1b]0;owned\x07 Welcome\n")
    assert said.getvalue() == "it answers \\e[2J\\x9b1m\\rOK\n[h1]<stderr>:\\e]0;owned\\x07 Welcome\n"


def test_a_line_begins_below_a_bar_and_a_bar_in_its_own_line() -> None:
    terminal = io.StringIO()
    with Outlets(terminal, io.StringIO()) as outlets:
        console = Console(outlets, None, timestamps=False, rank=lambda life: life.seat.slot)
        for slot, text in ((0, "\r10%"), (0, "\r20%"), (1, "a line\n"), (0, "\r30%\n"), (1, "a line\n")):
            console.take(ProcessId(Seat("a", slot), 1), "stdout", text)
    expected = "\r[0]<stdout>:10%\r[0]<stdout>:20%\n[1]<stdout>:a line\n\r[0]<stdout>:30%\n[1]<stdout>:a line\n"
    assert terminal.getvalue() == expected


def test_all_lines_have_one_form_of_prefix() -> None:
    """Defect: "[localhost[0]]<stderr>" beside "[0]<stderr>"."""
    terminal, rank = io.StringIO(), {0: 5}
    with Outlets(terminal, terminal) as outlets:
        console = Console(outlets, None, timestamps=False, rank=lambda life: rank.get(life.seat.slot))
        for slot in (0, 1):
            console.take(ProcessId(Seat("a", slot), 1), "stderr", "x\n")
        console.remark("a", "its agent")
    assert terminal.getvalue() == "[5]<stderr>:x\n[a slot 1]<stderr>:x\n[a]<stderr>:its agent\n"


def test_a_line_without_end_does_not_fill_memory() -> None:
    assembler = LineAssembler()
    lines = [line for _ in range(3 * MAX_LINE_BYTES // 65536) for line in assembler.feed("x" * 65536)]
    lines += assembler.flush()
    assert len(lines) in (3, 4)
    assert sum(line.count("x") for line in lines) == 3 * MAX_LINE_BYTES


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert LineAssembler().feed("caf\udce9\n") == ["caf\ufffd\n"]


def test_where_no_file_can_be_made_the_terminal_still_shows_everything_and_that_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rank.1").write_text("in the way of a folder")
    with Outlets(sys.stdout, sys.stderr) as outlets:
        console = Console(outlets, tmp_path, timestamps=False, rank=lambda life: life.seat.slot)
        for slot in (0, 1, 1):
            console.take(ProcessId(Seat("a", slot), 1), "stdout", f"a line of {slot}\n")
        console.close()
    assert capsys.readouterr().out.splitlines() == [
        "[0]<stdout>:a line of 0",
        *["[1]<stdout>:a line of 1"] * 2,
    ]
    assert (tmp_path / "rank.0" / "stdout").read_text() == "a line of 0\n"
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path}/rank.1/stdout cannot be written (File exists)")


def test_the_status_stands_below_all_lines_of_a_terminal() -> None:
    with screen() as shown, shown.outlets as outlets:
        for write, text in (
            (outlets.status, "world 1"),
            (outlets.stdout, "a line\n"),
            (outlets.status, "world 2"),
            (outlets.status, "world 2"),
            (outlets.stdout, "\r10%"),
            (outlets.status, "hidden by the bar"),
            (outlets.stderr, "a line\n"),
            (outlets.status, "world 3"),
            (outlets.status, ""),
        ):
            write(text)
    assert shown.text == f"{ERASE}world 1{ERASE}a line\n{ERASE}world 2{ERASE}\r10%\na line\n{ERASE}world 3{ERASE}"


class Screen:
    """A terminal; ``text`` is known at the end."""

    outlets: Outlets
    text = ""


@contextlib.contextmanager
def screen() -> Iterator[Screen]:
    reader, writer = os.openpty()
    tty.setraw(writer)
    found = Screen()
    with open(writer, "w") as terminal:
        found.outlets = Outlets(terminal, terminal)
        yield found
    with open(reader, "rb", buffering=0) as output, contextlib.suppress(OSError):  # EIO: all is read
        while more := output.read(4096):
            found.text += more.decode()


@pytest.fixture(autouse=True)
def xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def _log(outlets: Outlets) -> Callable[[str, dict[str, bool] | None], None]:
    handler = Log(outlets.stderr, without_waits=lambda: outlets.shows_status)
    return lambda text, extra=None: handler.handle(
        logging.makeLogRecord({"msg": text, "levelno": logging.INFO, **(extra or {})})
    )


def test_a_wait_is_one_line_of_a_terminal_that_changes_and_no_line_of_the_log() -> None:
    with screen() as shown, shown.outlets as outlets:
        log = _log(outlets)
        log("waiting: for a; at most 9 s more", WAIT)  # before there is a status line
        outlets.status("waiting: for a; at most 8 s more")
        log("waiting: for a; at most 8 s more", WAIT)
        log("b has ended", None)
        log("waiting: for a; at most 7 s more", WAIT)  # the status comes again within a second
        outlets.status("waiting: for a; at most 7 s more")
        outlets.status("")
        log("waiting: for the end; at most 3 s more", WAIT)
    assert shown.text == (
        f"waiting: for a; at most 9 s more\n{ERASE}waiting: for a; at most 8 s more{ERASE}b has ended\n"
        f"{ERASE}waiting: for a; at most 7 s more{ERASE}waiting: for the end; at most 3 s more\n"
    )


def test_a_wait_is_a_line_of_the_log_below_a_progress_bar_which_hides_the_status() -> None:
    with screen() as shown, shown.outlets as outlets:
        log = _log(outlets)
        outlets.status("world 1")
        outlets.stdout("\r10%")
        outlets.status("world 1")
        log("no step for 4 s", WAIT)
    assert shown.text == f"{ERASE}world 1{ERASE}\r10%\nno step for 4 s\n"


def test_a_dumb_terminal_gets_waits_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with screen() as shown, shown.outlets as outlets:
        outlets.status("world 1")
        _log(outlets)("waiting: for a", WAIT)
    assert shown.text == "waiting: for a\n"


def test_a_pipe_gets_no_status() -> None:
    shown = io.StringIO()
    with Outlets(shown, shown) as outlets:
        outlets.status("world 1")
    assert shown.getvalue() == ""

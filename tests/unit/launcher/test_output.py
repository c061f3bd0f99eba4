"""Lines of training processes: made whole, and written where they belong."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.console import Console
from hvd_elastic_ext.launcher.output import LONGEST_LINE, Assembler, Output
from hvd_elastic_ext.launcher.rendezvous import Life, Seat


class Broken(io.StringIO):
    """A terminal that went away."""

    tried = 0

    def write(self, text: str, /) -> int:
        self.tried += 1
        raise BrokenPipeError(32, "Broken pipe")


@pytest.fixture
def file(tmp_path: Path) -> TextIO:
    return (tmp_path / "stdout").open("a", encoding="utf-8")


def test_the_terminal_gets_labels_and_the_file_does_not(file: TextIO) -> None:
    terminal = io.StringIO()
    output = Output(terminal, file)
    output.write("hello\n", label="[0]<stdout>:")
    output.close()
    assert terminal.getvalue() == "[0]<stdout>:hello\n"
    assert Path(file.name).read_text() == "hello\n"
    assert file.closed
    assert not terminal.closed


def test_timestamps_come_before_labels() -> None:
    terminal = io.StringIO()
    Output(terminal, timestamps=True).write("hello\n", label="[0]<stdout>:")
    stamp, rest = terminal.getvalue().split("[", 1)
    assert rest == "0]<stdout>:hello\n"
    assert len(stamp.split()) == 5  # day, month, date, time, year


def test_a_reader_that_went_away_is_written_to_once_and_the_file_goes_on(
    file: TextIO, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Broken()
    output = Output(terminal, file)
    for line in ("one\n", "two\n"):
        output.write(line, label="")
    output.close()
    assert Path(file.name).read_text() == "one\ntwo\n"
    assert terminal.tried == 1
    assert len(caplog.records) == 1
    assert "Broken pipe" in caplog.text


def test_a_full_disk_stops_neither_the_terminal_nor_the_closing(caplog: pytest.LogCaptureFixture) -> None:
    terminal = io.StringIO()
    full = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115 - the output closes it
    output = Output(terminal, full)
    for line in ("one\n", "two\n"):
        output.write(line, label="")
    output.close()
    assert terminal.getvalue() == "one\ntwo\n"
    assert "No space left on device" in caplog.text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))), st.integers(1, 5))
def test_lines_come_out_whole_however_they_were_cut(texts: list[str], size: int) -> None:
    data = "".join(f"{text}\n" for text in texts).encode()
    pieces = [data[at : at + size].decode("utf-8", "surrogateescape") for at in range(0, len(data), size)]
    assembler = Assembler()
    assert [line for piece in pieces for line in assembler.feed(piece)] == [f"{text}\n" for text in texts]
    assert assembler.flush() == []


def test_a_line_that_never_ended_is_ended_at_the_end() -> None:
    assembler = Assembler()
    assert assembler.feed("one\nprompt> ") == ["one\n"]
    assert assembler.flush() == ["prompt> \n"]
    assert assembler.flush() == []


def test_a_progress_bar_without_line_ends_is_one_line() -> None:
    assert Assembler().feed("10%\r20%\r30%\n") == ["10%\r20%\r30%\n"]


def test_a_line_without_end_does_not_fill_memory() -> None:
    assembler = Assembler()
    lines = [line for _ in range(3 * LONGEST_LINE // 65536) for line in assembler.feed("x" * 65536)]
    lines += assembler.flush()
    assert len(lines) in (3, 4)
    assert sum(line.count("x") for line in lines) == 3 * LONGEST_LINE


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert Assembler().feed("caf\udce9\n") == ["caf\ufffd\n"]


def test_where_no_file_can_be_made_the_terminal_still_shows_everything_and_that_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rank.1").write_text("in the way of a folder")
    console = Console(tmp_path, timestamps=False, rank=lambda life: life.seat.slot)
    for slot in (0, 1, 1):
        console.take(Life(Seat("a", slot), 1), "stdout", f"a line of {slot}\n")
    console.close()
    assert capsys.readouterr().out.splitlines() == [
        "[0]<stdout>:a line of 0",
        *["[1]<stdout>:a line of 1"] * 2,
    ]
    assert (tmp_path / "rank.0" / "stdout").read_text() == "a line of 0\n"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"no output of workers goes to {tmp_path}/rank.1/stdout: ")

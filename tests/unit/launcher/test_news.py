"""What an agent says, as the launcher reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.agents import LONGEST_LINE, Assembler, parse_news


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


def test_news_are_told_from_what_a_login_shell_says() -> None:
    assert parse_news(b'{"event":"started","slot":0,"pid":1}\n') == {"event": "started", "slot": 0, "pid": 1}


@pytest.mark.parametrize("line", [b"Welcome to h1\n", b"[1]\n", b"{}\n", b'{"event":1}\n', b"\xff\n", b"\n"])
def test_what_is_no_news_is_not_taken_for_any(line: bytes) -> None:
    assert parse_news(line) is None

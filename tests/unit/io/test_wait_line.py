"""What a command that waits shows: one line in place on a terminal, else lines at a pace."""

from __future__ import annotations

import io

import pytest

from hvd_elastic_ext.io.wait_line import ERASE, WaitLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, seconds: int) -> str:
    now = 0.0
    line = WaitLine(stream, now=lambda: now)
    for second in range(seconds + 1):
        now = float(second)
        line.show(f"waits for {second} s")
    line.clear()
    return stream.getvalue()


def test_where_no_terminal_reads_lines_come_at_the_pace() -> None:
    told = shown(io.StringIO(), 600).splitlines()
    assert told[:4] == ["waits for 4 s", "waits for 10 s", "waits for 30 s", "waits for 60 s"]
    assert len(told) == 13


def test_on_a_terminal_one_line_changes_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = shown(Terminal(), 600)
    assert "\n" not in text
    assert text.startswith(f"{ERASE}waits for 4 s{ERASE}waits for 5 s")
    assert text.endswith(f"waits for 600 s{ERASE}")


def test_on_a_narrow_terminal_the_end_of_a_wait_stays_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the line stood still, as the seconds that change were cut off."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    end = "; at most 595 s more, then the job fails (--elastic-timeout)"
    WaitLine(stream, first_s=0.0).show(f"waiting: -np 2 is more than all hosts have (slots: 1); add a host{end}")
    assert stream.getvalue() == f"{ERASE}waiting: -np 2 is …{end}"


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = shown(Terminal(), 600)
    assert ERASE not in text
    assert len(text.splitlines()) == 13


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_stream_that_nobody_reads_is_not_an_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    tries: list[str] = []

    class Unread(Terminal):
        def write(self, text: str) -> int:
            tries.append(text)
            raise error

    line = WaitLine(Unread(), first_s=0.0)
    line.show("waits")
    line.clear()
    assert tries == [f"{ERASE}waits", ERASE]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["no terminal", "terminal"])
def test_the_words_of_a_server_cannot_drive_a_terminal_or_begin_another_line(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    line = WaitLine(stream, first_s=0.0)
    line.show("waiting for a: Pending; \x1b[2J\nno\x07 room\r")
    assert "waiting for a: Pending; \\e[2J no\\x07 room" in stream.getvalue()
    assert "\x1b" not in stream.getvalue().removeprefix(ERASE)

"""Tables for people."""

from __future__ import annotations

import io
import re

import pytest

from hvd_elastic_ext.io import tables

PATH = "/" + "folder/" * 30 + "000001-000004-000000120-3f2a"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_path_in_the_last_column_is_shown_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    tables.show(stream, ("event", "note"), [(("sealed", PATH), "")])
    lines = [line for line in re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines() if line.strip()]
    assert max(map(len, lines)) <= 60
    assert PATH in "".join(line.split()[-1] for line in lines)


def test_in_a_pipe_nothing_is_wrapped_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    stream = io.StringIO()
    rows = [(("sealed", PATH), "red"), (("notice", "b 日本 [x]"), "")]
    tables.show(stream, ("event", "note"), rows, summary="words " * 60)
    lines = stream.getvalue().splitlines()
    assert any(line.endswith(PATH) for line in lines)
    assert lines[-1] == ("words " * 60).rstrip()
    assert all(line == line.rstrip() for line in lines)
    assert len([line for line in lines if line]) == 5


def test_a_cell_does_not_command_the_terminal() -> None:
    assert tables.plain(("WHY",), [("a\x1b]0;x\x07\x9bb",)]) == "WHY\na?]0;x??b\n"

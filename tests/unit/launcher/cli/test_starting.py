"""Lines while the launcher's own modules load."""

from __future__ import annotations

import io
import threading

import pytest

from hvd_elastic_ext.io.wait_line import ERASE
from hvd_elastic_ext.launcher.cli import starting


class Told(io.StringIO):
    """A stream that notes when something is written."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.terminal, self.written = terminal, threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        self.written.set()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(starting, "FIRST_S", 0.01)
    monkeypatch.setattr(starting, "LOOK_S", 0.01)


LINE = "hvd-elastic: starting for 0 s: loading its modules; then the hosts are read"


def test_a_slow_start_is_said() -> None:
    told = Told()
    with starting.startup_lines(told, ["-np", "1", "train.py"]):
        assert told.written.wait(30)
    assert told.getvalue() == f"{LINE}\n"


def test_on_a_terminal_it_is_gone_before_another_line_comes() -> None:
    told = Told(terminal=True)
    with starting.startup_lines(told, ["-np", "1", "train.py"]):
        assert told.written.wait(30)
        starting.stop()
        assert told.getvalue() == f"{ERASE}{LINE}{ERASE}"


def test_once_the_job_speaks_nothing_more_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "FIRST_S", 600.0)
    told = Told()
    with starting.startup_lines(told, ["train.py"]):
        [thread] = [each for each in threading.enumerate() if each.name == "starting"]
        starting.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert told.getvalue() == ""


def test_with_q_nothing_is_said() -> None:
    with starting.startup_lines(io.StringIO(), ["-q", "train.py"]):
        assert not [each for each in threading.enumerate() if each.name == "starting"]

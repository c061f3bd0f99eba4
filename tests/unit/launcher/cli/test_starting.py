"""Lines while the launcher's own modules load."""

from __future__ import annotations

import io
import threading

import pytest

from hvd_elastic_ext.launcher.cli import starting


class Told(io.StringIO):
    """A stream that notes when the second line is written."""

    def __init__(self) -> None:
        super().__init__()
        self.second = threading.Event()

    def flush(self) -> None:
        if self.getvalue().count("\n") >= 2:
            self.second.set()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "FIRST_S", 0.01)
    monkeypatch.setattr(starting, "AGAIN_S", 0.02)


def test_a_slow_start_is_said_and_said_again() -> None:
    told = Told()
    with starting.startup_lines(told, ["-np", "1", "train.py"]):
        assert told.second.wait(30)
    assert told.getvalue().startswith("hvd-elastic: starting for 0 s: loading its modules; then the hosts are read\n")


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

"""A script written for Alibaba's SDK, run with no edit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched

SAMPLE = Path(__file__).with_name("kubeai_sample.py")


@pytest.fixture
def notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which all hosts of the job look for notices."""
    monkeypatch.setenv("HVD_ELASTIC_NOTICE_FILE", str(tmp_path / "notice"))
    return tmp_path / "notice"


def batch(launched: Launched, rank: int = 0) -> int:
    """How far a rank has come."""
    file = launched.directory / f"batch-{rank}"
    return int(text) if file.exists() and (text := file.read_text()) else 0


@pytest.mark.soak
def test_a_reclaimed_job_saves_is_preempted_and_continues_from_there(launched: Launched, notice: Path) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    # No --min-np: else the first host to see the notice leaves alone, and rank 0 of the world that is left saves again.
    with launched.run("-np", "2", sys.executable, SAMPLE, "40") as process:
        launched.wait_for("some batches", lambda: batch(launched) > 5 and batch(launched, 1) > 5)
        fresh = notice.with_suffix(".new")
        fresh.write_text("spot instance is to be released")
        fresh.rename(notice)
        launched.wait_for("both to end", lambda: len(launched.events("exited")) == 2)
        notice.unlink()
        assert process.wait(90) == 0, process.output
    both = launched.events("exited")[:2]
    assert [(record.get("code"), record.get("cause")) for record in both] == [(255, "preempted")] * 2
    assert "check_alive() was False" in both[0].get("reason")
    assert not launched.events("struck", "fenced")
    (saved,) = map(int, re.findall(r"saved (\d+)", process.stdout))
    assert saved > 5
    assert re.findall(r"resumed (\d+)", process.stdout) == [str(saved)]
    assert process.stdout.count("done 40") == 2


@pytest.mark.soak
def test_one_host_of_two_is_reclaimed_and_the_other_continues(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run("-np", "2", "--min-np", "1", sys.executable, SAMPLE, "40") as process:
        launched.wait_for("some batches", lambda: batch(launched) > 5 and batch(launched, 1) > 5)
        launched.set_hosts("localhost:1")
        assert process.wait(90) == 0, process.output
    assert not launched.events("struck", "fenced")
    (gone,) = (record for record in launched.events("exited") if record.get("host") == "127.0.0.1")
    assert gone.get("cause") in ("preempted", "told to leave")
    assert [record.get("cause") for record in launched.events("resized")] == ["start", "hosts removed"]
    assert process.stdout.count("done 40") == 1
    assert "saved" not in process.stdout, "rank 0 stays, and others save nothing"

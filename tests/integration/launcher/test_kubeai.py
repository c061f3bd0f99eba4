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


def test_a_reclaimed_job_saves_is_preempted_goes_on_from_what_it_saved_and_with_one_host_of_two(
    launched: Launched, notice: Path
) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    with launched.run("-np", "2", "--min-np", "1", sys.executable, SAMPLE, "150") as process:
        launched.wait_for("some batches", lambda: batch(launched) > 20 and batch(launched, 1) > 20)
        fresh = notice.with_suffix(".new")
        fresh.write_text("spot instance is to be released")
        fresh.rename(notice)
        launched.wait_for("both to end", lambda: len(launched.events("exited")) == 2)
        notice.unlink()
        (saved,) = map(int, re.findall(r"saved (\d+)", process.stdout))
        launched.wait_for("more batches", lambda: batch(launched) > saved + 5 and batch(launched, 1) > saved + 5)
        launched.set_hosts("localhost:1")
        assert process.wait(90) == 0, process.output
    *both, gone, _ = launched.events("exited")
    assert [(record.get("code"), record.get("cause")) for record in both] == [(255, "preempted")] * 2
    assert "check_alive() was False" in both[0].get("reason")
    assert gone.get("host") == "127.0.0.1"
    assert gone.get("cause") in ("preempted", "told to leave")
    assert not launched.events("struck", "fenced")
    assert saved > 20
    assert re.findall(r"resumed (\d+)", process.stdout) == [str(saved)]
    assert process.stdout.count("saved") == 1, "rank 0 stays when one host is reclaimed, and others save nothing"
    assert [record.get("cause") for record in launched.events("resized")][-1] == "hosts removed"
    assert process.stdout.count("done 150") == 1

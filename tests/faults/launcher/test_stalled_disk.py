"""A real launcher whose journal is on a disk that hangs: training, host changes, lines and its end do not wait."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support import stalled_filesystem
from tests.support.processes import run_process
from tests.support.waiting import wait_until

SLEEPER = "import time\nprint('begun', flush=True)\ntime.sleep(600)"


def test_a_journal_on_a_disk_that_hangs_stops_neither_lines_nor_host_changes_nor_the_end(tmp_path: Path) -> None:
    if (missing := stalled_filesystem.missing()) is not None:
        pytest.skip(missing)
    mounted, backing, stall = tmp_path / "mounted", tmp_path / "backing", tmp_path / "stall"
    mounted.mkdir()
    backing.touch()
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    within = [sys.executable, "-m", "tests.support.stalled_filesystem", *map(str, (mounted, backing, stall))]
    job = [sys.executable, "-m", "hvd_elastic_ext.cli", "run", "-np", "1", "--max-np", "1", "--hosts-file", str(hosts)]
    where = ["--state-dir", str(tmp_path / "state"), "--journal", str(mounted / stalled_filesystem.NAME)]
    with run_process([*within, *job, *where, sys.executable, "-c", SLEEPER]) as process:
        wait_until(lambda: "begun" in process.stdout, what="a process", timeout=90, show=lambda: process.output)
        wait_until(lambda: '"spawned"' in backing.read_text(), what="the journal", show=lambda: process.output)
        stall.touch()
        for slots in (2, 3):
            fresh = tmp_path / "fresh"
            fresh.write_text(f"localhost:{slots}\n")
            os.replace(fresh, hosts)
            line = f"hosts: localhost:{slots}"
            wait_until(lambda line=line: line in process.stderr, what=line, timeout=20, show=lambda: process.output)
        wait_until(stall.with_name("stall.begun").exists, what="a write that waits", show=lambda: process.output)
        begun = time.monotonic()
        process.popen.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM, process.output
        assert time.monotonic() - begun < 40
        assert "lines are not written: the disk does not answer" in process.stderr
        assert "is blocked" not in process.stderr, "a host was blamed"
        stall.unlink()
    assert "localhost:2" not in backing.read_text()


SLOW_DISK = """
import os, runpy, sys, time
from hvd_elastic_ext.launcher.folder import handover
stall, handover.CLOSE_S = sys.argv.pop(1), 1.0
real = os.fsync
def fsync(descriptor):
    while os.path.exists(stall):
        time.sleep(0.02)
    real(descriptor)
os.fsync = fsync
runpy.run_module("hvd_elastic_ext.cli", run_name="__main__", alter_sys=True)
"""


def command(tmp_path: Path, stall: Path) -> list[str]:
    """A launcher in whose folder nothing becomes durable while ``stall`` exists."""
    own = ["run", "-np", "1", "-H", "localhost:1", "--state-dir", str(tmp_path / "state")]
    return [sys.executable, "-c", SLOW_DISK, str(stall), *own, sys.executable, "-c", SLEEPER]


def test_nothing_starts_before_the_launchers_number_is_durable_and_a_signal_ends_that_wait(tmp_path: Path) -> None:
    stall = tmp_path / "stall"
    stall.touch()
    with run_process(command(tmp_path, stall)) as process:
        line = "waiting: for the disk of"
        wait_until(lambda: line in process.stderr, what=line, timeout=60, show=lambda: process.output)
        assert "this launcher's number must be there before anything starts" in process.stderr
        process.popen.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM, process.output
    assert "begun" not in process.stdout


def test_a_state_folder_on_a_disk_that_hangs_does_not_keep_the_job_from_its_end(tmp_path: Path) -> None:
    stall = tmp_path / "stall"
    with run_process(command(tmp_path, stall)) as process:
        wait_until(lambda: "begun" in process.stdout, what="a process", timeout=90, show=lambda: process.output)
        stall.touch()
        process.popen.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM, process.output
        stall.unlink()
    assert "is not written after 1 s: the disk does not answer" in process.stderr

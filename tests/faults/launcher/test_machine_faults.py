"""Faults of the machine itself: a step of its wall clock, a full disk, few cores."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from hvd_elastic_ext.core.events import EVENTS
from tests.faults.launcher.stepping_jobs import ANY_ENGINE, Training, training

__all__ = ["training"]

BESIDE = "127.0.0.1"
THIRD = "127.0.0.2"
HOUR = 3600


def stepped_clock(directory: Path) -> tuple[Path, dict[str, str]]:
    """Return a file whose eight bytes step the wall clock of all processes with this environment, in C++ and Python."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    library, step = directory / "stepclock.so", directory / "step"
    source = Path(__file__).with_name("stepclock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True, timeout=60)
    step.write_bytes(struct.pack("q", 0))
    return step, {"LD_PRELOAD": str(library), "STEPCLOCK": str(step)}


@ANY_ENGINE
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_wall_clock_that_is_stepped_back_changes_nothing(training: Training) -> None:
    step, env = stepped_clock(training.directory)
    training.set_hosts("localhost:1", f"{BESIDE}:1")
    with training.train("-np", "2", "--heartbeat-timeout", "8", env=env):
        training.wait_for_size(2)
        with step.open("r+b") as file:
            file.write(struct.pack("q", -HOUR))
        training.wait_for_size(2, more=60)
        for host in ("localhost", BESIDE):  # the clocks of every worker and of the launcher
            walls = [shown.wall for shown in training.shown() if shown.host == host]
            assert min(after - before for before, after in pairwise(walls)) < -HOUR + 60
        times = [record.t for record in training.events("stepped")]
        assert min(after - before for before, after in pairwise(times)) < -HOUR + 60
        assert training.causes() == ["start"]
        training.set_hosts("localhost:1", f"{BESIDE}:1", f"{THIRD}:1")
        training.wait_for_size(3)
        training.check_uninterrupted("localhost")
        os.kill(training.pids()[THIRD], signal.SIGKILL)
        training.wait_for("its return", lambda: training.causes()[-1] == "cooldown over")
        training.wait_for_size(3)
        training.set_hosts("localhost:1")
        training.wait_for_size(1)
    training.check_steps()
    assert training.causes() == ["start", "hosts added", "worker failed", "cooldown over", "hosts removed"]
    back = next(record for record in training.events("resized") if record.get("cause") == "cooldown over")
    assert back.mono - training.last("struck").mono > 2  # the cooldown is not shorter


SIZE = "size=4m,nr_inodes=64"


def small_disk(folder: Path) -> tuple[str, ...]:
    """Return the words that make a command see a small disk of its own at ``folder``."""
    folder.mkdir()
    mount = f'mount -t tmpfs -o mode=0700,{SIZE} tmpfs "$0" && exec "$@"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run([*unshare, "sh", "-c", mount, folder, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace of its own: run as root, or allow unprivileged user namespaces")
    return (*unshare, "sh", "-c", mount, str(folder))


def fill(disk: Path) -> list[Path]:
    """Use up all space and all inodes of a disk. Return the files for that."""
    made = [disk / "filler"]
    with made[0].open("wb", buffering=0) as file:
        while not _no_space(lambda: file.write(bytes(1024))):
            pass
    while not _no_space((name := disk / f"filler{len(made)}").touch):
        made.append(name)
    return made


def _no_space(act: Callable[[], object]) -> bool:
    """Whether the call fails because there is no space."""
    try:
        act()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return True
    return False


@ANY_ENGINE
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_full_disk_under_journal_state_and_output_stops_nothing(training: Training) -> None:
    folder = training.directory / "disk"
    wrap = small_disk(folder)
    training.journal = folder / "journal.jsonl"
    options = ("--state-dir", folder / "state", "--output-filename", folder / "output")
    training.set_hosts("localhost:1", f"{BESIDE}:1")
    with training.train("-np", "2", *options, wrap=wrap) as process:
        disk = Path(f"/proc/{process.pid}/root{folder}")  # as the job sees it
        training.journal = disk / "journal.jsonl"
        training.wait_for_size(2)
        filled = fill(disk)
        saved = (disk / "state" / "state.json").read_text()  # it was saved every second before
        training.set_hosts("localhost:1", f"{BESIDE}:1", f"{THIRD}:1")
        training.wait_for_size(3)
        assert training.causes() == ["start"]  # the line of the other change could not be written
        assert (disk / "state" / "state.json").read_text() == saved
        for path in filled:
            path.unlink()
        training.wait_for("lines after a gap", lambda: [r for r in training.events(*EVENTS) if r.get("dropped")])
        training.set_hosts("localhost:1")
        training.wait_for_size(1)
        training.wait_for("a journal that goes on", lambda: training.causes() == ["start", "hosts removed"])
        training.wait_for("a state that goes on", lambda: (disk / "state" / "state.json").read_text() != saved)
        training.check_steps()
        training.check_uninterrupted("localhost")
        assert process.returncode is None
    for name in ("the journal", "state.json"):
        assert len(re.findall(rf"{name}.* cannot be written \(No space left on device\)", process.stderr)) == 1, name
        assert len(re.findall(rf"{name}.* can be written again", process.stderr)) == 1, name
    assert process.stderr.count("output of workers is dropped") <= 6
    assert "Traceback" not in process.stderr


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_of_eight_ranks_on_one_machine_one_leaves_and_seven_continue(training: Training) -> None:
    training.set_hosts("localhost:7", f"{BESIDE}:1")
    with training.train("-np", "8", "--heartbeat-timeout", "60", env={"PAUSE_S": "0.2"}):
        training.wait_for_size(8, timeout=240)
        training.set_hosts("localhost:7")
        training.wait_for_size(7, timeout=120)
        assert training.causes() == ["start", "hosts removed"]
        training.wait_for("its end", lambda: training.events("exited"))
        assert training.last("exited").get("cause") == "told to leave"
        assert training.last("resized").get("hosts") == {"localhost": 7}
    training.check_steps()
    assert not training.events("rolled_back")

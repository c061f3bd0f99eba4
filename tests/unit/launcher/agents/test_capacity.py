"""The cost of many hosts for the launcher."""

from __future__ import annotations

import io
import math
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.io.output_files import INDEX
from hvd_elastic_ext.launcher.agents.capacity import (
    far_too_few_files,
    files_for,
    heartbeat_pace,
    raise_file_limit,
    too_few_files,
)
from hvd_elastic_ext.launcher.job.output import Console, Outlets
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat


@pytest.mark.parametrize(
    ("asked", "timeout", "hosts", "told"),
    [
        (1.0, 10.0, 1, 1.0),
        (1.0, 10.0, 128, 1.0),
        (1.0, 10.0, 256, 2.0),
        (1.0, 10.0, 512, 10 / 3),  # three heartbeats still fit into the timeout
        (1.0, 60.0, 512, 4.0),
        (1.0, 3.0, 4096, 1.0),
        (5.0, 10.0, 512, 5.0),  # never more often than requested
    ],
)
def test_the_more_hosts_the_more_seldom_each_of_them_beats(
    asked: float, timeout: float, hosts: int, told: float
) -> None:
    assert heartbeat_pace(asked, timeout_s=timeout, hosts=hosts).heartbeat_s == pytest.approx(told)


@pytest.mark.parametrize(
    ("hosts", "progress", "every"),
    [
        (1, None, 1),
        (32, None, 1),
        (33, None, 2),
        (512, None, 5),  # 154 heartbeats a second
        (10_000, None, 5),  # one heartbeat in five is full, at least
        (512, 600.0, 5),
        (512, 25.0, 2),  # three full ones still fit into the time in which there must be progress
        (512, 1.0, 1),
        (512, math.inf, 5),  # --progress-timeout inf
    ],
)
def test_the_more_hosts_the_fewer_heartbeats_have_figures(hosts: int, progress: float | None, every: int) -> None:
    assert heartbeat_pace(1.0, timeout_s=10.0, hosts=hosts, progress_timeout_s=progress).figures_every == every


def test_too_few_files_are_said_with_the_remedy() -> None:
    assert too_few_files(10, 1024) is None
    said = too_few_files(512, 1024)
    assert said is not None
    assert "1024 files and 512 hosts need about 3328" in said
    assert "ulimit -Hn 3328" in said


def test_files_that_output_goes_to_count_for_each_slot() -> None:
    said = too_few_files(300, 4096, written=2400)
    assert said is not None
    assert "300 hosts and the output of 2400 slots (--output-filename) need about 11656" in said
    assert too_few_files(300, 4096) is None
    assert too_few_files(300, 11656, written=2400) is None


def test_a_slots_output_by_rank_and_by_seat_is_no_more_files_than_are_counted(tmp_path: Path) -> None:
    ranks = {ProcessId(Seat("h", 0), 1): None}
    outlets = Outlets(io.StringIO(), io.StringIO())
    console = Console(outlets, tmp_path, timestamps=False, rank=lambda life: ranks[life])
    for rank in (None, 0):
        ranks[ProcessId(Seat("h", 0), 1)] = rank
        for stream in ("stdout", "stderr"):
            console.take(ProcessId(Seat("h", 0), 1), stream, "x\n")
    outlets.close()
    # All slots share one index file, which is one of the launcher's own files.
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != INDEX]
    assert len(written) == files_for(1, written=1) - files_for(1)


@pytest.fixture
def low_limit() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, before[1]), before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_the_kernel_lets_us(low_limit: int) -> None:
    reached = raise_file_limit(512)
    assert reached == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert reached >= min(low_limit, files_for(512))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == low_limit


def test_a_limit_with_which_nothing_works_is_said_with_the_number_that_does() -> None:
    assert far_too_few_files(46, hosts=1, slots_here=3) is None
    assert far_too_few_files(32, hosts=1, slots_here=2) == (
        "this process may open 32 files (ulimit -n), and this job needs at least 46; "
        "raise the hard limit (ulimit -Hn 46 or more) and start again"
    )
    said = far_too_few_files(64, hosts=1, slots_here=8)  # the agent of this machine inherits the limit
    assert said is not None
    assert "needs at least 96" in said


@pytest.mark.parametrize(
    ("command", "who", "need"),
    [
        (("hvd_elastic_ext.cli", "run", "-np", "1", "true"), "this job", 46),
        (("discover.cli", "--source", "static", "--hosts", "a:1"), "hvd-discover", 48),
    ],
    ids=["launcher", "daemon"],
)
def test_with_a_hard_limit_of_32_files_a_program_ends_with_one_line(
    command: tuple[str, ...], who: str, need: int, tmp_path: Path
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

    words = [sys.executable, "-m", *command]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        words, cwd=tmp_path, env=env, preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "starting for" not in line]
    assert f"this process may open 32 files (ulimit -n), and {who} needs at least {need}; raise the hard limit" in line
    assert not list(tmp_path.iterdir())

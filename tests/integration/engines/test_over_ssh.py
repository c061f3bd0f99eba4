"""``--engine mpirun`` on hosts that are reached over ssh: namespaces with an sshd each."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.comms.conftest import without_mpi
from tests.integration.engines.conftest import LEARNER
from tests.integration.launcher.conftest import records
from tests.integration.launcher.test_over_ssh import command
from tests.support.nethosts import NetHosts
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(without_mpi() is not None, reason=str(without_mpi())),
    pytest.mark.soak,
    pytest.mark.timeout(600),
]


def test_mpirun_starts_each_rank_on_the_host_of_its_slot(nethosts: Callable[[int], NetHosts], tmp_path: Path) -> None:
    hosts = nethosts(2)
    (tmp_path / "hosts").write_text("h1:1\nh2:1\n")
    times = ["--settle", "1", "--heartbeat-timeout", "60", "--blacklist-cooldown-range", "600", "600"]
    words = ["--engine", "mpirun", "-np", "2", "--min-np", "1", *times, sys.executable, LEARNER, "1000000"]
    with hosts.launcher.popen(command(hosts, tmp_path, *words), cwd=tmp_path, env={"HVD_ELASTIC_SAMPLE": "0"}) as job:

        def of_size(size: int) -> list[tuple[str, str]]:
            return re.findall(rf"<stdout>:goes on count=(\d+) size={size} pid=(\d+)", job.output)

        wait_until(lambda: len(of_size(2)) == 2, what="a world of 2", timeout=240, show=lambda: job.output)
        there = {name: set(hosts[name].pids()) for name in ("h1", "h2")}
        pids = [int(pid) for _, pid in of_size(2)]
        assert sorted(name for name in there for pid in pids if pid in there[name]) == ["h1", "h2"]
        steps = tmp_path / "journal.jsonl"
        wait_until(lambda: len(records(steps, "committed")) > 2, what="commits", timeout=60, show=lambda: job.output)
        os.kill(next(pid for pid in pids if pid in there["h2"]), signal.SIGKILL)
        wait_until(lambda: of_size(1), what="a world of 1", timeout=240, show=lambda: job.output)
        assert int(of_size(1)[0][0]) > 0
        (tmp_path / "stop.new").write_text("0")  # one rank alone may end at once
        (tmp_path / "stop.new").rename(tmp_path / "stop")
        assert job.wait(120) == 0, job.output
    assert [record.get("subject") for record in records(steps, "struck")] == ["slot 0 of h2"]

"""What a killed launcher left running, and the next one: real processes, over ssh too."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.folder import state_folder
from tests.integration.launcher.conftest import COUNTER, Launched, records
from tests.integration.launcher.test_over_ssh import command, directory, set_hosts, wait_for_size
from tests.support import marks
from tests.support.nethosts import NetHosts
from tests.support.waiting import wait_until

__all__ = ["directory"]

MakeHosts = Callable[[int], NetHosts]


def test_a_launcher_stopped_before_it_has_hosts_ends_the_last_launchers_agents(launched: Launched) -> None:
    launched.set_hosts("localhost:1", "127.0.0.1:1")
    options = ("-np", "2", "--state-dir", launched.directory / "state")
    endless = (sys.executable, "-c", "import time\nwhile True: time.sleep(1)")
    with launched.run(*options, *endless) as first:
        launched.wait_for("two workers", lambda: len(launched.events("spawned")) == 2)
        workers = [record.get("pid") for record in launched.events("spawned")]
        first.kill()
        launched.hosts.unlink()
        with launched.run(*options, *endless) as second:
            second.wait_for("looking for what it left running", timeout=60)
            assert all(map(marks.start_time, workers))
            second.send_signal(signal.SIGINT)
            assert second.wait(60) == 130, second.output
            assert not any(map(marks.start_time, workers))
        saved, _ = state_folder.load(launched.directory / "state")
        assert saved is not None
        assert not saved.hosts_left


def test_what_a_launcher_does_not_wait_for_is_named_by_the_launcher_not_by_the_library(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    endless = (sys.executable, "-c", "import time\nwhile True: time.sleep(1)")
    with launched.run("-np", "1", "--heartbeat-interval", "0.2", "--heartbeat-timeout", "1", *endless) as job:
        launched.wait_for("a worker", lambda: launched.events("spawned"))
        agents = [pid for pid in marks.pids() if "hvd_elastic_ext.agent" in marks.command_line(pid)]
        (agent,) = [pid for pid in agents if next(marks.ancestors(pid), 0) == job.pid]
        os.kill(agent, signal.SIGSTOP)
        try:
            while job.returncode is None:  # the first one ends the job, one more each wait
                job.send_signal(signal.SIGINT)
                with contextlib.suppress(AssertionError):
                    job.wait(0.3)
            assert job.wait() == 130, job.output
            assert "left to end by itself: agent of localhost" in job.output
        finally:
            os.kill(agent, signal.SIGKILL)


def stop_sshd(hosts: NetHosts) -> None:
    """No agent can be started any more; what runs goes on."""
    for host in hosts:
        for pid in [pid for pid in host.pids() if "sshd" in marks.command_line(pid)]:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
def test_agents_find_the_next_launcher_at_the_last_ones_port(nethosts: MakeHosts, directory: Path) -> None:
    hosts = nethosts(2)
    (directory / "hosts").write_text("h1:1\nh2:1\n")
    words = ["-np", "2", "--min-np", "1", sys.executable, COUNTER]
    env = {"HVD_ELASTIC_SAMPLE": "0"}
    with hosts.launcher.popen(command(hosts, directory, *words), cwd=directory, env=env) as first:
        wait_for_size(directory, first, 2)
        wait_until(lambda: len(records(directory / "journal.jsonl", "stepped")) > 5, what="steps", timeout=60)
        workers = {record.get("host"): record.get("pid") for record in records(directory / "journal.jsonl", "spawned")}
        launcher = next(pid for pid in hosts.launcher.pids() if "hvd_elastic_ext.cli" in marks.command_line(pid))
        os.kill(launcher, signal.SIGKILL)
        stop_sshd(hosts)
        before = len(records(directory / "journal.jsonl", "stepped"))
        with hosts.launcher.popen(command(hosts, directory, *words), cwd=directory, env=env) as second:
            wait_until(
                lambda: len(records(directory / "journal.jsonl", "stepped")) > before + 10,
                what="steps under the second launcher",
                timeout=90,
                show=lambda: second.output,
            )
            second.wait_for("what may run on h[12] cannot be reached", timeout=60)
            set_hosts(directory, "h1:1")  # the second one is in charge when it can send one away
            wait_until(
                lambda: (
                    [record.get("cause") for record in records(directory / "journal.jsonl", "exited")]
                    == ["told to leave"]
                ),
                what="the one that was told to leave",
                timeout=90,
                show=lambda: second.output,
            )
            assert marks.start_time(workers["h1"]) is not None
            assert len(records(directory / "journal.jsonl", "spawned")) == 2
            assert not records(directory / "journal.jsonl", "struck")
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 143
            assert not any(map(marks.start_time, workers.values()))

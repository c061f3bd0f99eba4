"""Agents over a real ssh, on hosts of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import marks
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

MakeHosts = Callable[[int], NetHosts]
SCRIPT = Path(__file__).with_name("start_over_ssh.py")


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """Stands where Python stands in an agent's command. It lives on when its input has ended and nobody hears it."""
    path = tmp_path / "agent"
    path.write_text(
        f"#!/bin/sh\nread line; echo pid $$ $line; cat >/dev/null; touch {path}.saw-the-end; exec sleep 900\n"
    )
    path.chmod(0o755)
    return path


def command(hosts: NetHosts, agent: Path, *names: str) -> list[str]:
    return [sys.executable, str(SCRIPT), str(agent), str(hosts.identity), *names]


def said(process: RunningProcess) -> list[dict]:
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_an_agent_over_ssh_outlives_its_launcher(nethosts: MakeHosts, agent: Path) -> None:
    hosts = nethosts(1)
    with hosts.launcher.popen(command(hosts, agent, "h1"), cwd=agent.parent) as launcher:
        launcher.wait_for("pid")
        (news,) = said(launcher)
        word, pid, *line = news["remark"].split()
        assert (word, line) == ("pid", ["the", "line"])
        assert int(pid) in hosts["h1"].pids()
        victim = next(pid for pid in hosts.launcher.pids() if marks.command_line(pid).startswith(sys.executable))
        os.kill(victim, signal.SIGKILL)
        wait_until(Path(f"{agent}.saw-the-end").exists, what="the end of the agent's input")
        assert marks.start_time(int(pid)) is not None


def test_failed_connections_are_reported_and_delay_no_others(nethosts: MakeHosts, agent: Path) -> None:
    hosts = nethosts(3)
    hosts["h2"].cut()
    marks.kill([pid for pid in hosts["h3"].pids() if "sshd" in marks.command_line(pid)])
    with hosts.launcher.popen(command(hosts, agent, "h2", "h3", "nowhere", "h1"), cwd=agent.parent) as launcher:
        launcher.wait_for("pid")
        wait_until(lambda: sum("code" in news for news in said(launcher)) == 3, what="three ends", timeout=20)
        ends = {news["host"]: news for news in said(launcher) if "code" in news}
        assert {host: (news["code"], news["reached"]) for host, news in ends.items()} == dict.fromkeys(
            ("h2", "h3", "nowhere"), (255, False)
        )
        assert "timed out" in ends["h2"]["message"]
        assert "refused" in ends["h3"]["message"]
        assert "resolve" in ends["nowhere"]["message"]
        assert "Traceback" not in launcher.output

"""A host that is about to go by its agent's notice file: told, told anew, taken back, and told to the next launcher."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.agent.joined import WAIT, Begin, linked, python, socket_file
from tests.faults.agent.launching import Launcher
from tests.support.processes import RunningProcess


def notice_file(tmp_path: Path) -> Path:
    path = socket_file(tmp_path)
    return path.with_name(f"{path.name}.notice")


def test_a_notice_in_the_agents_own_file_is_passed_on_until_it_is_taken_back(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    begin(launcher)
    session = launcher.session()
    assert "going" not in session.hello
    path = notice_file(tmp_path)
    assert path.read_text() == ""
    path.write_text("drained by Ops")
    assert session.wait_for("going") == {"event": "going", "reason": "drained by Ops", "in_s": None}
    path.write_text(json.dumps({"reason": "drained by Ops", "deadline": time.time() + 100}))
    assert 90 < session.wait_for("going", count=2)["in_s"] <= 100
    session.order(python(0, "print('up')"))  # it is the launcher who gives it no work
    assert session.wait_for("exited", 0)["code"] == 0
    path.unlink()
    assert session.wait_for("staying") == {"event": "staying"}


def test_the_job_may_name_another_file(launcher: Launcher, begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "annotations"
    begin(launcher, env={"HVD_ELASTIC_NOTICE_FILE": str(path)})
    session = launcher.session()
    path.write_text("spot reclaim")
    assert session.wait_for("going")["reason"] == "spot reclaim"


def test_a_notice_is_told_to_the_next_launcher_too(launcher: Launcher, begin: Begin, tmp_path: Path) -> None:
    begin(launcher)
    session = launcher.session()
    notice_file(tmp_path).write_text("drained")
    session.wait_for("going")
    session.hang_up()
    assert launcher.session(2).hello["going"] == {"reason": "drained", "in_s": None}


@pytest.fixture
def busy(launcher: Launcher, begin: Begin) -> RunningProcess:
    """An agent with a process that ends when it is told to leave, and has a second when it is stopped."""
    agent = begin(launcher)
    session = launcher.session()
    session.order(linked(0, "print('up', flush=True)\nhear()", grace_s=1.0))
    session.wait_for("output", 0)
    return agent


def test_a_signal_leaves_the_launcher_the_time_that_the_notice_tells_of(
    launcher: Launcher, busy: RunningProcess, tmp_path: Path
) -> None:
    session = launcher.session()
    notice_file(tmp_path).write_text(json.dumps({"reason": "its pod ends", "deadline": time.time() + 20}))
    busy.terminate()
    assert 17 < session.wait_for("notice")["grace_s"] <= 19
    assert session.wait_for("going")["reason"] == "its pod ends"
    session.order({"do": "tell", "to": {"0": 1}, "message": {"tell": "update", "leave": True}})
    assert busy.wait() == 0


def test_a_notice_that_tells_of_less_time_than_processes_need_takes_none_of_that(
    launcher: Launcher, busy: RunningProcess, tmp_path: Path
) -> None:
    notice_file(tmp_path).write_text(json.dumps({"reason": "its pod ends", "deadline": time.time() + 1}))
    busy.terminate()
    assert launcher.session().wait_for("notice")["grace_s"] == 1.0
    assert busy.wait() == 143


def test_nothing_of_the_file_is_left_when_the_agent_ends(launcher: Launcher, begin: Begin, tmp_path: Path) -> None:
    agent = begin(launcher)
    launcher.session()
    path = notice_file(tmp_path)
    path.write_text("drained")
    agent.terminate()
    assert agent.wait() == 0
    assert not path.parent.exists()


def test_the_pre_stop_hook_writes_it(launcher: Launcher, begin: Begin, tmp_path: Path) -> None:
    """Told of by number, since outside a container it would signal the agents of everybody."""
    agent = begin(launcher)
    session = launcher.session()
    session.order(python(0, WAIT, grace_s=1.0))
    session.wait_for("output", 0)
    code = f"""
from hvd_elastic_ext.worker import leave
leave.agents = lambda commands: [{agent.pid}]
raise SystemExit(leave.main(["--within", "10", "--reason", "node maintenance"]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
    going = session.wait_for("going")
    assert going["reason"] == "node maintenance"
    assert 8 < going["in_s"] <= 10
    assert 7 < session.wait_for("notice")["grace_s"] <= 9
    assert not notice_file(tmp_path).exists()

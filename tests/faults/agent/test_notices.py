"""A notice for a host in its agent's notice file: written, changed, withdrawn, and reported to the next launcher."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.faults.agent.launching import WAIT, Begin, Launcher, Session, linked, python, socket_file
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

OFTEN = "from hvd_elastic_ext.agent.notices import host_notices\nhost_notices.LOOK_S = 0.05"


def notice_file(tmp_path: Path) -> Path:
    path = socket_file(tmp_path)
    return path.with_name(f"{path.name}.notice")


def wait_for_a_look(tmp_path: Path) -> None:
    """Wait until the agent has looked. It creates its file at the beginning of a look, so the second creation ends the
    first look."""
    for _ in range(2):
        notice_file(tmp_path).unlink()
        wait_until(notice_file(tmp_path).exists, what="a look")


def test_a_notice_in_the_agents_own_file_is_passed_on_until_it_is_withdrawn(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    begin(launcher, preset=OFTEN)
    session = launcher.session()
    assert "going" not in session.hello
    path = notice_file(tmp_path)
    assert path.read_text() == ""
    path.write_text("drained by Ops")
    assert session.wait_for("going") == {"event": "going", "reason": "drained by Ops", "in_s": None}
    path.write_text(json.dumps({"reason": "drained by Ops", "deadline": time.time() + 100}))
    assert 20 < session.wait_for("going", count=2)["in_s"] <= 100
    session.order(python(0, "print('up')"))  # the agent still starts processes: the launcher decides about work
    assert session.wait_for("exited", 0)["code"] == 0
    session.hang_up()
    again = launcher.session(2)  # for example the next launcher
    assert again.hello["going"]["reason"] == "drained by Ops"
    path.unlink()
    assert again.wait_for("staying") == {"event": "staying"}


def test_a_notice_that_changes_between_hello_and_welcome_is_reported(
    launcher: Launcher, begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.welcomes = False
    named = tmp_path / "annotations"
    monkeypatch.setenv("HVD_ELASTIC_NOTICE_FILE", str(named))
    begin(launcher, preset=OFTEN)
    session = launcher.session()
    named.write_text("spot reclaim")
    wait_for_a_look(tmp_path)  # this look has no launcher for its report
    session.order(launcher.welcome())
    assert session.wait_for("going")["reason"] == "spot reclaim"


def test_old_news_from_before_a_lost_connection_do_not_replace_newer_ones(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    named = tmp_path / "annotations"
    launcher.options = {"notice_file": str(named)}
    begin(launcher, preset=OFTEN)
    session = launcher.session()
    session.wait_for("beats")  # it has read its welcome
    session.stand_still()
    named.write_text("drained")
    wait_for_a_look(tmp_path)
    named.unlink()
    wait_for_a_look(tmp_path)
    session.hang_up()
    again = launcher.session(2)
    again.wait_for("beats", count=3)
    assert [news["event"] for news in again.news("going", "staying")][-1] == "staying"


def test_the_file_that_a_launcher_names_goes_before_the_hosts_own_and_is_another_one_with_the_next_launcher(
    launcher: Launcher, begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, first, second = (tmp_path / name for name in ("own", "first", "second"))
    own.write_text("by the host")
    first.write_text("by the first launcher")
    monkeypatch.setenv("HVD_ELASTIC_NOTICE_FILE", str(own))
    launcher.options = {"notice_file": str(first)}
    begin(launcher, preset=OFTEN)
    session = launcher.session()
    wait_until(lambda: _reasons(session)[-1:] == ["by the first launcher"], what="the launcher's file")
    launcher.options = {"notice_file": str(second)}
    session.hang_up()
    again = launcher.session(2)
    again.wait_for("staying")
    second.write_text("by the second launcher")
    wait_until(lambda: _reasons(again)[-1:] == ["by the second launcher"], what="the next launcher's file")


def _reasons(session: Session) -> list[str]:
    return [news["reason"] for news in session.news("going")]


@pytest.fixture
def busy(launcher: Launcher, begin: Begin) -> RunningProcess:
    """An agent with a process that ends when it is told to leave. If it is stopped, it has one second."""
    agent = begin(launcher, preset=OFTEN)
    session = launcher.session()
    session.order(linked(0, "print('up', flush=True)\nhear()", grace_s=1.0))
    session.wait_for("output", 0)
    return agent


def test_after_a_signal_the_launcher_has_the_time_that_the_notice_gives(
    launcher: Launcher, busy: RunningProcess, tmp_path: Path
) -> None:
    session = launcher.session()
    path = notice_file(tmp_path)
    path.write_text(json.dumps({"reason": "its pod ends", "deadline": time.time() + 100}))
    busy.terminate()
    assert 20 < session.wait_for("notice")["grace_s"] <= 99
    assert session.wait_for("going")["reason"] == "its pod ends"
    session.order({"do": "tell", "to": {"0": 1}, "message": {"tell": "update", "leave": True}})
    assert busy.wait() == 0
    assert not path.parent.exists()


def test_a_notice_shorter_than_the_grace_of_processes_leaves_that_grace(
    launcher: Launcher, busy: RunningProcess, tmp_path: Path
) -> None:
    notice_file(tmp_path).write_text(json.dumps({"reason": "its pod ends", "deadline": time.time() + 1}))
    busy.terminate()
    assert launcher.session().wait_for("notice")["grace_s"] == 1.0
    assert busy.wait() == 143


def test_the_pre_stop_hook_writes_the_notice_file(launcher: Launcher, begin: Begin, tmp_path: Path) -> None:
    """The hook gets the agent's pid: outside a container, it would otherwise signal the agents of all users."""
    agent = begin(launcher)  # which the hook knows by its command line
    session = launcher.session()
    session.order(python(0, WAIT, grace_s=1.0))
    session.wait_for("output", 0)
    code = f"""
from hvd_elastic_ext.agent import prestop
prestop.agents = lambda commands: [{agent.pid}]
raise SystemExit(prestop.main(["--within", "90", "--reason", "node maintenance"]))
"""
    notice_file(tmp_path).unlink()  # as for the withdrawal of a notice
    with run_process([sys.executable, "-c", code]) as hook:
        going = session.wait_for("going")
        assert going["reason"] == "node maintenance"
        assert 20 < going["in_s"] <= 90
        assert 20 < session.wait_for("notice")["grace_s"] <= 89
        session.order({"do": "stop", "slot": 0})
        assert hook.wait() == 0
    assert not notice_file(tmp_path).exists()

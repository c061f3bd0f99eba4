"""An agent that has lost its launcher waits for the next one, serves it, and ends if none comes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.faults.agent.conftest import MakeFamily
from tests.faults.agent.launching import (
    GRACE_S,
    HOST,
    JOB,
    LINKED,
    WAIT,
    Begin,
    Launcher,
    launching,
    linked,
    python,
    socket_file,
    start_order,
)
from tests.support import marks
from tests.support.waiting import wait_until


def test_without_a_launcher_everything_ends_when_the_grace_is_over(begin: Begin, family: MakeFamily) -> None:
    with launching(grace_s=1.0) as launcher:
        agent = begin(launcher, orphan_grace_s=GRACE_S)
        session = launcher.session()
        command, born = family("one")
        session.order(start_order(0, *command), linked(1, "say(say='parked'); hear()"))
        one = born()
        session.wait_for("said", 1)
        failing = session.wait_for("started", 0)["pid"]
        launcher.close()
        os.kill(failing, signal.SIGKILL)
        assert agent.wait(20) == 137
        assert "no launcher" in agent.stderr
        one.wait_for_end()
        assert agent.tree() == []


def test_training_that_needs_no_launcher_continues_until_it_needs_one(begin: Begin) -> None:
    with launching(grace_s=0.3) as launcher:
        agent = begin(launcher, orphan_grace_s=GRACE_S)
        session = launcher.session()
        entered = "say(say='entered', generation=1, rank=0, size=1)\n"
        session.order(python(0, LINKED + entered + WAIT, link=True))
        port = session.proxy_port()
        pid = session.wait_for("started", 0)["pid"]
        session.wait_for("said", 0)
        launcher.close()
        time.sleep(1.0)  # three times the grace
        assert agent.returncode is None
        assert marks.start_time(pid) is not None
        with socket.create_connection(("127.0.0.1", port)) as asker:
            asker.sendall(b"GET /rank_and_size/h1:0 HTTP/1.1\r\n\r\n")
            assert agent.wait(20) == 143
        assert marks.start_time(pid) is None


def test_an_agent_with_nothing_to_do_does_not_outlive_its_launcher(begin: Begin) -> None:
    with launching(grace_s=0.3) as launcher:
        agent = begin(launcher, orphan_grace_s=GRACE_S)
        launcher.session().wait_for("beats")  # it has read its welcome: the short grace counts from now on
        launcher.close()
        assert agent.wait(20) == 0


def test_the_next_launcher_adopts_what_the_last_one_started(begin: Begin) -> None:
    with launching() as first, launching(incarnation=2, key=first.key) as second:
        agent = begin(first)
        session = first.session()
        talk = "say(say='parked'); hear(); say(say='entered', generation=7)\nsay(say='beat', step=3); hear()"
        session.order(linked(0, talk, note="seat 3"))
        session.wait_for("said", 0)
        session.order({"do": "tell", "to": {"0": 1}, "message": {"tell": "go"}})
        session.wait_for("said", 0, count=2)
        wait_until(lambda: session.news("beats") and session.news("beats")[-1]["slots"], what="a beat")
        pid = session.wait_for("started", 0)["pid"]
        born = marks.start_time(pid)
        first.close()
        newcomer = begin(second)
        assert newcomer.wait() == 0
        assert newcomer.stdout == "adopted\n"
        adopted = second.session()
        assert adopted.hello["pid"] == agent.pid
        assert adopted.hello["incarnation"] == 2
        status = adopted.hello["seats"]["0"]
        assert status == {
            "life": 1, "pid": pid, "state": "running", "code": None, "parked": False, "generation": 7, "agreed": None,
            "loops": False, "done": False, "warned": False, "beat": {"step": 3}, "note": "seat 3",
        }  # fmt: skip
        assert marks.start_time(pid) == born
        adopted.order({"do": "tell", "to": {"0": 1}, "message": {}})
        assert adopted.wait_for("exited", 0)["code"] == 0
        adopted.order({"do": "finish"})
        assert agent.wait() == 0


def test_an_agent_that_was_long_without_a_launcher_gives_the_next_one_its_whole_grace(begin: Begin) -> None:
    with launching(grace_s=1000.0) as first, launching(incarnation=2, key=first.key, grace_s=3.0) as second:
        agent = begin(first)
        session = first.session()
        session.order(linked(0, "say(say='parked'); hear()"))
        session.wait_for("said", 0)
        first.close()
        time.sleep(3.2)  # longer than the grace of the second one
        assert begin(second).wait() == 0
        adopted = second.session()
        assert adopted.hello["pid"] == agent.pid
        assert adopted.hello["seats"]["0"]["state"] == "running"
        adopted.order({"do": "tell", "to": {"0": 1}, "message": {}})
        assert adopted.wait_for("exited", 0)["code"] == 0


def test_a_launcher_that_is_replaced_while_it_lives_loses_its_agents(begin: Begin) -> None:
    with launching() as first, launching(incarnation=2, key=first.key) as second:
        begin(first)
        session = first.session()
        begin(second).wait()
        second.session()
        wait_until(lambda: session.closed, what="the agent to hang up on the first")
        late = begin(first)
        assert late.wait() == 125
        assert "launcher 1 of the job is not obeyed: 2 has taken over" in late.stderr


def test_two_jobs_of_one_name_have_separate_agents(begin: Begin) -> None:
    """Two users, or two folders, have a ``train.py`` on one machine."""
    with launching() as first, launching(incarnation=2) as other:
        agent = begin(first)
        first.session()
        beside = begin(other)
        other.session()
        assert other.key.hex() not in beside.output + agent.output
        assert begin(end_line(other)).wait() == 0
        assert beside.wait() == 0
        assert agent.returncode is None


def test_of_many_newcomers_at_once_one_becomes_the_agent(launcher: Launcher, begin: Begin) -> None:
    newcomers = [begin(launcher) for _ in range(6)]
    wait_until(lambda: sum(one.returncode == 0 for one in newcomers) == 5, what="five that were not needed", timeout=30)
    assert sum(one.stdout == "adopted\n" for one in newcomers) == 5
    (agent,) = [one for one in newcomers if one.returncode is None]
    wait_until(lambda: launcher.sessions[-1].news("beats"), what="the agent at work")
    assert {session.hello["pid"] for session in launcher.sessions if session.said} == {agent.pid}


def test_a_new_agent_takes_over_the_socket_file_of_a_killed_one(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    agent = begin(launcher)
    launcher.session()
    agent.kill()
    agent.wait()
    assert socket_file(tmp_path).exists()
    again = begin(launcher)
    assert launcher.session(2).hello["pid"] == again.pid


@pytest.mark.parametrize("trouble", ["open", "link"])
def test_a_folder_that_others_could_enter_is_not_used(
    launcher: Launcher, begin: Begin, tmp_path: Path, trouble: str
) -> None:
    folder = tmp_path / f"hvd-elastic-{os.geteuid()}"
    if trouble == "open":
        folder.mkdir()
        folder.chmod(0o755)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    agent = begin(launcher)
    launcher.session()  # it works in spite of that
    agent.wait_for("is not a folder that only its user can enter; remove it; another folder is used")
    assert not list(tmp_path.rglob("*.sock"))


def end_line(launcher: Launcher, **more: object) -> str:
    return json.dumps({"do": "end", "job": JOB, "host": HOST, "key": launcher.key.hex(), **more}) + "\n"


def test_everything_on_a_host_can_be_ended_without_a_connection(begin: Begin, family: MakeFamily) -> None:
    with launching() as launcher:
        agent = begin(launcher)
        session = launcher.session()
        command, born = family("one")
        session.order(start_order(0, *command, grace_s=1000))
        one = born()
        launcher.close()
        ending = begin(end_line(launcher))
        assert ending.wait() == 0
        one.wait_for_end()
        assert agent.wait() == 137
    nobody = begin(end_line(launcher))
    assert nobody.wait() == 0


def test_an_agent_that_was_told_to_finish_serves_the_next_launcher(begin: Begin) -> None:
    with launching() as first, launching(incarnation=2, key=first.key) as second:
        agent = begin(first)
        session = first.session()
        session.order(python(0, WAIT), {"do": "finish"})
        session.wait_for("started", 0)
        first.close()
        assert begin(second).wait() == 0
        adopted = second.session()
        adopted.order(start_order(1, "echo", "more"), {"do": "stop", "slot": 0})
        adopted.wait_for("ended", 0)
        adopted.wait_for("ended", 1)
        assert adopted.written(1) == b"more\n"
        assert agent.returncode is None


def test_a_key_that_was_to_be_stored_is_stored_with_the_next_launcher_though_another_process_waits_for_it(
    begin: Begin,
) -> None:
    ask = b"%s /global/0 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
    with launching() as first, launching(incarnation=2, key=first.key) as second:
        begin(first)
        session = first.session()
        entered = "say(say='entered', generation=1, rank=0, size=2)\n"
        session.order(*(python(slot, LINKED + entered + WAIT, link=True) for slot in (0, 1)))
        ports = [session.proxy_port(slot) for slot in (0, 1)]
        for slot in (0, 1):
            session.wait_for("said", slot)
        with socket.create_connection(("127.0.0.1", ports[1])) as reader:
            reader.sendall(b"GET /global/0 HTTP/1.1\r\n\r\n")
            session.wait_for("asked", 1)
            with socket.create_connection(("127.0.0.1", ports[0])) as writer:
                writer.sendall(ask % b"PUT")
                session.wait_for("asked", 0)
                first.close()
                assert begin(second).wait() == 0
                adopted = second.session()
                assert adopted.wait_for("asked", 1)["method"] == "GET"
                assert adopted.wait_for("asked", 0)["method"] == "PUT"
        adopted.order({"do": "kill", "slot": 0}, {"do": "kill", "slot": 1}, {"do": "finish"})

"""An agent that has joined a job serves it over a connection, goes on without one, and is adopted."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.wire import new_key
from tests.faults.agent.conftest import MakeFamily, start_order
from tests.faults.agent.launching import HOST, JOB, Launcher, agent_process, launching
from tests.faults.agent.test_doors import LINKED
from tests.support import marks
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

WAIT = "import os, time\nprint('up', os.environ.get('HVD_ELASTIC_DOOR'), flush=True)\nwhile True: time.sleep(1)"

Begin = Callable[..., RunningProcess]


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with launching() as one:
        yield one


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts an agent, given its launcher or its line."""
    with contextlib.ExitStack() as stack:

        def start(whom: Launcher | str, **more: object) -> RunningProcess:
            line = whom if isinstance(whom, str) else whom.line(**more)
            process = stack.enter_context(agent_process(line, tmp_path))
            stack.callback(lambda: print(process.pid, process.output))  # shown where a test fails
            return process

        yield start


def python(slot: int, code: str, **more: object) -> dict[str, Any]:
    return start_order(slot, sys.executable, "-c", code, **more)


def linked(slot: int, code: str, **more: object) -> dict[str, Any]:
    return python(slot, LINKED + code, link=True, **more)


def socket_file(tmp_path: Path) -> Path:
    return tmp_path / f"hvd-elastic-{os.geteuid()}" / JOB / f"{HOST}.sock"


# --- the connection ----------------------------------------------------------------------------------


def test_it_says_who_it_is_serves_and_ends_when_told_to_finish(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    agent = begin(launcher)
    session = launcher.session()
    hello = session.hello
    assert (hello["job"], hello["host"], hello["incarnation"], hello["pid"]) == (JOB, HOST, 1, agent.pid)
    assert hello["seats"] == {}
    facts = hello["facts"]
    assert facts["python"] == "{}.{}.{}".format(*sys.version_info)
    assert facts["versions"].keys() == {"horovod", "torch", "hvd-elastic-ext", "numpy"}
    assert (facts["hostname"], facts["interfaces"][facts["via"]]) == (os.uname().nodename, "127.0.0.1")
    assert 0 < facts["boot"] < 20
    session.wait_for("beats", count=2)
    session.order(start_order(0, "sh", "-c", "echo hello; exit 3"), {"do": "finish"})
    assert agent.wait() == 3
    events = [news["event"] for news in session.news() if news["event"] not in ("beats", "hello")]
    assert events == ["started", "output", "exited", "ended"]
    assert session.written(0) == b"hello\n"
    assert not socket_file(tmp_path).parent.parent.exists()  # nothing of it is left there


def test_the_versions_that_it_tells_are_those_that_are_installed(launcher: Launcher, begin: Begin) -> None:
    import importlib.metadata

    begin(launcher)
    told = launcher.session().hello["facts"]["versions"]
    assert told == {name: importlib.metadata.version(name) for name in told}


def test_neither_the_end_of_its_input_nor_of_its_output_ends_it(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher)
    session = launcher.session()
    for pipe in (agent.popen.stdin, agent.popen.stdout, agent.popen.stderr):
        os.close(os.dup(pipe.fileno()))  # type: ignore[union-attr]
    agent.popen.stdin.close()  # type: ignore[union-attr]
    session.order(python(0, WAIT, output="stderr"))
    session.wait_for("output", 0)  # output goes over the connection, whatever was ordered
    session.order({"do": "nonsense"})
    session.wait_for("refused")
    session.order({"do": "stop", "slot": 0}, {"do": "finish"})
    assert agent.wait() == 143


def test_the_end_of_a_carrier_neither_ends_nor_blocks_it(launcher: Launcher, tmp_path: Path) -> None:
    import subprocess

    from tests.faults.agent.conftest import AGENT

    agent = subprocess.Popen(
        AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert agent.stdin is not None
    agent.stdin.write(launcher.line().encode())
    agent.stdin.flush()
    session = launcher.session()
    for pipe in (agent.stdin, agent.stdout, agent.stderr):
        pipe.close()  # type: ignore[union-attr]
    session.order({"do": "nonsense"}, start_order(0, "sh", "-c", "echo through; exit 4"), {"do": "finish"})
    assert agent.wait(20) == 4
    assert session.written(0) == b"through\n"


def test_a_launcher_with_another_key_is_not_obeyed(begin: Begin) -> None:
    with launching() as stranger:
        agent = begin(stranger.line(key=new_key().hex()))
        wait_until(lambda: stranger.sessions and stranger.sessions[0].problem, what="a refusal by the launcher")
        assert "not signed with this job's key" in str(stranger.sessions[0].problem)
        wait_until(lambda: len(stranger.sessions) > 1, what="another attempt")
        assert agent.returncode is None
        # One that does not notice, and orders something all the same:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        mine, theirs = new_key(), new_key()
        one = Launcher(key=theirs)
        one.close()
        agent = begin(one.line(key=mine.hex(), launcher=["127.0.0.1", port], host="h2"))
        from hvd_elastic_ext.core.wire import NONCE_SIZE, LauncherWire

        connection, _ = listener.accept()
        with connection:
            wire = LauncherWire(theirs)
            connection.sendall(wire.greeting)
            nonce = connection.recv(NONCE_SIZE)
            wire.feed(nonce)
            connection.sendall(wire.seal({"do": "welcome", "incarnation": 1}))
            agent.wait_for("not signed with this job's key")
            assert connection.makefile("rb").read() is not None  # it hangs up


def test_a_key_that_is_none_is_refused_without_being_repeated(begin: Begin, launcher: Launcher) -> None:
    agent = begin(launcher.line(key="hunter2"))
    agent.wait_for("order refused: the job's key must be 32 bytes")
    assert "hunter2" not in agent.output


def test_a_lost_connection_is_made_again_and_open_questions_are_asked_again(launcher: Launcher, begin: Begin) -> None:
    begin(launcher)
    session = launcher.session()
    session.order(python(0, WAIT, link=True))
    wait_until(lambda: b"\n" in session.written(0), what="the door's port")
    port = int(session.written(0).split()[1])
    answers: list[tuple[int, bytes]] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/rank_and_size/h1:0")
        response = connection.getresponse()
        answers.append((response.status, response.read()))
        connection.close()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asked = session.wait_for("asked", 0)
    session.hang_up()
    again = launcher.session(2)
    assert again.hello["agent"] == session.hello["agent"]
    status = again.hello["seats"]["0"]
    assert (status["life"], status["state"], status["pid"]) == (1, "running", session.wait_for("started", 0)["pid"])
    assert again.wait_for("asked", 0) == asked
    body = base64.b64encode(b"0,1,0,1,0,1").decode()
    again.order({"do": "answer", "slot": 0, "id": asked["id"], "status": 200, "body": body})
    asking.join(20)
    assert answers == [(200, b"0,1,0,1,0,1")]


def test_news_are_kept_while_there_is_no_launcher_and_too_much_output_is_counted(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    agent = begin(launcher)
    session = launcher.session()
    go = tmp_path / "go"
    code = (
        "say(say='parked')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "say(say='done')\n"
        "for _ in range(300): os.write(1, bytes(10_000))\n"
        "os.abort()\n"
    )
    session.order(linked(0, code))
    session.wait_for("said", 0)
    launcher.welcomes = False
    session.hang_up()
    waiting = launcher.session(2)
    go.touch()
    wait_until(lambda: "\0" not in agent.output and len(agent.tree()) == 0, what="the end of the process")
    launcher.welcomes = True
    waiting.hang_up()
    again = launcher.session(3)
    again.wait_for("ended", 0)
    assert again.hello["seats"]["0"]["done"] is True
    assert (again.hello["seats"]["0"]["state"], again.hello["seats"]["0"]["code"]) == ("rest", 134)
    assert again.news("said", slot=0)[-1]["message"] == {"say": "done"}
    assert again.wait_for("exited", 0)["code"] == 134
    dropped = again.wait_for("dropped")
    assert dropped["output"] + len(again.written(0)) == 3_000_000
    assert 900_000 < len(again.written(0)) <= 1 << 20
    assert dropped["news"] == 0


def test_only_the_highest_incarnation_is_obeyed(begin: Begin) -> None:
    with launching(incarnation=5) as launcher:
        agent = begin(launcher)
        session = launcher.session()
        session.wait_for("beats")
        launcher.incarnation = 4
        session.hang_up()
        lower = launcher.session(2)
        assert lower.hello["incarnation"] == 5
        agent.wait_for("it is launcher 4 of the job, and launcher 5 has followed it")
        wait_until(lambda: lower.closed, what="the agent to hang up")
        assert lower.news("beats") == []
        launcher.incarnation = 6
        wait_until(lambda: launcher.sessions[-1].news("beats"), what="the agent to obey a newer one", timeout=20)
        launcher.sessions[-1].hang_up()
        wait_until(lambda: launcher.sessions[-1].hello["incarnation"] == 6, what="what it has learnt")


def test_a_launcher_that_stands_still_holds_up_neither_training_for_ever_nor_the_agent(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    begin(launcher)
    session = launcher.session()
    session.wait_for("beats")
    session.stand_still()
    done = tmp_path / "done"
    session.order(start_order(0, "sh", "-c", f"head -c 30000000 /dev/zero; touch {done}"))
    # Its kernel goes on acknowledging until the buffers are full. Then the connection is given up, and output dropped.
    wait_until(done.exists, what="training that goes on", timeout=60)
    session.go_on()


# --- the lease ---------------------------------------------------------------------------------------


def test_without_a_launcher_everything_ends_when_the_grace_is_over(begin: Begin, family: MakeFamily) -> None:
    with launching(grace_s=1.0) as launcher:
        agent = begin(launcher)
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


def test_training_that_needs_no_launcher_goes_on_until_it_does(begin: Begin) -> None:
    with launching(grace_s=0.3) as launcher:
        agent = begin(launcher)
        session = launcher.session()
        entered = "say(say='entered', generation=1, rank=0, size=1)\n"
        session.order(python(0, LINKED + entered + WAIT, link=True))
        wait_until(lambda: b"\n" in session.written(0), what="the door's port")
        port = int(session.written(0).split()[1])
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
        agent = begin(launcher)
        launcher.session()
        launcher.close()
        assert agent.wait(20) == 0


# --- adoption ----------------------------------------------------------------------------------------


def test_the_next_launcher_adopts_what_the_last_one_started(begin: Begin) -> None:
    with launching() as first, launching(incarnation=2, key=first.key) as second:
        agent = begin(first)
        session = first.session()
        talk = "say(say='parked'); hear(); say(say='entered', generation=7)\nsay(say='beat', step=3); hear()"
        session.order(linked(0, talk))
        session.wait_for("said", 0)
        session.order({"do": "tell", "slot": 0, "life": 1, "message": {"tell": "go"}})
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
        assert status["argv"][0] == sys.executable
        del status["argv"]
        assert status == {
            "life": 1, "pid": pid, "state": "running", "code": None, "parked": False, "generation": 7, "done": False,
            "beat": {"step": 3},
        }  # fmt: skip
        assert marks.start_time(pid) == born
        adopted.order({"do": "tell", "slot": 0, "life": 1, "message": {}})
        assert adopted.wait_for("exited", 0)["code"] == 0
        adopted.order({"do": "finish"})
        assert agent.wait() == 0


def test_a_launcher_that_is_replaced_while_it_lives_loses_its_agents(begin: Begin) -> None:
    with launching() as first, launching(incarnation=2, key=first.key) as second:
        begin(first)
        session = first.session()
        begin(second).wait()
        second.session()
        wait_until(lambda: session.closed, what="the agent to hang up on the first")
        late = begin(first)
        assert late.wait() == 125
        assert "launcher 1 of the job is not obeyed: 2 has followed" in late.stderr


def test_a_newcomer_with_another_key_gets_nothing(begin: Begin) -> None:
    with launching() as first, launching(incarnation=2) as other:
        agent = begin(first)
        first.session()
        newcomer = begin(other)
        assert newcomer.wait() == 125
        assert "the agent that lives on this host has another key for this job" in newcomer.stderr
        assert other.key.hex() not in newcomer.output + agent.output
        ending = begin(end_line(other))
        assert ending.wait() == 125
        assert agent.returncode is None


def test_of_many_newcomers_at_once_one_becomes_the_agent(launcher: Launcher, begin: Begin) -> None:
    newcomers = [begin(launcher) for _ in range(6)]
    wait_until(lambda: sum(one.returncode == 0 for one in newcomers) == 5, what="five that were not needed", timeout=30)
    assert sum(one.stdout == "adopted\n" for one in newcomers) == 5
    (agent,) = [one for one in newcomers if one.returncode is None]
    wait_until(lambda: launcher.sessions[-1].news("beats"), what="the agent at work")
    assert {session.hello["pid"] for session in launcher.sessions if session.said} == {agent.pid}


def test_what_a_killed_agent_left_is_taken_over(launcher: Launcher, begin: Begin, tmp_path: Path) -> None:
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
    launcher.session()  # it works all the same
    agent.wait_for("is not a folder that only its user can enter")
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
        one.wait_for_end(timeout=2)
        assert agent.wait(5) == 137
    nobody = begin(end_line(launcher))
    assert nobody.wait() == 0


# --- the end -----------------------------------------------------------------------------------------


def test_a_signal_is_a_notice_first_and_the_end_only_after_the_grace(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher)
    session = launcher.session()
    session.order(python(0, WAIT, grace_s=0.5))
    session.wait_for("output", 0)
    agent.terminate()
    assert session.wait_for("notice") == {"event": "notice", "reason": "SIGTERM", "grace_s": 0.5}
    session.order(start_order(1, "true"))
    assert session.wait_for("refused", 1)["reason"].startswith("nothing is started any more")
    assert agent.wait() == 143
    assert session.wait_for("ended", 0)["reason"] == "the time after the notice is over"


def test_after_a_notice_the_launcher_may_end_it_its_own_way(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher)
    session = launcher.session()
    session.order(linked(0, "hear()", grace_s=1000))
    session.wait_for("started", 0)
    agent.terminate()
    session.wait_for("notice")
    session.order({"do": "tell", "slot": 0, "life": 1, "message": {"tell": "update", "leave": True}})
    assert agent.wait() == 0
    assert session.wait_for("exited", 0)["code"] == 0


def test_after_a_killed_agent_that_had_joined_nothing_remains(
    launcher: Launcher, begin: Begin, family: MakeFamily
) -> None:
    agent = begin(launcher)
    command, born = family("one")
    launcher.session().order(start_order(0, *command, grace_s=1000, link=True))
    one = born()
    agent.kill()
    one.wait_for_end()


def test_a_process_may_be_ordered_while_the_last_one_is_being_cleared_away(launcher: Launcher, begin: Begin) -> None:
    begin(launcher)
    session = launcher.session()
    stubborn = "trap '' TERM; (trap '' TERM; exec setsid sleep 1000) & sleep 0.2; exit 9"
    session.order(start_order(0, "sh", "-c", stubborn, grace_s=1))
    session.wait_for("exited", 0)
    session.order(start_order(0, "echo", "next", life=2))
    assert session.wait_for("started", 0, count=2)["life"] == 2
    assert [news["event"] for news in session.news("exited", "ended", "started", slot=0)][:4] == [
        "started", "exited", "ended", "started",
    ]  # fmt: skip


def test_a_process_that_is_told_to_end_before_it_began_never_begins(launcher: Launcher, begin: Begin) -> None:
    begin(launcher)
    session = launcher.session()
    stubborn = "trap '' TERM; (trap '' TERM; exec setsid sleep 1000) & sleep 0.2; exit 9"
    session.order(start_order(0, "sh", "-c", stubborn, grace_s=30))
    session.wait_for("exited", 0)
    session.order(start_order(0, "echo", "never", life=5), {"do": "kill", "slot": 0})
    assert session.wait_for("ended", 0, count=2)["life"] == 5
    told = [(news["event"], news["life"]) for news in session.news("not_started", "exited", "ended", slot=0)]
    assert told == [("exited", 1), ("ended", 1), ("not_started", 5), ("ended", 5)]
    assert session.written(0) == b""


def test_an_agent_that_was_told_to_finish_goes_on_for_the_next_launcher(begin: Begin) -> None:
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
        assert adopted.written(1) == b"more\n"
        assert agent.returncode is None

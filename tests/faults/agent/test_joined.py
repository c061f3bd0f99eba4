"""An agent that has joined a job serves it over a connection."""

from __future__ import annotations

import base64
import http.client
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from hvd_elastic_ext.core.messages.wire import KEY_SIZE, NONCE_SIZE, LauncherWire
from tests.faults.agent.launching import (
    AGENT,
    HOST,
    JOB,
    WAIT,
    Begin,
    Launcher,
    launching,
    linked,
    python,
    socket_file,
    start_order,
)
from tests.support.waiting import wait_until


def test_a_joined_agent_sends_its_hello_serves_and_finishes_on_order(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    agent = begin(launcher)
    session = launcher.session()
    hello = session.hello
    assert (hello["job"], hello["host"], hello["incarnation"], hello["pid"]) == (JOB, HOST, 1, agent.pid)
    assert hello["seats"] == {}
    facts = hello["facts"]
    assert facts["python"] == "{}.{}.{}".format(*sys.version_info)
    packages = ("horovod", "torch", "hvd-elastic-ext", "numpy")
    assert facts["versions"] == {name: importlib.metadata.version(name) for name in packages}
    assert (facts["hostname"], facts["interfaces"][facts["via"]]) == (os.uname().nodename, "127.0.0.1")
    assert 0 < facts["boot"] < 20
    session.wait_for("beats", count=2)
    session.order(start_order(0, "sh", "-c", "echo hello; exit 3"), {"do": "finish"})
    assert agent.wait() == 3
    session.wait_for_end()
    events = [news["event"] for news in session.news() if news["event"] not in ("beats", "hello")]
    assert events == ["started", "output", "exited", "ended"]
    assert session.written(0) == b"hello\n"
    assert not socket_file(tmp_path).parent.parent.exists()  # the folder is removed, too


def test_the_end_of_the_stream_that_started_it_neither_ends_nor_blocks_an_agent(
    launcher: Launcher, tmp_path: Path
) -> None:
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
    # Output goes over the connection, even if the order names another place.
    talking = start_order(0, "sh", "-c", "echo through; exit 4", output="stderr")
    session.order({"do": "nonsense"}, talking, {"do": "finish"})
    assert agent.wait(20) == 4
    session.wait_for_end()
    assert session.news("refused")
    assert session.written(0) == b"through\n"


def test_a_launcher_with_another_key_is_not_obeyed(begin: Begin) -> None:
    with launching() as stranger:
        agent = begin(stranger.line(key=os.urandom(KEY_SIZE).hex()))
        wait_until(lambda: stranger.sessions and stranger.sessions[0].problem, what="a refusal by the launcher")
        assert "not signed with this job's key" in str(stranger.sessions[0].problem)
        wait_until(lambda: len(stranger.sessions) > 1, what="another attempt")
        assert agent.returncode is None
    with (
        launching() as one,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):  # this one gives an order in spite of that
        address = ["127.0.0.1", listener.getsockname()[1]]
        agent = begin(one.line(key=os.urandom(KEY_SIZE).hex(), launcher=address, host="h2"))
        connection, _ = listener.accept()
        with connection:
            wire = LauncherWire(one.key)
            connection.sendall(wire.greeting)
            wire.feed(connection.recv(NONCE_SIZE))
            connection.sendall(wire.seal({"do": "welcome", "incarnation": 1}))
            agent.wait_for("not signed with this job's key")
            assert connection.makefile("rb").read() is not None  # it hangs up


def test_a_malformed_key_is_refused_and_not_repeated(begin: Begin, launcher: Launcher) -> None:
    agent = begin(launcher.line(key="hunter2"))
    agent.wait_for("order refused: the job's key must be 32 bytes")
    assert "hunter2" not in agent.output


def test_a_lost_connection_is_restored_and_open_questions_are_asked_again(launcher: Launcher, begin: Begin) -> None:
    begin(launcher)
    session = launcher.session()
    session.order(python(0, WAIT, link=True))
    port = session.proxy_port()
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
    wait_until(lambda: len(agent.tree()) == 0, what="the end of the process", timeout=30)
    launcher.welcomes = True
    waiting.hang_up()
    later = launcher.sessions
    # An agent that waits long for its welcome connects more than once.
    again = wait_until(
        lambda: next((one for one in later[1:] if one.news("ended")), None), what="a connection that serves", timeout=30
    )
    assert again is not None
    seat = again.hello["seats"]["0"]
    assert (seat["done"], seat["state"], seat["code"]) == (True, "rest", 134)
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
        agent.wait_for("it is launcher 4 of the job, and launcher 5 has taken over")
        wait_until(lambda: lower.closed, what="the agent to hang up")
        assert lower.news("beats") == []
        launcher.incarnation = 6
        wait_until(lambda: launcher.sessions[-1].news("beats"), what="the agent to obey a newer one", timeout=20)
        launcher.sessions[-1].hang_up()
        wait_until(lambda: launcher.sessions[-1].hello["incarnation"] == 6, what="what it has learnt")


def test_a_stopped_launcher_delays_neither_the_agent_nor_training_for_long(
    launcher: Launcher, begin: Begin, tmp_path: Path
) -> None:
    begin(launcher, preset="from hvd_elastic_ext.agent import channel\nchannel.ACKNOWLEDGE_S = 1.0")
    session = launcher.session()
    session.wait_for("beats")
    session.stand_still()
    done = tmp_path / "done"
    session.order(start_order(0, "sh", "-c", f"head -c 30000000 /dev/zero; touch {done}"))
    # The kernel acknowledges data until the buffers are full. Then the agent closes the connection and drops output.
    wait_until(done.exists, what="training that goes on", timeout=60)
    session.go_on()


def test_heartbeats_age_while_a_process_is_silent(launcher: Launcher, begin: Begin) -> None:
    begin(launcher)
    session = launcher.session()

    def newest(*slots: str) -> dict[str, Any] | None:
        beats = session.news("beats")
        return beats[-1] if beats and beats[-1]["slots"].keys() == set(slots) else None

    beating = "n = 0\nwhile True: n += 1; say(say='beat', step=n, pid=os.getpid()); time.sleep(0.02)"
    session.order(linked(0, beating), linked(1, beating))
    both = wait_until(lambda: newest("0", "1"), what="a beat that tells of both")
    assert both["slots"]["0"].keys() == {"life", "age", "beat"}
    assert "part" not in both
    os.kill(session.wait_for("started", 1)["pid"], signal.SIGSTOP)
    session.order({"do": "pace", "heartbeat_s": 0.2, "figures_every": 1000})
    told = wait_until(lambda: newest("1"), what="a beat that tells of the quiet one alone")
    assert told["part"] is True
    assert told["slots"]["1"]["age"] > 0.2
    session.order({"do": "pace", "heartbeat_s": 0.2, "figures_every": 1})
    wait_until(
        lambda: (beats := newest("0", "1")) and beats["slots"]["0"]["age"] < 0.5 < beats["slots"]["1"]["age"],
        what="one that is old and one that is not",
    )
    assert session.news("said") == []
    session.order({"do": "kill", "slot": 1})
    assert session.wait_for("ended", 1)["code"] == 137
    wait_until(lambda: newest("0"), what="beats of the other alone")


def test_the_launcher_is_told_more_often_of_a_process_that_falls_silent_in_a_world(
    launcher: Launcher, begin: Begin
) -> None:
    begin(launcher)
    session = launcher.session()
    session.order({"do": "pace", "heartbeat_s": 0.8})
    entered = "say(say='entered', generation=1)\n"
    session.order(linked(0, entered + "while True: say(say='beat', step=1, pid=os.getpid()); time.sleep(0.02)"))
    wait_until(lambda: any("0" in news["slots"] for news in session.news("beats")), what="a beat")
    os.kill(session.wait_for("started", 0)["pid"], signal.SIGSTOP)

    def silent_s() -> list[float]:
        seen = [news["slots"]["0"]["age"] for news in session.news("beats") if "0" in news["slots"]]
        return [age for age in seen if age > 1.3]

    wait_until(lambda: len(silent_s()) > 4, what="news of a late process")
    first, *_, last = silent_s()[:5]
    assert last - first < 4 * 0.8 / 2


def test_the_last_message_of_a_process_comes_before_its_end(launcher: Launcher, begin: Begin) -> None:
    begin(launcher)
    session = launcher.session()
    session.order({"do": "pace", "heartbeat_s": 3600.0})
    last = "[say(say='record', number=n) for n in range(50)]; say(say='beat', step=7, commit=[1, 2, 3]); os._exit(9)"
    session.order(linked(0, last))
    session.wait_for("exited", 0)
    *records, beat, exited = session.news("said", "exited")
    assert [news["message"] for news in records] == [{"say": "record", "number": n} for n in range(50)]
    assert beat["message"] == {"say": "beat", "step": 7, "commit": [1, 2, 3]}
    assert (beat["life"], exited["event"], exited["code"]) == (1, "exited", 9)


def test_orders_sent_together_are_all_obeyed_and_a_bad_one_delays_none(launcher: Launcher, begin: Begin) -> None:
    begin(launcher)
    session = launcher.session()
    first, last = (start_order(slot, "sh", "-c", f"exit {slot}") for slot in (4, 5))
    session.order({"do": "all", "orders": [first, {"do": "dance"}, "x", last]})
    assert [session.wait_for("exited", slot)["code"] for slot in (4, 5)] == [4, 5]
    assert sorted(news["slot"] for news in session.news("started")) == [4, 5]  # in the order of their starts

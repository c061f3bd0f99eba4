"""A rendezvous proxy passes on the requests of Horovod's clients, and a link the messages of a process and its
launcher."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from horovod.runner.common.util import codec

from tests.faults.agent.launching import LINKED, WAIT, Agent
from tests.support import marks
from tests.support.waiting import wait_until


@pytest.fixture
def proxy_port(agent: Agent) -> int:
    agent.python(0, WAIT, link=True)
    return agent.proxy_port()


class Asking:
    """A request, sent by a thread; ``wait`` returns the status and the body."""

    def __init__(self, port: int, method: str, path: str, body: bytes = b"") -> None:
        self.answer: tuple[int, bytes] | None = None
        self._thread = threading.Thread(target=self._ask, args=(port, method, path, body), daemon=True)
        self._thread.start()

    def _ask(self, port: int, method: str, path: str, body: bytes) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request(method, path, body=body)
            response = connection.getresponse()
            assert response.getheader("Connection") == "close"
            self.answer = (response.status, response.read())

    def wait(self) -> tuple[int, bytes]:
        self._thread.join(20)
        assert self.answer is not None
        return self.answer


def reply(agent: Agent, asked: dict[str, Any], status: int, body: bytes = b"") -> None:
    text = base64.b64encode(body).decode()
    agent.order({"do": "answer", "slot": asked["slot"], "id": asked["id"], "status": status, "body": text})


def check_only_one_is_asked(agent: Agent, proxy_port: int, *, slot: int = 0, besides: tuple[str, ...] = ()) -> None:
    """Check that no other request was passed on: an earlier one would have been passed on before this one."""
    own = Asking(proxy_port, "GET", "/global/own")
    reply(agent, agent.wait_for("asked", slot), 404)
    assert own.wait() == (404, b"")
    assert [asked["path"] for asked in agent.news("asked")] == [*besides, "/global/own"]


def test_the_last_message_of_a_process_comes_before_its_question_for_a_rank(agent: Agent) -> None:
    code = LINKED + (
        "import http.client\n"
        "say(say='beat', commit=[1, 2, 3])\n"
        "proxy = http.client.HTTPConnection('127.0.0.1', int(os.environ['HVD_ELASTIC_RENDEZVOUS_PORT']))\n"
        "proxy.request('GET', '/rank_and_size/h1:0')\n"
        "time.sleep(600)\n"
    )
    agent.python(0, code, link=True)
    agent.wait_for("asked", 0)
    told = agent.news("said", "asked", slot=0)
    assert [news["event"] for news in told] == ["said", "asked"]
    assert told[0]["message"] == {"say": "beat", "commit": [1, 2, 3]}


def test_a_question_is_held_until_it_is_answered(agent: Agent, proxy_port: int) -> None:
    asking = Asking(proxy_port, "GET", "/rank_and_size/h1:0")
    asked = agent.wait_for("asked", 0)
    question = {"event": "asked", "slot": 0, "life": 1, "method": "GET", "path": "/rank_and_size/h1:0", "body": ""}
    assert asked == {**question, "id": asked["id"]}
    other = Asking(proxy_port, "GET", "/global/1")  # answered while the first one is held
    reply(agent, agent.wait_for("asked", 0, count=2), 404)
    assert other.wait() == (404, b"")
    assert asking.answer is None
    reply(agent, asked, 200, b"0,2,0,1,0,2")
    assert asking.wait() == (200, b"0,2,0,1,0,2")
    assert agent.news("unasked") == []


def test_put_and_get_carry_their_bodies(agent: Agent, proxy_port: int) -> None:
    large = bytes(range(256)) * 4000  # about a megabyte
    bodies = {"PUT": (large, b""), "GET": (b"", large)}
    for count, (method, (sent, answered)) in enumerate(bodies.items(), 1):
        asking = Asking(proxy_port, method, "/global/0", sent)
        asked = agent.wait_for("asked", 0, count=count)
        assert (asked["method"], asked["path"], base64.b64decode(asked["body"])) == (method, "/global/0", sent)
        reply(agent, asked, 200, answered)
        assert asking.wait() == (200, answered)


def name_world(agent: Agent, generation: int, *slots: int) -> None:
    message = {"tell": "world", "generation": generation, "rank": 0, "size": 2}
    agent.order({"do": "tell", "to": {str(slot): 1 for slot in slots}, "message": message})


def test_a_key_of_a_world_is_asked_for_once_for_all_processes_of_the_host(agent: Agent, proxy_port: int) -> None:
    agent.python(1, WAIT, link=True)
    ports = (proxy_port, agent.proxy_port(1))
    name_world(agent, 1, 0, 1)
    asking = Asking(ports[0], "GET", "/global/1")
    asked = agent.wait_for("asked", 0)
    with socket.create_connection(("127.0.0.1", ports[1])) as other:
        other.sendall(b"GET /global/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        check_only_one_is_asked(agent, ports[1], slot=1, besides=("/global/1",))
        reply(agent, asked, 404)
        assert asking.wait() == (404, b"")  # the key does not exist yet, so both ask again
        assert b" 404 " in other.recv(1000)

    again = Asking(ports[1], "GET", "/global/1")
    reply(agent, agent.wait_for("asked", 1, count=2), 200, b"here")
    assert again.wait() == (200, b"here")
    assert [Asking(port, "GET", "/global/1").wait() for port in (*ports, *ports)] == [(200, b"here")] * 4

    put = Asking(ports[0], "PUT", "/global/0", b"mine")
    reply(agent, agent.wait_for("asked", 0, count=2), 200)
    assert put.wait() == (200, b"")
    assert Asking(ports[1], "GET", "/global/0").wait() == (200, b"mine")
    assert Asking(ports[1], "DELETE", "/global/0").wait() == (200, b"")  # one process leaves, and the other still reads

    name_world(agent, 2, 0, 1)
    for slot, path, answer in ((0, "/global/1", b"there"), (1, "/global/0", b"yours")):
        count = len(agent.news("asked", slot=slot)) + 1
        asking = Asking(ports[slot], "GET", path)
        reply(agent, agent.wait_for("asked", slot, count=count), 200, answer)
        assert asking.wait() == (200, answer), "keys of the world before hold no more"
    assert len(agent.news("asked")) == 6


def test_the_next_process_is_asked_for_when_the_one_that_asked_first_ends(agent: Agent, proxy_port: int) -> None:
    agent.python(1, WAIT, link=True)
    ports = (proxy_port, agent.proxy_port(1))
    name_world(agent, 1, 0, 1)
    with socket.create_connection(("127.0.0.1", ports[0])) as first:
        first.sendall(b"GET /global/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        asked = agent.wait_for("asked", 0)
        with socket.create_connection(("127.0.0.1", ports[1])) as other:
            other.sendall(b"GET /global/1 HTTP/1.1\r\nHost: x\r\n\r\n")
            check_only_one_is_asked(agent, ports[1], slot=1, besides=("/global/1",))
            first.close()
            assert agent.wait_for("unasked", 0)["id"] == asked["id"]
            reply(agent, agent.wait_for("asked", 1, count=2), 200, b"here")
            assert b" 200 " in other.recv(1000)


def test_when_a_process_ends_its_world_is_lost_and_the_launcher_says_what_becomes_of_it(
    agent: Agent, proxy_port: int
) -> None:
    agent.python(1, WAIT, link=True)
    port = agent.proxy_port(1)
    name_world(agent, 1, 0, 1)
    asking = Asking(port, "GET", "/global/1")
    reply(agent, agent.wait_for("asked", 1), 200, b"here")
    assert asking.wait() == (200, b"here")
    agent.order({"do": "kill", "slot": 0})
    agent.wait_for("ended", 0)
    again = Asking(port, "GET", "/global/1")
    reply(agent, agent.wait_for("asked", 1, count=2), 500)
    assert again.wait() == (500, b"")


class Code:
    """Runs code when it is unpickled, as an attacker's object does."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self._trace),)


def test_a_stock_workers_registration_is_accepted_and_never_read(agent: Agent, proxy_port: int, tmp_path: Path) -> None:
    plain = ({"lo": [("127.0.0.1", 4711)]}, b"key")
    known = codec.dumps_base64(plain, to_ascii=False)
    assert Asking(proxy_port, "PUT", "/worker_addresses/h1:0", known).wait() == (200, b"")
    harmful = codec.dumps_base64(({"lo": [Code(tmp_path / "ran")]}, b"key"), to_ascii=False)
    assert Asking(proxy_port, "PUT", "/worker_addresses/h1:0", harmful).wait() == (200, b"")
    assert Asking(proxy_port, "PUT", "/worker_addresses/h1:0", b"no pickle").wait() == (200, b"")
    check_only_one_is_asked(agent, proxy_port)
    assert not (tmp_path / "ran").exists()
    codec.loads_base64(harmful)  # Horovod's own server would unpickle it
    assert (tmp_path / "ran").exists()


def test_a_client_that_disconnects_or_ends_delays_nothing(agent: Agent, proxy_port: int) -> None:
    question = b"GET /rank_and_size/h1:0 HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", proxy_port)) as asker:
        asker.sendall(question)
        asked = agent.wait_for("asked", 0)
    assert agent.wait_for("unasked", 0)["id"] == asked["id"]
    reply(agent, asked, 200, b"too late")
    with socket.create_connection(("127.0.0.1", proxy_port)) as asker:
        asker.sendall(question)
        agent.wait_for("asked", 0, count=2)
        agent.order({"do": "kill", "slot": 0})
        assert asker.recv(100) == b""
    agent.wait_for("unasked", 0, count=2)
    assert agent.news("refused") == []


def test_a_malformed_request_is_refused_and_not_passed_on(agent: Agent, proxy_port: int) -> None:
    for said, status in ((b"nonsense\r\n\r\n", 400), (b"PUT /a/b HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", 413)):
        with socket.create_connection(("127.0.0.1", proxy_port)) as asker:
            asker.sendall(said)
            assert asker.makefile("rb").readline().split()[1] == str(status).encode()
    check_only_one_is_asked(agent, proxy_port)


def test_a_rendezvous_proxy_keeps_its_port_and_knows_the_life_of_its_process(agent: Agent) -> None:
    ask = (
        "import http.client, os\n"
        "connection = http.client.HTTPConnection('127.0.0.1', int(os.environ['HVD_ELASTIC_RENDEZVOUS_PORT']))\n"
        "connection.request('GET', '/rank_and_size/h1:0')\n"
        "print('up', os.environ['HVD_ELASTIC_RENDEZVOUS_PORT'], connection.getresponse().status, flush=True)\n"
    )
    for count, (ordered, life) in enumerate(((None, 1), (None, 2), (7, 7)), 1):
        agent.python(0, ask, link=True, **({"life": ordered} if ordered else {}))
        asked = agent.wait_for("asked", 0, count=count)
        assert asked["life"] == life
        reply(agent, asked, 200)
        assert agent.wait_for("ended", 0, count=count)["life"] == life
    assert len(set(agent.written(0).decode().splitlines())) == 1
    agent.python(0, "", link=True, life=7)
    assert agent.wait_for("refused", 0)["reason"] == "'life' must be above 7, the slot's last"


STRANGER = """
import os, socket, struct, sys
os.setuid(65534)
port, how, times = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(times):
    with socket.socket() as asker:
        asker.connect(("127.0.0.1", port))
        try:
            asker.sendall(b"PUT /global/%d HTTP/1.1\\r\\nContent-Length: 4\\r\\n\\r\\nevil" % number)
            if how == "reset":
                asker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how == "stays":
                assert asker.recv(100) == b"", "it was answered"
        except ConnectionError:
            pass
"""
"""A process of another user. It sends all its data, and then resets the connection, closes it, or waits."""


def knock_as_somebody_else(proxy_port: int, how: str, *, times: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    told = subprocess.run(
        [sys.executable, "-c", STRANGER, str(proxy_port), how, str(times)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert told.returncode == 0, told.stderr


def test_other_users_cannot_use_a_rendezvous_proxy(agent: Agent, proxy_port: int) -> None:
    for how in ("reset", "closes", "stays"):
        knock_as_somebody_else(proxy_port, how, times=100)
    agent.process.wait_for("a process of user 65534 was refused by the rendezvous proxy")
    check_only_one_is_asked(agent, proxy_port)


def test_an_agent_that_has_no_descriptor_left_refuses_every_client(agent: Agent, proxy_port: int) -> None:
    pid = agent.process.pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    fill: list[socket.socket] = []

    def in_use() -> int | None:
        """Return the number of the agent's descriptors, once there is no gap between their numbers."""
        numbers = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        taken = {each.raddr.port for each in psutil.Process(pid).net_connections("tcp4") if each.raddr}
        if not all(each.getsockname()[1] in taken for each in fill):
            return None
        if numbers == set(range(len(numbers))):
            return len(numbers)
        fill.append(socket.create_connection(("127.0.0.1", proxy_port)))
        return None

    try:
        count = wait_until(in_use, what="all numbers in use")
        # Room for one connection, but no descriptor is left to ask the kernel for the user.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (count + 1, usual[1]))
        knock_as_somebody_else(proxy_port, "stays", times=3)
        knock_as_somebody_else(proxy_port, "reset", times=3)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        for one in fill:
            one.close()
    check_only_one_is_asked(agent, proxy_port)


# --- links -------------------------------------------------------------------------------------------


@pytest.fixture
def linked(agent: Agent) -> Callable[..., None]:
    def start(code: str, slot: int = 0, **more: object) -> None:
        agent.start(slot, "bash", "-c", f"'{sys.executable}' -c \"$0\"; exit $?", LINKED + code, link=True, **more)

    return start


def test_a_link_carries_both_ways_through_a_shell(agent: Agent, linked: Callable[..., None]) -> None:
    linked("say(say='parked'); say(say='heard', what=hear()); say(say='heard', what=hear()); hear()")
    assert agent.wait_for("said", 0) == {"event": "said", "slot": 0, "life": 1, "message": {"say": "parked"}}
    long = "é" * 100_000  # more than the socket's buffer takes
    for message in ({"tell": "go", "env": {"A": "b"}}, {"tell": "update", "reason": long}):
        agent.order({"do": "tell", "to": {"0": 1}, "message": message})
    assert agent.wait_for("said", 0, count=2)["message"]["what"] == {"tell": "go", "env": {"A": "b"}}
    wait_until(lambda: "was dropped" in agent.process.stderr, what="a complaint about the long answer")
    agent.order({"do": "tell", "to": {"0": 2}, "message": {"tell": "go"}})  # not for that life
    agent.order({"do": "tell", "to": {"0": 1}, "message": {}})
    assert agent.wait_for("exited", 0)["code"] == 0


def test_a_flood_of_records_is_limited_and_counted(agent: Agent, linked: Callable[..., None]) -> None:
    linked("[say(say='record', number=n) for n in range(3000)]; say(say='done'); hear()")
    wait_until(lambda: [n for n in agent.news("said") if n["message"]["say"] == "done"], what="what is not a record")
    records = [news for news in agent.news("said") if news["message"]["say"] == "record"]
    assert 100 <= len(records) < 1000
    wait_until(lambda: agent.news("dropped", slot=0), what="the count")
    assert sum(news["records"] for news in agent.news("dropped", slot=0)) == 3000 - len(records)


def test_a_malformed_message_is_dropped_and_reported_once(agent: Agent, linked: Callable[..., None]) -> None:
    linked("link.sendall(b'x' * 70000 + b'\\n' + b'nonsense\\n[]\\n{\"say\": NaN}\\n'); say(say='parked'); hear()")
    assert agent.wait_for("said", 0)["message"] == {"say": "parked"}
    assert len(agent.news("said")) == 1

    def said() -> list[str]:
        return [line for line in agent.process.stderr.splitlines() if "on its link" in line]

    wait_until(lambda: len(said()) > 1, what="both complaints")  # another thread passes on standard error
    assert said() == [
        "hvd-elastic agent: slot 0: a line of more than 65536 bytes on its link was dropped",
        "hvd-elastic agent: slot 0: a line on its link that is not a JSON object with 'say' was dropped",
    ]


def test_a_process_that_does_not_read_delays_nothing(agent: Agent, linked: Callable[..., None]) -> None:
    linked("say(say='parked'); time.sleep(1000)")
    agent.wait_for("said", 0)
    for _ in range(30):
        agent.order({"do": "tell", "to": {"0": 1}, "message": {"tell": "x" * 100_000}})
    agent.start(1, "echo", "through")
    agent.wait_for("ended", 1)
    agent.process.wait_for("slot 0: its process does not read its messages: they are dropped")


def test_without_the_link_option_a_process_has_neither_link_nor_rendezvous_proxy(agent: Agent) -> None:
    code = "import json, os; print(json.dumps(sorted(name for name in os.environ if name.startswith('HVD_ELASTIC_'))))"
    agent.python(0, code)
    agent.wait_for("ended", 0)
    assert json.loads(agent.written(0)) == ["HVD_ELASTIC_COMMIT_FDS", "HVD_ELASTIC_RESULTS_FD"]
    assert agent.news("beats") == []


def test_a_killed_process_tree_ends_at_once_even_if_it_is_stopped(agent: Agent) -> None:
    code = "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    agent.python(0, code + "print(child.pid, flush=True)\ntime.sleep(1000)", grace_s=1000)
    agent.wait_for_text(0, b"\n")
    child = int(agent.written(0))
    os.kill(child, signal.SIGSTOP)
    os.kill(agent.wait_for("started", 0)["pid"], signal.SIGSTOP)
    agent.order({"do": "kill", "slot": 0})
    assert agent.wait_for("ended", 0)["reason"] == "told to be killed"
    assert marks.start_time(child) is None

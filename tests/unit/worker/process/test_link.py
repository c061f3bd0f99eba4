"""The process's end of the link: it sends heartbeats, never blocks, and is not inherited."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_elastic_ext.core.messages.wire import decode
from hvd_elastic_ext.worker.process import link as links
from hvd_elastic_ext.worker.process.link import Link
from tests.support.waiting import wait_until


class Agent:
    """The other end."""

    def __init__(self) -> None:
        self.end, self.its_end = socket.socketpair()
        self.end.settimeout(10)
        self._lines = self.end.makefile("rb")
        self.link = Link(self.its_end, interval=0.02)
        self.told: list[Any] = []
        self.link.on_message = self.told.append

    def hear(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._lines.readline())
        return found

    def hear_other_than_beats(self) -> dict[str, Any]:
        while (found := self.hear())["say"] == "beat":
            pass
        return found

    def close(self) -> None:
        self.link.close()
        self._lines.close()
        self.end.close()


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


def test_heartbeats_carry_the_status_that_the_main_thread_sets(agent: Agent) -> None:
    agent.link.start()
    agent.link.status.committed(11, (0, 9, 9, 9))  # of nobody's history
    assert agent.link.status.commit is None
    agent.link.status.committed(12, (99, 1, 2, 3))
    while (beat := agent.hear())["step"] != 12:
        pass
    assert beat.pop("pid", None) in (None, os.getpid())
    assert beat == {"say": "beat", "step": 12, "commit": [1, 2, 3], "step_s": None, "progress": 2}
    agent.link.status.waiting = True
    agent.link.beat()
    while "waiting" not in (beat := agent.hear()):
        pass
    assert beat["waiting"] is True


def test_heartbeats_ask_whether_it_waits_where_nothing_can_note_it(agent: Agent) -> None:
    answers = iter([False, True])
    agent.link.status.waits = lambda: next(answers, False)
    agent.link.beat()
    agent.link.beat()
    assert [agent.hear().get("waiting") for _ in range(2)] == [None, True]


def test_a_number_that_json_has_no_word_for_does_not_cost_the_message(agent: Agent) -> None:
    agent.link.send("record", event="stepped", fields={"loss": float("nan"), "rate": float("inf"), "step": 3})
    line = agent._lines.readline().decode()
    assert decode(line)["fields"] == {"loss": None, "rate": None, "step": 3}


def test_split_messages_arrive_complete_and_invalid_lines_are_skipped(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.link.start()
    agent.end.sendall(b'{"tell":"plan","rank":3}\n{"tell":')
    agent.end.sendall(b'"fence"}\nnonsense\n[1]\n{"tell":5}\n{"tell":"go"}\n')
    wait_until(lambda: len(agent.told) == 3, what="three messages")
    assert [message["tell"] for message in agent.told] == ["plan", "fence", "go"]
    assert caplog.text.count("invalid message") == 3


def test_a_failed_reaction_to_a_message_does_not_end_the_link(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: object) -> None:
        raise KeyError("generation")

    agent.link.on_message = fail
    agent.link.start()
    agent.end.sendall(b'{"tell":"world"}\n')
    wait_until(lambda: "acting on 'world' failed" in caplog.text, what="the complaint")
    agent.link.send("parked")
    assert agent.hear_other_than_beats() == {"say": "parked"}


def test_for_an_agent_that_does_not_read_important_messages_are_kept_in_little_memory(agent: Agent) -> None:
    text = "x" * 1000
    for number in range(5000):
        agent.link.send("record", event=text, number=number)
    agent.link.send("done")
    heard = [agent.hear()]
    while heard[-1]["say"] != "done":
        agent.link.flush(0.0)
        heard.append(agent.hear())
    assert 100 < len(heard) < 5000
    assert [message["number"] for message in heard[:-1]] == list(range(len(heard) - 1))


def test_a_message_that_is_too_long_is_dropped_with_a_warning(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.link.send("record", event="x" * 100_000)
    agent.link.send("done")
    assert agent.hear() == {"say": "done"}
    assert "is too long" in caplog.text


def test_an_endless_line_ends_the_link(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LONGEST_LINE", 100)
    lost = threading.Event()
    agent.link.on_lost = lost.set
    agent.link.start()
    agent.end.sendall(b"x" * 1000)
    assert lost.wait(10)
    assert not agent.link.connected


def test_a_lost_agent_is_noticed_and_sending_to_it_is_harmless(agent: Agent) -> None:
    lost = threading.Event()
    agent.link.on_lost = lost.set
    agent.link.start()
    agent.end.shutdown(socket.SHUT_RDWR)
    assert lost.wait(10)
    agent.link.send("done")
    assert not agent.link.flush()


def test_a_forked_child_sends_nothing_and_closes_the_connection(agent: Agent) -> None:
    child = os.fork()
    if child == 0:
        agent.link.send("done")
        agent.link.beat()
        os._exit(0 if not agent.link.connected else 1)
    assert os.waitpid(child, 0)[1] == 0
    agent.link.send("parked")
    assert agent.hear() == {"say": "parked"}


def test_without_the_variable_nothing_is_sent_and_nothing_fails() -> None:
    link = links.open_link({})
    link.start()
    link.send("done")
    assert not link.connected
    assert not link.flush()


def test_a_descriptor_that_is_not_a_link_is_left_alone() -> None:
    with open(os.devnull) as file, socket.socket() as users:
        for number in (file.fileno(), users.fileno(), 987):
            assert not links.open_link({"HVD_ELASTIC_LINK": str(number)}).connected
        assert users.fileno() >= 0
        os.fstat(users.fileno())
        os.fstat(file.fileno())


def test_programs_started_by_a_training_process_do_not_get_its_link() -> None:
    one, other = socket.socketpair()
    environ = {"HVD_ELASTIC_LINK": str(other.detach()), "HVD_ELASTIC_HEARTBEAT_INTERVAL": "0.5"}
    link = links.open_link(environ)
    assert link.connected
    assert "HVD_ELASTIC_LINK" not in environ
    link.close()
    one.close()

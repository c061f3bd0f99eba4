"""Horovod's own client, in C++, gets through the doors of an agent and is served by whoever is behind them."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.agent.launching import AGENT, Agent
from tests.support.processes import run_process
from tests.support.waiting import wait_until

RANK = Path(__file__).with_name("through_door.py")
GLOO = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_GLOO_IFACE": "lo",
    "HOROVOD_ELASTIC": "1",
    "HOROVOD_HOSTNAME": "h1",
}
PLACES = {0: (0, 2, 0, 2, 0, 1), 1: (1, 2, 1, 2, 0, 1)}
NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


@pytest.fixture
def agent() -> Iterator[Agent]:
    with run_process(AGENT, stdin=subprocess.PIPE) as process:
        yield Agent(process)


class Store:
    """What is behind the doors. It holds each question until it can be answered; a world begins with a rank's."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._seen = 0
        self._held: list[dict[str, Any]] = []
        self._worlds = {0: 0, 1: 0}
        self._keys: dict[tuple[int, str], str] = {}
        self.gone: list[str] = []

    def serve(self) -> bool:
        """True once both ranks have ended."""
        asked = self._agent.news("asked")
        self._held += asked[self._seen :]
        self._seen = len(asked)
        self._held = [question for question in self._held if not self._answered(question)]
        return len(self._agent.news("ended")) == 2

    def _answered(self, question: dict[str, Any]) -> bool:
        slot, method, path = question["slot"], question["method"], question["path"]
        if path.startswith("/rank_and_size/"):
            self._worlds[slot] += 1
            return self._answer(question, ",".join(map(str, PLACES[slot])).encode())
        key = (self._worlds[slot], path)
        if method == "GET":
            return key in self._keys and self._answer(question, base64.b64decode(self._keys[key]))
        if method == "PUT":
            self._keys[key] = question["body"]
        else:
            self.gone.append(path)
        return self._answer(question, b"")

    def _answer(self, question: dict[str, Any], body: bytes) -> bool:
        text = base64.b64encode(body).decode()
        self._agent.order({"do": "answer", "slot": question["slot"], "id": question["id"], "status": 200, "body": text})
        return True


def test_two_ranks_meet_through_their_doors_and_meet_again(agent: Agent) -> None:
    for slot, place in PLACES.items():
        ranks = {f"HOROVOD_{name}": str(number) for name, number in zip(NAMES, place, strict=True)}
        agent.start(slot, sys.executable, RANK, env={**GLOO, **ranks}, link=True)
    store = Store(agent)
    wait_until(store.serve, what="the end of both ranks", timeout=60, show=lambda: agent.process.output[-4000:])
    assert [news["code"] for news in agent.news("exited")] == [0, 0]
    for slot in PLACES:
        assert agent.written(slot).decode().splitlines() == [f"0 {slot} 2 3.0", f"1 {slot} 2 3.0"]
    assert {news["slot"] for news in agent.news("asked") if news["path"].startswith("/rank_and_size/")} == {0, 1}

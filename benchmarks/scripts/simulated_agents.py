"""Hundreds of simulated agents in one process, which a launcher takes for real ones.

    python -m benchmarks.scripts.simulated_agents LINES RECEIVED

The stand-in for ssh writes each agent's join line to a file, and the name of that file into the FIFO LINES. Each agent
has a connection of its own to the launcher, with real frames, and a process in every slot that the launcher requests. A
process parks, asks for its rank when it is called, agrees at once, and sends heartbeats.

RECEIVED gets a line for each kind of message to processes: WHAT GENERATION COUNT MONO. MONO is the time of the last of
COUNT. All messages are received first and parsed in a quiet moment, so that parsing does not delay their receipt.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.scripts.simulated_slots import Slots
from hvd_elastic_ext.agent import host_facts
from hvd_elastic_ext.core.messages.wire import AgentWire, key_from_hex

QUIET_S: Final = 0.03
"""Messages are parsed after this many seconds without data,"""
NEVER_QUIET_S: Final = 0.5
"""and at the latest after this time."""
READ: Final = 256 << 10
ONLY_HERE: Final = {"event": "beats", "slots": {}, "part": True}
"""A heartbeat without figures, of an agent whose processes all work."""


class Agent:
    """One agent and its connection."""

    def __init__(
        self, join: Mapping[str, Any], known: Mapping[str, Any], *, note: Callable[[str, int, float], None]
    ) -> None:
        address, port = join["launcher"]
        self._join, self._facts = join, known
        self._wire = AgentWire(key_from_hex(join["key"]))
        self._slots = Slots(join["host"], note=note)
        self._unsent = bytearray()
        self.received: list[tuple[float, bytes]] = []
        self.heartbeat_at = float("inf")
        self.over = False
        self._heartbeat_s, self._figures_every, self._heartbeats = 1.0, 1, int(join["host"].strip("h"))
        self.socket = socket.create_connection((address, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._greeted = False

    def receive(self) -> None:
        """Receive data without parsing it."""
        try:
            data = self.socket.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.received.append((time.monotonic(), data))
        else:
            self.over = True

    def look(self, now: float) -> None:
        """Parse and handle the received data."""
        received, self.received = self.received, []
        for moment, data in received:
            for order in self._wire.feed(data):
                self._handle(order, moment)
        if self._wire.ready and not self._greeted:
            self._greeted = True
            self._say(self._hello())
        if now >= self.heartbeat_at:
            self.heartbeat_at += self._heartbeat_s
            self._heartbeats += 1
            self._say(self._slots.heartbeats() if self._heartbeats % self._figures_every == 0 else ONLY_HERE)
        self.flush()

    def flush(self) -> None:
        """Write as much as the connection takes."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.over = True

    def _hello(self) -> dict[str, Any]:
        host, incarnation = self._join["host"], self._join["incarnation"]
        who = {"event": "hello", "job": self._join["job"], "host": host, "incarnation": incarnation}
        return {**who, "agent": f"sim-{host}", "pid": os.getpid(), "facts": self._facts, "seats": {}}

    def _handle(self, order: Mapping[str, Any], moment: float) -> None:
        if order["do"] in ("pace", "welcome"):
            self._heartbeat_s, self._figures_every = float(order["heartbeat_s"]), int(order["figures_every"])
        if order["do"] == "pace":
            return
        if order["do"] == "welcome":
            # Each agent has a phase of its own, because real agents start at different times.
            phase = int(self._join["host"].strip("h")) * 0.618 % 1.0
            self.heartbeat_at = time.monotonic() + phase * self._heartbeat_s
            return
        for each in order["orders"] if order["do"] == "all" else [order]:
            for news in self._slots.handle(each, moment):
                self._say(news)
        self.over = self.over or self._slots.finished

    def _say(self, news: Mapping[str, Any]) -> None:
        self._unsent += self._wire.seal(news)


class Received:
    """Counts messages to processes, and writes the counts in quiet moments."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._counts: dict[tuple[str, int], tuple[int, float]] = {}

    def note(self, what: str, generation: int, moment: float) -> None:
        """Note that a process has received a message."""
        count, last = self._counts.get((what, generation), (0, 0.0))
        self._counts[what, generation] = (count + 1, max(last, moment))

    def write(self) -> None:
        """Write the counts since the start."""
        for (what, generation), (count, last) in self._counts.items():
            self._file.write(f"{what} {generation} {count} {last:.6f}\n")


def main(lines: str, received_file: str) -> None:
    """Serve until the launcher has closed all connections."""
    received = Received(Path(received_file))
    known = host_facts.gather("127.0.0.1", resolved=("127.0.0.1",), problem=None)
    fifo = os.open(lines, os.O_RDWR | os.O_NONBLOCK)
    poll = select.epoll()
    poll.register(fifo, select.EPOLLIN)
    agents: dict[int, Agent] = {}
    rest = b""
    begun, looked = False, time.monotonic()
    while agents or not begun:
        ready = poll.poll(QUIET_S)
        for number, _ in ready:
            if number == fifo:
                *whole, rest = (rest + os.read(fifo, READ)).split(b"\n")
                for name in whole:
                    agent = Agent(json.loads(Path(name.decode()).read_bytes()), known, note=received.note)
                    agents[agent.socket.fileno()] = agent
                    poll.register(agent.socket, select.EPOLLIN)
                    begun = True
            else:
                agents[number].receive()
        if not ready or time.monotonic() - looked > NEVER_QUIET_S:
            look(agents, received, poll)
            looked = time.monotonic()


def look(agents: dict[int, Agent], received: Received, poll: select.epoll) -> None:
    """Handle the orders of every agent, and send the heartbeats that are due. It is called in quiet moments."""
    now, news = time.monotonic(), False
    for number, agent in list(agents.items()):
        news = news or bool(agent.received)
        agent.look(now)
        if agent.over:
            poll.unregister(number)
            agent.socket.close()
            del agents[number]
    if news:
        received.write()


if __name__ == "__main__":
    main(*sys.argv[1:])

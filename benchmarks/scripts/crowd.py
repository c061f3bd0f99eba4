"""Hundreds of agents in one process, as far as a launcher can tell them from real ones.

    python -m benchmarks.scripts.crowd LINES TOLD

Whoever starts an agent writes its join line to a file, and that one's name into the FIFO at LINES.
For each there is then a connection to the launcher of its own, with the frames of the real protocol,
and a process in every slot that the launcher wants one in: it parks, asks for its
rank at once when it is told to, agrees at once, and beats.

TOLD gets one line for each thing that was told to processes: WHAT GENERATION COUNT MONO,
MONO being when the last of COUNT tellings was received. So that looking into frames does not
hold up receiving others, everything is received first, and looked into when it has become quiet.
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

from benchmarks.scripts.crowd_seats import Seats
from hvd_elastic_ext.agent.launcher import host_facts
from hvd_elastic_ext.core.wire import AgentWire, key_from_hex

QUIET_S: Final = 0.03
"""After how long without anything received it is looked into."""
NEVER_QUIET_S: Final = 0.5
"""And at the latest after this time: nobody waits longer for an answer."""
READ: Final = 256 << 10
ONLY_HERE: Final = {"event": "beats", "slots": {}, "part": True}
"""A beat without figures, of an agent none of whose processes is quiet."""


class Member:
    """One agent and its connection."""

    def __init__(
        self, join: Mapping[str, Any], known: Mapping[str, Any], *, told: Callable[[str, int, float], None]
    ) -> None:
        address, port = join["launcher"]
        self._join, self._facts = join, known
        self._wire = AgentWire(key_from_hex(join["key"]))
        self._seats = Seats(join["host"], told=told)
        self._unsent = bytearray()
        self.received: list[tuple[float, bytes]] = []
        self.beats_at = float("inf")
        self.over = False
        self._heartbeat_s, self._figures_every, self._beats = 1.0, 1, int(join["host"].strip("h"))
        self.socket = socket.create_connection((address, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._greeted = False

    def receive(self) -> None:
        """Take what there is, unread."""
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
        """Read what was received, and do what it says."""
        received, self.received = self.received, []
        for moment, data in received:
            for order in self._wire.feed(data):
                self._obey(order, moment)
        if self._wire.ready and not self._greeted:
            self._greeted = True
            self._say(self._hello())
        if now >= self.beats_at:
            self.beats_at += self._heartbeat_s
            self._beats += 1
            self._say(self._seats.beats() if self._beats % self._figures_every == 0 else ONLY_HERE)
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

    def _obey(self, order: Mapping[str, Any], moment: float) -> None:
        if order["do"] in ("pace", "welcome"):
            self._heartbeat_s, self._figures_every = float(order["heartbeat_s"]), int(order["figures_every"])
        if order["do"] == "pace":
            return
        if order["do"] == "welcome":
            # Real agents begin at different moments; so that these do, too, each has a phase of its own.
            phase = int(self._join["host"].strip("h")) * 0.618 % 1.0
            self.beats_at = time.monotonic() + phase * self._heartbeat_s
            return
        for news in self._seats.obey(order, moment):
            self._say(news)
        self.over = self.over or self._seats.finished

    def _say(self, news: Mapping[str, Any]) -> None:
        self._unsent += self._wire.seal(news)


class Told:
    """Counts what processes are told, and writes it down once it has become quiet."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._counts: dict[tuple[str, int], tuple[int, float]] = {}

    def note(self, what: str, generation: int, moment: float) -> None:
        """Something was told to one process."""
        count, last = self._counts.get((what, generation), (0, 0.0))
        self._counts[what, generation] = (count + 1, max(last, moment))

    def write(self) -> None:
        """Write what there is since the last time, with the counts since the beginning."""
        for (what, generation), (count, last) in self._counts.items():
            self._file.write(f"{what} {generation} {count} {last:.6f}\n")


def main(lines: str, told_file: str) -> None:
    """Serve until the launcher has hung up on all."""
    told, known = Told(Path(told_file)), host_facts.gather("127.0.0.1", resolved=("127.0.0.1",), problem=None)
    fifo = os.open(lines, os.O_RDWR | os.O_NONBLOCK)
    poll = select.epoll()
    poll.register(fifo, select.EPOLLIN)
    members: dict[int, Member] = {}
    rest = b""
    begun, looked = False, time.monotonic()
    while members or not begun:
        ready = poll.poll(QUIET_S)
        for number, _ in ready:
            if number == fifo:
                *whole, rest = (rest + os.read(fifo, READ)).split(b"\n")
                for name in whole:
                    member = Member(json.loads(Path(name.decode()).read_bytes()), known, told=told.note)
                    members[member.socket.fileno()] = member
                    poll.register(member.socket, select.EPOLLIN)
                    begun = True
            else:
                members[number].receive()
        if not ready or time.monotonic() - looked > NEVER_QUIET_S:
            look(members, told, poll)
            looked = time.monotonic()


def look(members: dict[int, Member], told: Told, poll: select.epoll) -> None:
    """It is quiet: every agent does what it was told, and beats if it is time to."""
    now, news = time.monotonic(), False
    for number, member in list(members.items()):
        news = news or bool(member.received)
        member.look(now)
        if member.over:
            poll.unregister(number)
            member.socket.close()
            del members[number]
    if news:
        told.write()


if __name__ == "__main__":
    main(*sys.argv[1:])

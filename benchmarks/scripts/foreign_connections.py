"""Connections of another user to a port of this machine that never send anything.

    python -m benchmarks.scripts.foreign_connections PORT COUNT PAUSE FILE

A closed connection is opened again after a random time with mean PAUSE seconds, at most twice that; with PAUSE "inf",
never. FILE has two numbers of eight digits: open connections that the other end has greeted, and all greeted ones.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import resource
import select
import socket
import sys
import time
from typing import Final

OTHER_USER: Final = 65534
LOOK_S: Final = 0.05


class Connections:
    """Connections that are open, or will be opened again."""

    def __init__(self, port: int, pause: float) -> None:
        self._to = ("127.0.0.1", port)
        self._pause = pause
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._accepted_now: set[int] = set()
        self.accepted = 0
        """The number of greeted connections so far."""
        self._later: list[float] = []
        self._chance = random.Random(0)

    @property
    def standing(self) -> int:
        """The number of open connections that the other end has greeted."""
        return len(self._accepted_now)

    def open(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(self._to)
        self._open[one.fileno()] = one
        self._poll.register(one, select.EPOLLIN)

    def poll(self) -> None:
        """Handle greetings and closed connections; open those whose pause is over."""
        for number, _ in self._poll.poll(LOOK_S):
            self._look(number)
        while self._later and self._later[0] <= time.monotonic():
            heapq.heappop(self._later)
            self.open()

    def _look(self, number: int) -> None:
        try:
            greeted = bool(self._open[number].recv(4096))
        except OSError:
            greeted = False
        if greeted:
            self._accepted_now.add(number)
            self.accepted += 1
            return
        self._poll.unregister(number)
        self._open.pop(number).close()
        self._accepted_now.discard(number)
        if math.isfinite(self._pause):
            heapq.heappush(self._later, time.monotonic() + self._chance.uniform(0.0, 2 * self._pause))


def main(port: str, count: str, pause: str, file: str) -> None:
    """Hold the connections until this process ends."""
    file_number = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)  # opened while this process is still root
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)
    connections = Connections(int(port), float(pause))
    for _ in range(int(count)):
        connections.open()
    next_report = 0.0
    while True:
        connections.poll()
        if time.monotonic() >= next_report:
            next_report = time.monotonic() + LOOK_S
            os.pwrite(file_number, b"%08d %08d" % (connections.standing, connections.accepted), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])

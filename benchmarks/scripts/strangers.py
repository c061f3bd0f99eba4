"""Connections of another user to a port of this machine that never say anything.

    python -m benchmarks.scripts.strangers PORT COUNT PAUSE FILE

Each that is hung up on comes again after PAUSE seconds in the mean, and at most twice that, at random, so that they do
not all come at once; with PAUSE "inf" none does. FILE gets, again and again, how many stand there now that the other
end has greeted, and how many it has greeted in all, in eight digits each.
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

NOBODY: Final = 65534
LOOK_S: Final = 0.05


class Crowd:
    """So many connections, each standing at the port or about to come again."""

    def __init__(self, port: int, pause: float) -> None:
        self._to = ("127.0.0.1", port)
        self._pause = pause
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._greeted: set[int] = set()
        self.ever = 0
        """How many were let in so far."""
        self._later: list[float] = []
        self._chance = random.Random(0)

    @property
    def standing(self) -> int:
        """Those that the other end has let in."""
        return len(self._greeted)

    def come(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(self._to)
        self._open[one.fileno()] = one
        self._poll.register(one, select.EPOLLIN)

    def turn(self) -> None:
        """Look who was greeted and who was sent away; those whose pause is over come again."""
        for number, _ in self._poll.poll(LOOK_S):
            self._look(number)
        while self._later and self._later[0] <= time.monotonic():
            heapq.heappop(self._later)
            self.come()

    def _look(self, number: int) -> None:
        try:
            greeted = bool(self._open[number].recv(4096))
        except OSError:
            greeted = False
        if greeted:
            self._greeted.add(number)
            self.ever += 1
            return
        self._poll.unregister(number)
        self._open.pop(number).close()
        self._greeted.discard(number)
        if math.isfinite(self._pause):
            heapq.heappush(self._later, time.monotonic() + self._chance.uniform(0.0, 2 * self._pause))


def main(port: str, count: str, pause: str, file: str) -> None:
    """Stand there until somebody ends this process."""
    told = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)  # while it may be
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    crowd = Crowd(int(port), float(pause))
    for _ in range(int(count)):
        crowd.come()
    next_word = 0.0
    while True:
        crowd.turn()
        if time.monotonic() >= next_word:
            next_word = time.monotonic() + LOOK_S
            os.pwrite(told, b"%08d %08d" % (crowd.standing, crowd.ever), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])

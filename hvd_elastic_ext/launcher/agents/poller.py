"""Serves many descriptors in batches.

A loop that wakes for every heartbeat of hundreds of agents spends more time on waking than on reading. This one wakes
once for all that came during a pause. The pause grows with the number of agents, up to :data:`MAX_PAUSE_S`; a small job
has none. Connections without authentication do not count: they must not slow down agents that join.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

MAX_PAUSE_S: Final = 0.05
PAUSE_EACH_S: Final = 80e-6
"""What each agent adds to the pause: 5 ms for 64 agents, 41 ms for 512."""
STEADY_MAX_PAUSE_S: Final = 0.1
"""The longest pause while only heartbeats are expected."""
STEADY_PAUSE_EACH_S: Final = 200e-6
_LEAST_PAUSE_S: Final = 0.001
_BATCH: Final = 64


class DescriptorPoller:
    """Calls ``act(events)`` of each descriptor that is ready, in the loop it was made in."""

    def __init__(self) -> None:
        self.steady = False
        """Whether only heartbeats are expected."""
        self.agents = 0
        """How many of the descriptors are agents'."""
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[int], None]] = {}
        self._again: asyncio.TimerHandle | None = None
        # It never becomes writable. While it is registered, listening and pausing only change an entry of the loop's
        # own epoll. With a new entry the kernel would look at every descriptor in this one.
        self._loop.add_writer(self._epoll.fileno(), _nothing)
        self._listen()

    def add(self, descriptor: int, act: Callable[[int], None]) -> None:
        """Serve ``descriptor`` when it can be read."""
        self._epoll.register(descriptor, select.EPOLLIN)
        self._acts[descriptor] = act

    def want_writing(self, descriptor: int, *, wanted: bool) -> None:
        """Serve it when it can be written, too, or no longer."""
        self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Call it before ``descriptor`` is closed, and never within an ``act``."""
        del self._acts[descriptor]
        self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Serve no descriptor any more; the descriptors stay open. May be repeated."""
        if self._again is not None:
            self._again.cancel()
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._loop.remove_writer(self._epoll.fileno())
            self._epoll.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    def _ready(self) -> None:
        count = self._serve()
        if self._pause(count) >= _LEAST_PAUSE_S:
            self._loop.remove_reader(self._epoll.fileno())
            self._look_again_after(count)

    def _look_again(self) -> None:
        """Serve what came during the pause; pause again while there is something."""
        self._again = None
        count = _BATCH
        try:
            count = self._serve()
        finally:  # an act may have raised: the others must be served
            if count:
                self._look_again_after(count)
            else:
                self._listen()

    def _look_again_after(self, count: int) -> None:
        self._again = self._loop.call_later(self._pause(count), self._look_again)

    def _pause(self, count: int) -> float:
        """Seconds to pause after serving ``count`` descriptors; 0 if more may be ready."""
        if count == _BATCH:
            return 0.0
        if self.steady:
            return min(STEADY_MAX_PAUSE_S, STEADY_PAUSE_EACH_S * self.agents)
        return min(MAX_PAUSE_S, PAUSE_EACH_S * self.agents)

    def _serve(self) -> int:
        ready = self._epoll.poll(0, _BATCH)
        for descriptor, events in ready:
            self._acts[descriptor](events)
        return len(ready)


def _nothing() -> None:
    """For a descriptor that never becomes writable."""

"""Many descriptors behind one: what becomes readable or writable is looked after in batches.

A loop that wakes for every heartbeat of hundreds of agents spends more on waking
than on reading. Here it wakes once for all that came in a short while, which is
the longer the more there are: never more than :data:`MAX_PAUSE_S`, and nothing
at all in a small job.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

MAX_PAUSE_S: Final = 0.05
PAUSE_EACH_S: Final = 80e-6
"""What each descriptor adds to the pause, as long as that is not reached: 5 ms for 64 agents, 41 ms for 512."""
CALM_MAX_PAUSE_S: Final = 0.1
"""The longest that anything waits because of this: when all is calm, so that only the first word after that does."""
CALM_PAUSE_EACH_S: Final = 200e-6

_LEAST_PAUSE_S: Final = 0.001
_BATCH: Final = 64


class DescriptorPoller:
    """Calls ``act(events)`` of each descriptor that is ready, in the loop it was made in."""

    def __init__(self) -> None:
        self.calm = False
        """Nothing but heartbeats is to be expected."""
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[int], None]] = {}
        self._again: asyncio.TimerHandle | None = None
        # It never becomes writable. As long as this stands, to listen and to pause is only a change of an entry of the
        # loop's own epoll. Making the entry anew would have the kernel look at every descriptor in here.
        self._loop.add_writer(self._epoll.fileno(), _nothing)
        self._listen()

    def add(self, descriptor: int, act: Callable[[int], None]) -> None:
        """Look after ``descriptor``'s reading."""
        self._acts[descriptor] = act
        self._epoll.register(descriptor, select.EPOLLIN)

    def want_writing(self, descriptor: int, *, wanted: bool) -> None:
        """Look after its writing, too, or not any more."""
        self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """To be called before ``descriptor`` is closed, and never within an ``act``."""
        del self._acts[descriptor]
        self._epoll.unregister(descriptor)

    def close(self) -> None:
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
        """As long as there is something after every pause, nothing else is needed than the next pause."""
        self._again = None
        count = _BATCH
        try:
            count = self._serve()
        finally:  # whatever an act has raised: the others are to be heard
            if count:
                self._look_again_after(count)
            else:
                self._listen()

    def _look_again_after(self, count: int) -> None:
        self._again = self._loop.call_later(self._pause(count), self._look_again)

    def _pause(self, count: int) -> float:
        """How long to pause after having served so many; not at all while there is more."""
        if count == _BATCH:
            return 0.0
        if self.calm:
            return min(CALM_MAX_PAUSE_S, CALM_PAUSE_EACH_S * len(self._acts))
        return min(MAX_PAUSE_S, PAUSE_EACH_S * len(self._acts))

    def _serve(self) -> int:
        ready = self._epoll.poll(0, _BATCH)
        for descriptor, events in ready:
            self._acts[descriptor](events)
        return len(ready)


def _nothing() -> None:
    """What happens when it becomes writable."""

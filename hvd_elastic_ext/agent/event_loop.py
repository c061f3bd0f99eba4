"""One poll for all descriptors of the agent."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any, Final, Protocol

Act = Callable[[], object]


class EventLoop(Protocol):
    """The methods of the loop that parts of the agent use."""

    def now(self) -> float: ...
    def watch(self, descriptor: int, act: Act, *, output: bool = False) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def write(self, descriptor: int, act: Act | None) -> None: ...


_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class DescriptorLoop:
    """Calls what is registered for each ready descriptor. Output can be held back."""

    def __init__(self) -> None:
        # Not epoll, which does not accept regular files: standard input or output may be one.
        self._selector = selectors.PollSelector()
        self._reads: dict[int, Act] = {}
        self._writes: dict[int, Act] = {}
        self._outputs: set[int] = set()
        self._held_back = False

    def watch(self, descriptor: int, act: Act, *, output: bool = False) -> None:
        """Call ``act`` whenever ``descriptor`` can be read, or is at its end."""
        self._reads[descriptor] = act
        if output:
            self._outputs.add(descriptor)
        self._update(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Call no function for ``descriptor`` any more."""
        self._reads.pop(descriptor, None)
        self._writes.pop(descriptor, None)
        self._outputs.discard(descriptor)
        self._update(descriptor)

    def write(self, descriptor: int, act: Act | None) -> None:
        """Call ``act`` whenever ``descriptor`` can be written; None ends this."""
        if act is None:
            self._writes.pop(descriptor, None)
        else:
            self._writes[descriptor] = act
        self._update(descriptor)

    def hold_back(self, wanted: bool) -> None:
        """Stop or continue to read output."""
        if wanted == self._held_back:
            return
        self._held_back = wanted
        for descriptor in self._outputs:
            self._update(descriptor)

    def look(self, timeout: float | None) -> None:
        """Wait until there is something to do, for at most ``timeout`` seconds, and do it."""
        for key, events in self._selector.select(timeout):
            for event, acts in ((_WRITE, self._writes), (_READ, self._reads)):
                # A callback may close any descriptor. Nothing is lost: the next call reports what is still ready.
                if events & event and self._key(key.fd) is key and key.fd in acts:
                    acts[key.fd]()

    def _key(self, descriptor: int) -> Any:
        return self._selector.get_map().get(descriptor)

    def _update(self, descriptor: int) -> None:
        reads = descriptor in self._reads and not (self._held_back and descriptor in self._outputs)
        events = (_READ if reads else 0) | (_WRITE if descriptor in self._writes else 0)
        key = self._key(descriptor)
        if key is None and events:
            self._selector.register(descriptor, events)
        elif key is not None and not events:
            self._selector.unregister(descriptor)
        elif key is not None and key.events != events:
            self._selector.modify(descriptor, events)

"""The loop around the user's training function: interrupt → roll back? → new world → sync."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError

log = logging.getLogger(__name__)


class Trainable(Protocol):
    """What the loop needs of a State."""

    def sync(self) -> None: ...

    def restore(self) -> None: ...

    def on_reset(self) -> None: ...


class Notifications(Protocol):
    """Where host updates come in: Horovod's notification manager."""

    def init(self) -> None: ...

    def register_listener(self, listener: Any) -> None: ...

    def remove_listener(self, listener: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Reaction:
    """What an interrupt asks for. There is no "skip the sync": every interrupt ends in a new world and a sync."""

    roll_back: bool


REACTIONS: Final[Mapping[type[Exception], Reaction]] = {
    HorovodInternalError: Reaction(roll_back=True),  # a peer was lost in the middle of something
    HostsUpdatedInterrupt: Reaction(roll_back=False),  # asked for between two steps: nothing is torn
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How often joining the next world is tried, and the pauses between tries in seconds."""

    attempts: int = 5
    first_pause: float = 0.5
    longest_pause: float = 8.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after the ``failures``-th failure in a row."""
        return float(min(self.longest_pause, self.first_pause * 2 ** (failures - 1)))


class Loop:
    """Runs one training function to its end, through as many worlds as it takes."""

    def __init__(self, reset: Callable[[], None], *, clock: Clock, patience: Patience | None = None) -> None:
        self._reset = reset
        self._clock = clock
        self._patience = patience or Patience()

    def run(self, state: Trainable, train: Callable[[], Any]) -> Any:
        """Return what ``train`` returns. Raises what it raises, interrupts apart."""
        while True:
            try:
                state.sync()
                return train()
            except tuple(REACTIONS) as interrupt:
                if REACTIONS[_kind(interrupt)].roll_back:
                    log.warning("a peer was lost, rolling back: %s", interrupt)
                    state.restore()
            self._next_world(state)

    def _next_world(self, state: Trainable) -> None:
        """Join the next world. Another loss meanwhile means another try: the state is not touched by either."""
        failures = 0
        while True:
            try:
                self._reset()
                return state.on_reset()
            except tuple(REACTIONS):
                failures += 1
                if failures >= self._patience.attempts:
                    raise
            self._clock.wait(threading.Event(), self._patience.pause(failures))


def _kind(interrupt: Exception) -> type[Exception]:
    return next(kind for kind in REACTIONS if isinstance(interrupt, kind))


def elastic(
    train: Callable[..., Any],
    *,
    reset: Callable[[], None],
    notifications: Notifications,
    clock: Clock,
    whole: Callable[[Any], AbstractContextManager[None]] = nullcontext,
    synced: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Wrap a training function whose first argument is the State; ``whole`` is entered with it around all of it.

    ``synced`` is called in every world when its ranks have agreed, before the training function is.
    """

    def after_sync(state: Any, *args: Any, **kwargs: Any) -> Any:
        synced()
        return train(state, *args, **kwargs)

    @functools.wraps(train)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        _demand_state(state, train)
        notifications.register_listener(state)  # first: a notice may come as soon as the launcher knows the address
        try:
            notifications.init()
            with whole(state):
                return Loop(reset, clock=clock).run(state, lambda: after_sync(state, *args, **kwargs))
        finally:
            notifications.remove_listener(state)
            getattr(state, "ended", _nothing)()

    return wrapper


def _demand_state(state: object, train: Callable[..., Any]) -> None:
    if all(callable(getattr(state, name, None)) for name in ("sync", "restore", "on_reset")):
        return
    raise UsageError(
        f"{getattr(train, '__name__', 'the training function')} was called with {type(state).__name__} as its first "
        "argument; it takes a State there: elastic.TorchState, or one of Horovod's"
    )


def _nothing() -> None:
    """What a State of Horovod's own has to do at the end."""

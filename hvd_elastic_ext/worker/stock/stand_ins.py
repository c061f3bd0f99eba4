"""Replacements for the classes that a State inherits from Horovod, if Horovod is not installed.

They have only what our State does not replace: it commits, rolls back and syncs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from torch.utils.data import Sampler


class HorovodInternalError(RuntimeError):
    """A peer was lost. Training rolls back, and continues in the next world."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts will change. Training continues in the next world, without a roll-back."""

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class State:
    """The attributes and callbacks of Horovod's ``State``."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Call these each time a new world has formed, before the sync."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """A new world has formed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For subclasses: a new world has formed."""

    def commit(self) -> None:
        """Save, then look for changes of hosts."""
        self.save()
        self.check_host_updates()

    def save(self) -> None:
        """For subclasses: keep a copy of the present state, to which a roll-back returns."""
        raise NotImplementedError

    def check_host_updates(self) -> None:
        """For subclasses: raise :class:`HostsUpdatedInterrupt` if hosts will change."""
        raise NotImplementedError


class ObjectState(State):
    """A State whose keyword arguments become attributes."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        self._saved_state = kwargs
        for name, value in kwargs.items():
            setattr(self, name, value)
        super().__init__(bcast_object, get_rank)


def torch_state(base: Any) -> Any:
    """Return a State of a model, an optimizer, and other values. ``base``: the class ``ObjectState``."""

    class TorchState(base):  # type: ignore[misc]
        def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
            super().__init__(None, None, **kwargs, model=model, optimizer=optimizer)

    return TorchState


TorchState: Final = torch_state(ObjectState)


class ElasticSampler(Sampler[int]):
    """The type that marks an elastic sampler."""


class _NotificationManager:
    """The listeners for changes of hosts. Notices come over the link to the agent, so this opens no connection."""

    def __init__(self) -> None:
        self._listeners: set[Any] = set()

    def init(self) -> None:
        pass

    def register_listener(self, listener: Any) -> None:
        self._listeners.add(listener)

    def remove_listener(self, listener: Any) -> None:
        self._listeners.discard(listener)


notification_manager: Final = _NotificationManager()

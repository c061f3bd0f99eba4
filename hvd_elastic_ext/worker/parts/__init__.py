"""The parts of a State. Each part captures its live state, and restores a committed one.

Belongs here: models, optimizers, handlers, a user's own State, random generators.

Never here: the times of captures and roll-backs, and the memory of commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple


class InPlace(NamedTuple):
    """The result of :meth:`Part.capture`, with the live tensors; ``beside``: other tensors whose memory must not be
    overwritten."""

    tree: Any
    beside: Sequence[Any] = ()


class Part:
    """One named piece of shared state around a live ``value``."""

    value: Any

    firm: ClassVar[bool] = False
    """Whether ranks with the same commit have equal tensors in this part, whatever the user does."""

    takes_views: ClassVar[bool] = False
    """:meth:`restore` copies from the tensors that it gets. Otherwise it gets copies, and keeps them."""

    reload: ClassVar[bool] = False
    """Whether to load after every sync, even if nothing was received: loading adapts the part to the new world."""

    has_sync: bool = False
    """Whether the user has a sync for it, which :meth:`sync` runs."""

    @property
    def class_name(self) -> str | None:
        """Return the name of the class that a commit of this part needs, without its module, because that may change.
        None if any class is right."""
        return None

    def capture(self) -> Any:
        """Return the live state as a tree; its tensors may be the live ones."""
        raise NotImplementedError

    def in_place(self) -> InPlace | None:
        """Return the live state, if copies of its tensors restore a state of the same form. None if :meth:`restore` may
        have to do more.
        """
        return None

    def align(self, live: str, committed: str) -> bool:
        """Load the differences of :meth:`in_place`, except contents of tensors. Return False if this is not enough."""
        return False

    def restore(self, tree: Any) -> None:
        """Make the live state equal to ``tree``. Raises :class:`StateError` if that is not possible."""
        raise NotImplementedError

    def settle(self) -> None:
        """Drop unfinished work of the last world. Every rank calls it after each roll-back and sync."""

    def sync(self) -> None:
        """Run the user's own sync, among ranks that were restored from one commit."""

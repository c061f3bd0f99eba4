"""What a State is made of. Each part gives its live state, and takes a committed one.

Belongs here: models, optimizers, handlers, a user's own State, random generators.

Never here: when that is done, and where it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple


class InPlace(NamedTuple):
    """What :meth:`Part.capture` gives, with the live tensors; ``beside``: others, whose memory is not to be written."""

    tree: Any
    beside: Sequence[Any] = ()


class Part:
    """One named piece of shared state around a live ``value``."""

    value: Any

    firm: ClassVar[bool] = False
    """Ranks with the same commit have equal tensors in this part, whatever the user does."""

    takes_views: ClassVar[bool] = False
    """:meth:`restore` copies from the tensors that it gets. Otherwise it gets copies, and keeps them."""

    reload: ClassVar[bool] = False
    """Load after every sync, also if nothing was received: loading adapts the part to the new world."""

    has_sync: bool = False
    """The user has a sync for it: :meth:`sync` runs it."""

    @property
    def class_name(self) -> str | None:
        """The class that a commit of this part needs, without its module, which may move; None for any that loads."""
        return None

    def capture(self) -> Any:
        """Return the live state as a tree; its tensors may be the live ones."""
        raise NotImplementedError

    def in_place(self) -> InPlace | None:
        """The live state, if one of this very form is restored by copying its tensors.

        None if :meth:`restore` may have more to do.
        """
        return None

    def align(self, live: str, committed: str) -> bool:
        """Make what differs in the text of :meth:`in_place` equal, contents of tensors apart; False if more does."""
        return False

    def restore(self, tree: Any) -> None:
        """Make the live state equal to ``tree``. Raises :class:`StateError` if that is not possible."""
        raise NotImplementedError

    def settle(self) -> None:
        """Drop what was under way when the last world ended. Every rank calls it after each roll-back and sync."""

    def sync(self) -> None:
        """Run the user's own sync, among ranks that were restored from one commit."""

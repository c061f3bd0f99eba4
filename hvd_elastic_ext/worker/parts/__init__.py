"""What a State is made of: each part gives its live state, and takes one.

Belongs here: models, optimizers, handlers, a user's own State, random generators.

Never here: when that is done, and where it is kept.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Part:
    """One named piece of shared state around a live ``value``."""

    value: Any

    firm: ClassVar[bool] = False
    """Ranks that hold the same commit have equal tensors here, whatever the user does."""

    borrows: ClassVar[bool] = False
    """:meth:`restore` copies from the tensors it gets. Otherwise it gets copies, and keeps them."""

    reload: ClassVar[bool] = False
    """Load after every sync, also if nothing was received: loading adapts the part to the new world."""

    has_sync: bool = False
    """The user has a sync for it: :meth:`sync` runs it."""

    def capture(self) -> Any:
        """Return the live state as a tree; its tensors may be the live ones."""
        raise NotImplementedError

    def restore(self, tree: Any) -> None:
        """Make the live state equal to ``tree``. Raises :class:`StateError` if that is not possible."""
        raise NotImplementedError

    def settle(self) -> None:
        """Forget what was under way when the last world ended. Called on every rank after each roll-back and sync."""

    def sync(self) -> None:
        """Run the user's own sync, among ranks that were restored from one commit."""

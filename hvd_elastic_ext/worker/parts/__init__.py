"""The parts of a State: how each kind of value is captured, restored, and made ready for the next world.

Belongs here: :class:`Part`, which is all that a State knows of a kind; one module for each framework (``torch_parts``,
``keras_torch``, ``tensorflow_parts``, and ``sharded``, which only refuses as yet); ``keras_models``, which describes a
Keras model; ``user_parts``, which run the user's own code; ``choose``, which finds the part of a value; the random
generators of a rank.

Never here: when something is captured or restored, and the memory of commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

from hvd_elastic_ext.checkpoint.values.write import is_parameter
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.data.shares import MeasuredShares


class InPlace(NamedTuple):
    """Live state that copies of its tensors restore."""

    tree: Any
    """The result of :meth:`Part.capture`, with the live tensors."""
    beside: Sequence[Any] = ()
    """Other tensors, whose memory must not be overwritten."""


class Part:
    """One named piece of shared state. A new kind of value is a new subclass, and needs only what differs from here."""

    value: Any
    """The live object. It stays the same one: a roll-back changes its content."""

    firm: ClassVar[bool] = False
    """Whether ranks with the same commit have equal tensors in this part, whatever the user does."""

    takes_views: ClassVar[bool] = False
    """:meth:`restore` copies from the tensors that it gets. Otherwise it gets copies, and keeps them."""

    counts_writes: ClassVar[bool] = True
    """Whether torch counts what is written to its tensors. If not, only a comparison finds changes."""

    reload: ClassVar[bool] = False
    """Whether to load after every sync, even if nothing was received: loading adapts the part to the new world."""

    has_sync: bool = False
    """Whether the user has a sync for it, which :meth:`sync` runs."""

    @property
    def shares(self) -> MeasuredShares | None:
        """Return the shares of a sampler or stream that follow the ranks' speed. All ranks agree on them at commits."""
        return None

    @property
    def class_name(self) -> str | None:
        """Return the name of the class that a commit of this part needs, without its module, because that may change.
        None if any class is right."""
        return None

    def join(self, parts: Mapping[str, Part]) -> None:
        """Become one of the ``parts`` of a State, by name; they may change. Raises :class:`StateError` if it cannot be
        kept there."""

    def assigning(self, name: str) -> None:
        """Note that the State is about to keep another object, or another kind of value, as ``name``. Raises
        :class:`UsageError` if this part needs those that were there."""

    def capture(self) -> Any:
        """Return the live state as a tree; its tensors may be the live ones."""
        raise NotImplementedError

    def is_firm(self, tensors: Sequence[Any]) -> Sequence[bool]:
        """Return which of the captured ``tensors`` are equal on ranks with the same commit, whatever the user does."""
        return [True] * len(tensors) if self.firm else list(map(is_parameter, tensors))

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

    def fitted(self, given: Any) -> Any:
        """Return ``given``, which is from a checkpoint that is not ours, in the form of :meth:`capture`.

        Raises :class:`StateError`, which says what does not fit the live value.
        """
        raise StateError("it is kept in a way of your own; load it yourself, before the State is built")

    def generators(self) -> Any:
        """Return the states of random generators within the value, as plain values: they stay on their rank, as the
        global ones do. None if there are none."""
        return None

    def restore_generators(self, states: Any) -> None:
        """Restore the generators from the result of :meth:`generators`, which is not None."""

    def seed_generators(self, seed: int) -> None:
        """Seed them. Each rank gets another ``seed``."""

    def watched(self, stepped: Callable[[], None]) -> AbstractContextManager[None]:
        """Context in which ``stepped`` is called whenever a step of this optimizer may have ended. It may raise, and so
        end what has called the step."""
        return nullcontext()

    def optimizers(self, name: str) -> dict[str, Any]:
        """Return its optimizers, whose steps are the job's steps, by their names. ``name``: that of this part."""
        return {}

    def description(self) -> bytes | None:
        """Return what an export should know besides the content of the last capture, encoded
        (``checkpoint/format/descriptions.py``), or None. It is asked at each commit."""
        return None

    def expected(self) -> Sequence[Any]:
        """Return a tensor of the same size for each one that the first step will create, as far as known."""
        return ()

    def make_ready(self) -> Sequence[Any]:
        """Allocate the tensors of :meth:`expected` in advance, and return them."""
        return ()

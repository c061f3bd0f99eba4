"""Parts that the user's own code saves and restores: a State of their own class, and handlers registered with Horovod.

Neither declares the attributes in which it saves. So each save commits the attributes that it assigns or changes, and
they are assigned again before every ``restore``: any such pair restores exactly, even if it does not copy deeply, and
from the newest commit of any rank.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from torch import Tensor, nn, optim

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import Unfit, is_fit, write
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.optim.averaging import drop_step
from hvd_elastic_ext.worker.parts import Part

log = logging.getLogger(__name__)


class HandlerPart(Part):
    """A handler that the user registered with Horovod for a type of their own.

    Its attributes, except the value itself, are what it has saved.
    """

    reload = True
    has_sync = True

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.value = handler.value
        self._left_out: set[str] = set()
        handler.save()

    def capture(self) -> Any:
        """Run the handler's ``save`` and return the values of its attributes after that.

        If ``save`` has assigned an attribute that cannot be committed, it is left out; a warning names it once.
        """
        before = dict(vars(self.handler))
        self.handler.save()
        after = {key: value for key, value in vars(self.handler).items() if key != "value" and value is not self.value}
        fresh = {key for key, value in after.items() if value is not before.get(key)}
        saved = {key: value for key, value in after.items() if _is_saved(value, fresh=key in fresh)}
        for key in sorted(fresh - saved.keys() - self._left_out):
            self._left_out.add(key)
            log.warning(
                "%s.save keeps something in %s (%s) that cannot be committed: it is rolled back only as far as its "
                "restore does so, and does not outlive the process",
                type(self.handler).__name__, key, type(after[key]).__name__,
            )  # fmt: skip
        return _apart(saved)

    def restore(self, tree: Any) -> None:
        """Assign the committed attributes to the handler, then run its ``restore``."""
        _assign(self.handler, tree)
        self.handler.restore()

    def sync(self) -> None:
        """Run the handler's ``sync``."""
        self.handler.sync()


def _is_saved(value: object, *, fresh: bool) -> bool:
    """Whether a handler's attribute holds saved state. A model that the last save has assigned is a copy."""
    return fresh if isinstance(value, nn.Module) else is_fit(value)


LIVE = (nn.Module, optim.Optimizer)
"""Types that no snapshot contains, except copies of models, which are committed by their state."""
PROBED: Final = 1000
"""Most items of a list that are searched for models."""
HEAVY: Final = 1 << 20
MAX_ATTEMPTS: Final = 6
"""Most comparisons of an attribute with more bytes than :data:`HEAVY`, without tensors: each one copies it."""


@dataclass(frozen=True)
class Content:
    """The content of an attribute at one time. Two are equal if nothing has changed between them."""

    data: str
    """The attribute as text."""
    tensors: list[Tensor] = field(compare=False)
    objects: list[tuple[int, int]]
    """The objects that it consists of, by id, with the number of torch's writes to each."""


class SnapshotPart(Part):
    """The attributes of ``value`` in which its own ``save`` saves.

    ``save``, ``restore`` and ``sync`` are the user's; ``sync`` is None if the user has not overridden Horovod's.
    ``merged`` names attributes whose value on this rank ``sync`` needs.
    """

    reload = True

    def __init__(
        self,
        value: Any,
        *,
        save: Callable[[], object],
        restore: Callable[[], object],
        sync: Callable[[], object] | None,
        ignored: frozenset[str],
        merged: Sequence[str] = (),
    ) -> None:
        self.value = value
        self._merged = merged
        self._own: dict[str, Any] = {}
        self._save, self._restore, self._sync = save, restore, sync
        self.has_sync = sync is not None
        self._ignored = ignored
        self._names: set[str] = set()
        self._copies: set[str] = set()
        self._same: dict[str, int] = {}
        self._first: dict[str, Content] = {}
        self._left_out: set[str] = set()
        self._assigned: set[str] | None = None

    def capture(self) -> Any:
        """Run the user's ``save`` and return the attributes in which any save has saved until now.

        An attribute that cannot be committed is left out; a warning names it once.
        """
        before = dict(vars(self.value))
        contents = {name: _content(value) for name, value in before.items() if self._is_watched(name)}
        assigned = self._save_watched()
        for name, value in vars(self.value).items():
            if name in assigned or (name in contents and contents[name] != _content(value)):
                # A model that save has just assigned is a copy; a model that was there before is live.
                self._found(name, contents.get(name), fresh=name in assigned and value is not before.get(name))
            elif name in contents:
                self._nothing_new(name, contents[name])
        live = self._live()
        saved = {name: value for name, value in vars(self.value).items() if name in self._names}
        return _apart({name: value for name, value in saved.items() if self._is_kept(name, value, live)})

    def assigned(self, name: str) -> None:
        """Note that ``value.name`` has been assigned. During a save this marks the attribute as saved."""
        if self._assigned is not None and name not in self._ignored:
            self._assigned.add(name)

    def restore(self, tree: Any) -> None:
        """Assign the committed attributes, then run the user's ``restore``.

        This rank's values of ``merged`` are copied first, for :meth:`sync`. An attribute that a save changed for the
        first time after the commit gets its earlier value back, unless that cannot be committed.

        Raises :class:`StateError` if the commit is of another State.
        """
        if not isinstance(tree, dict) or tree.keys() != {"values", "models"}:
            raise StateError("the commit is of another State; build the same State on every rank")
        self._own = {name: copy.deepcopy(getattr(self.value, name)) for name in self._merged}
        names = {name for group in tree.values() for name in group}
        for name in self._names - names:
            if name in self._first:  # no save had ever changed it when this commit was taken
                setattr(self.value, name, _copy_of(self._first[name]))
        self._names |= names
        _assign(self.value, tree)
        self._restore()

    def settle(self) -> None:
        """Drop gradients and pending reductions of the optimizers that the State has as attributes."""
        for optimizer in self.optimizers("").values():
            drop_step(optimizer)

    def optimizers(self, name: str) -> dict[str, optim.Optimizer]:
        """Return the optimizers that the State has as attributes."""
        return {name: value for name, value in vars(self.value).items() if isinstance(value, optim.Optimizer)}

    def sync(self) -> None:
        """Assign the copies of ``merged`` from the last :meth:`restore`, then run the user's ``sync``, if any."""
        for name, value in self._own.items():
            setattr(self.value, name, value)
        if self._sync is not None:
            self._sync()

    def _is_watched(self, name: str) -> bool:
        """Whether ``name`` must still be compared, because it is unknown if ``save`` saves in it."""
        return name not in self._ignored and name not in self._names and self._same.get(name, 0) < MAX_ATTEMPTS

    def _save_watched(self) -> set[str]:
        """Run the user's save, and return the attributes that it assigned."""
        assigned: set[str] = set()
        self._assigned = assigned
        try:
            self._save()
        finally:
            self._assigned = None
        return assigned

    def _found(self, name: str, content: Content | None, *, fresh: bool) -> None:
        """Note that ``save`` saves in ``name``."""
        if name not in self._names and content is not None:
            self._first[name] = content
        self._names.add(name)
        if fresh:
            self._copies.add(name)

    def _nothing_new(self, name: str, content: Content | None) -> None:
        if content is not None and len(content.data) > HEAVY:
            self._same[name] = self._same.get(name, 0) + 1

    def _live(self) -> frozenset[int]:
        """The ids of the State's live models and optimizers."""
        ids: set[int] = set()
        for name, value in vars(self.value).items():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            for item in islice(items, PROBED) if name not in self._names else ():
                ids |= set(map(id, item.modules() if isinstance(item, nn.Module) else [item]))
        return frozenset(ids)

    def _is_kept(self, name: str, value: Any, live: frozenset[int]) -> bool:
        """Whether what is saved in ``name`` can be committed. If not, a warning says so once."""
        is_copy = name in self._copies and not any(
            isinstance(node, LIVE) and id(node) in live for node in _nodes(value)
        )
        if is_copy if isinstance(value, nn.Module) else is_fit(value):
            return True
        if name not in self._left_out:
            self._left_out.add(name)
            log.warning(
                "%s.save puts something into self.%s (%s) that cannot be committed: it is rolled back only as far as "
                "restore does so, and does not outlive the process",
                type(self.value).__name__, name, type(value).__name__,
            )  # fmt: skip
        return False


def _content(value: Any) -> Content | None:
    """Return the content of an attribute, for comparison; None if it cannot be committed."""
    tensors: list[Tensor] = []
    try:
        data = write(value, tensors)
    except Unfit:
        return None
    return Content(data, tensors, [(id(node), _version(node)) for node in _nodes(value)])


def _nodes(value: Any) -> Iterator[Any]:
    """Yield the objects that ``value`` consists of. If an equal object replaces one of them, that is a change."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        inner = node if isinstance(node, dict | list | tuple) else getattr(node, "__dict__", None)
        if isinstance(node, Tensor):
            yield node
        elif isinstance(inner, dict | list | tuple) and id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(inner.values() if isinstance(inner, dict) else inner)


def _version(node: Any) -> int:
    """The number of torch's writes to a tensor; 0 if torch does not count them."""
    return node._version if isinstance(node, Tensor) and not node.is_inference() else 0


def _copy_of(content: Content) -> Any:
    return read(content.data, lambda index, kind: content.tensors[index].clone())


def _apart(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes in which a user's own ``save`` saves, as a tree; copies of models by their state."""
    models = {name: value.state_dict() for name, value in saved.items() if isinstance(value, nn.Module)}
    return {"values": {name: value for name, value in saved.items() if name not in models}, "models": models}


def _assign(owner: object, tree: Mapping[str, Any]) -> None:
    """Give the attributes of ``owner`` the state in ``tree``, from :func:`_apart`.

    Raises :class:`StateError` if a model is missing.
    """
    for name, value in tree["values"].items():
        setattr(owner, name, value)
    for name, state in tree["models"].items():
        model = getattr(owner, name, None)
        if not isinstance(model, nn.Module):
            raise StateError(f"the commit has a copy of a model under {name!r}, but this State has none")
        model.load_state_dict(state)

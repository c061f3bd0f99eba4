"""The contents of one State: its parts and plain values, written as one tree and put back from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.checkpoint.values.read import TensorAt, read
from hvd_elastic_ext.checkpoint.values.trees import CLASSES, VALUES
from hvd_elastic_ext.checkpoint.values.write import Unfit, is_parameter, write
from hvd_elastic_ext.core.errors import Permanent, StateError
from hvd_elastic_ext.worker.commits.layout import Layout
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.snapshot_part import SnapshotPart
from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, OptimizerPart

log = logging.getLogger(__name__)

PROBED: Final = 128
"""Tensors that are compared to notice a change behind torch's back."""

PROBES: Final = 16
"""Elements of each: every one may be the first touch of its page for a while, and all ranks wait."""

Versions = tuple[list[int], list[int]]
"""Which tensor objects, and how often torch has written to each."""

_version: Final = attrgetter("_version")

Difference = Literal["values", "tensors"]

PartFor = Callable[[object], Part | None]


@dataclass(frozen=True, slots=True)
class Written:
    """The live state: a tree, its tensors uncopied, and which of them are firm (equal on ranks of the same commit)."""

    tree: bytes
    tensors: Sequence[Tensor]
    firm: Sequence[bool]
    versions: Versions | None

    def difference(self, now: Written, committed: Sequence[Tensor]) -> Difference | None:
        """Which kind of content has changed since, or None. ``committed``: the tensors of the commit."""
        if self.versions is None or self.versions != now.versions or not resembles(now.tensors, committed):
            return "tensors"
        return None if self.tree == now.tree else "values"

    def firm_differs(self, now: Written) -> bool:
        """Whether torch has written to a firm tensor since, or another one is in its place."""
        if self.versions is None or now.versions is None:
            return True
        pairs = zip(self.versions, now.versions, strict=True)
        return any(list(compress(mine, self.firm)) != list(compress(theirs, now.firm)) for mine, theirs in pairs)


class Inventory:
    """Parts by name, and names of plain values, of the object ``owner`` that has both as attributes."""

    def __init__(self, owner: object, parts: Mapping[str, Part], *, names: Sequence[str], part_for: PartFor) -> None:
        self.owner = owner
        self.parts = dict(parts)
        self._names = list(names)
        self._part_for = part_for

    @property
    def names(self) -> frozenset[str]:
        """Names of all parts and plain values."""
        return frozenset((*self.parts, *self._names))

    def values(self) -> dict[str, Any]:
        """The plain values, live."""
        return {name: getattr(self.owner, name) for name in self._names}

    def live(self) -> dict[str, Any]:
        """Everything that is shared, as a tree of live state."""
        return {"parts": {name: part.capture() for name, part in self.parts.items()}, "values": self.values()}

    def models(self) -> dict[str, nn.Module]:
        """The models that are parts, live, by name."""
        return {name: part.value for name, part in self.parts.items() if isinstance(part, ModelPart)}

    def optimizers(self) -> dict[str, Any]:
        """The optimizers that are parts, or attributes of a user's own State, live, by name."""
        own = {name: part.value for name, part in self.parts.items() if isinstance(part, OptimizerPart)}
        for part in self.parts.values():
            own |= part.optimizers() if isinstance(part, SnapshotPart) else {}
        return own

    def expected_bytes(self) -> int:
        """Bytes of state that the first step will create."""
        return sum(tensor.nbytes for part in self._optimizer_parts() for tensor in part.expected())

    def make_ready(self) -> list[Tensor]:
        """Allocate tensors for what the first sync may bring, and return them."""
        return [tensor for part in self._optimizer_parts() for tensor in part.make_ready()]

    def _optimizer_parts(self) -> list[OptimizerPart]:
        return [part for part in self.parts.values() if isinstance(part, OptimizerPart)]

    def write(self) -> Written:
        """Write the live state. Raises :class:`StateError` naming what cannot be committed."""
        texts: dict[str, str] = {}
        tensors: list[Tensor] = []
        firm: list[bool] = []
        for name, part in self.parts.items():
            known = len(tensors)
            texts[name] = write_one(name, part.capture(), tensors)
            new = tensors[known:]
            firm += [True] * len(new) if part.firm else map(is_parameter, new)
        known = len(tensors)
        classes = self._classes()
        texts[VALUES] = _write_values(self.values() | ({CLASSES: classes} if classes else {}), tensors)
        self._demand_no_parameters_of(tensors[:known], among=tensors[known:])
        firm += [False] * (len(tensors) - len(firm))
        return Written(trees.encode(texts), tensors, firm, versions_of(tensors))

    def _demand_no_parameters_of(self, parts: Sequence[Tensor], *, among: Sequence[Tensor]) -> None:
        """A list of a model's parameters would come back as copies, which no optimizer steps and nothing clips."""
        held = {id(tensor) for tensor in among if is_parameter(tensor)}
        if not held or held.isdisjoint(map(id, parts)):
            return
        kept = held.intersection(map(id, parts))
        for name, value in self.values().items():
            own: list[Tensor] = []
            write(value, own)
            if not kept.isdisjoint(map(id, own)):
                raise StateError(
                    f"state.{name} ({type(value).__name__}) holds parameters of a model of this State, which would "
                    "come back as copies that nobody trains; take them from the model where they are needed"
                )

    def put_back(self, tree: bytes, layout: Layout, *, views: Sequence[Tensor], only_reloaded: bool = False) -> None:
        """Make the live state what was written as ``tree``, with ``views`` for its tensors.

        With ``only_reloaded`` nothing is put back but parts that a new world has something to do with.
        """
        texts = trees.decode(tree)
        self._demand_same_parts(texts)
        values = {} if only_reloaded else read(texts[VALUES], _copied(layout, views))
        self._demand_same_classes(values.pop(CLASSES, None))
        for name, part in self.parts.items():
            if part.reload or not only_reloaded:
                at = _uncopied(views) if part.takes_views else _copied(layout, views)
                _restore(part, read(texts[name], at), name=name)
        if not only_reloaded:
            self._assign(values)

    def settle(self) -> None:
        """Make every part forget what was unfinished when the last world ended."""
        for part in self.parts.values():
            part.settle()

    def sync_users(self) -> bool:
        """Run the syncs of the user's own handlers and State; True if there are any."""
        parts = [part for part in self.parts.values() if part.has_sync]
        for part in parts:
            part.sync()
        return bool(parts)

    def assigning(self, name: str, value: object) -> bool:
        """``owner.name`` is about to be ``value``; True if what is kept under that name is another thing now."""
        part = self.parts.get(name)
        if part is None and name not in self._names:
            return False
        if part is not None and part.value is value:
            return False
        new = self._part_for(value)
        if part is None and new is None:
            return False
        self.parts.pop(name, None)
        if name in self._names:
            self._names.remove(name)
        if new is not None:
            self.parts[name] = new
        else:
            self._names.append(name)
        return True

    def _assign(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name not in self._names:
                self._names.append(name)
            setattr(self.owner, name, value)

    def _demand_same_parts(self, texts: Mapping[str, str]) -> None:
        different = (texts.keys() - {VALUES}) ^ self.parts.keys()
        if different:
            name = min(different)
            where = "only in this process's State" if name in self.parts else "in the commit, but not in this State"
            raise StateError(f"state.{name} is {where}; build the same State on every rank")

    def _classes(self) -> dict[str, str]:
        """Names of the classes of parts that need one of theirs."""
        return {name: found for name, part in self.parts.items() if (found := part.class_name) is not None}

    def _demand_same_classes(self, committed: object) -> None:
        """Another optimizer's or scheduler's fields would be merged with those here. Older commits name no class."""
        known = committed if isinstance(committed, dict) else {}
        for name, here in self._classes().items():
            there = known.get(name, here)
            if there != here:
                raise StateError(
                    f"state.{name} is {here} here and {there} in the commit; build the same State on every rank"
                )


def versions_of(tensors: Sequence[Tensor]) -> Versions | None:
    """What changes when torch writes to a tensor, or another one takes its place; None where torch does not count."""
    try:
        return list(map(id, tensors)), list(map(_version, tensors))
    except RuntimeError:  # inference tensors
        return None


def write_one(name: str, value: Any, tensors: list[Tensor]) -> str:
    """Return ``value`` as text. Raises :class:`StateError` that says what of ``state.NAME`` cannot be committed."""
    try:
        return write(value, tensors)
    except Unfit as unfit:
        place = f"state.{name}{unfit.path}"
        kept = unfit.instead.format("value" if unfit.path else name)
        write_instead = f"; keep its text or number: {place} = {kept}" if kept else ""
        raise StateError(f"{place} cannot be committed: {unfit}{write_instead}") from None


def _write_values(values: Mapping[str, Any], tensors: list[Tensor]) -> str:
    known = len(tensors)
    try:
        return write(dict(values), tensors)
    except Unfit:
        del tensors[known:]
        for name, value in values.items():
            write_one(name, value, [])
        raise


def _restore(part: Part, tree: Any, *, name: str) -> None:
    try:
        part.restore(tree)
    except Permanent as error:
        raise StateError(f"state.{name}: {error}") from error


def resembles(live: Sequence[Tensor], committed: Sequence[Tensor]) -> bool:
    """False if a sample of the elements differs. This finds changes that torch does not count, as through ``.data``."""
    if len(live) != len(committed):
        return False
    step = max(1, len(live) // PROBED)
    return all(_same_sample(a.detach(), b) for a, b in zip(live[::step], committed[::step], strict=True))


def _same_sample(live: Tensor, committed: Tensor) -> bool:
    if live.shape != committed.shape or live.dtype != committed.dtype:
        return False
    if not live.is_contiguous() or not committed.is_contiguous() or not live.numel():
        return True
    step = max(1, live.numel() // PROBES)
    mine, theirs = live.view(-1)[::step].cpu(), committed.view(-1)[::step]
    # As bytes: a NaN equals itself.
    return torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def _uncopied(views: Sequence[Tensor]) -> TensorAt:
    return lambda index, kind: views[index]


def _copied(layout: Layout, views: Sequence[Tensor]) -> TensorAt:
    def at(index: int, kind: str) -> Tensor:
        tensor = views[index].to(layout.places[index].device, copy=True)
        if kind in ("parameter", "frozen"):
            return nn.Parameter(tensor, requires_grad=kind == "parameter")
        return tensor.requires_grad_(kind == "leaf")

    return at

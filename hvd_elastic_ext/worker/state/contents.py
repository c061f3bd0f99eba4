"""The contents of one State: its parts and plain values, written as one tree and put back from it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
from hvd_elastic_ext.worker.commits.buffer import CopyTo
from hvd_elastic_ext.worker.commits.layout import Layout
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.tensor_trees import copied, may_be_overwritten

log = logging.getLogger(__name__)

PROBED: Final = 128
"""Number of tensors that are compared to detect a change that torch does not count."""

PROBES: Final = 16
"""Elements of each that are compared. They are few, because each may be slow to read, and all ranks wait."""

Versions = tuple[list[int], list[int]]
"""The identity of each tensor object, and the number of torch's writes to it."""

_version: Final = attrgetter("_version")

Difference = Literal["values", "tensors"]

PartFor = Callable[[object], Part | None]

_FIRST_TENSOR: Final = re.compile(r'{"\$tensor":\[?(\d+)')
_SPARSE: Final = '{"$sparse":'
"""Marks a sparse tensor, which is written as copies of two dense ones. No string in a part's text contains it."""


@dataclass(frozen=True, slots=True)
class Written:
    """The live state: a tree, its tensors without copies, and which are firm (equal on ranks with the same commit)."""

    tree: bytes
    tensors: Sequence[Tensor]
    firm: Sequence[bool]
    versions: Versions | None

    def difference(self, now: Written, committed: Sequence[Tensor]) -> Difference | None:
        """Return which kind of content has changed until ``now``, or None. ``committed``: the tensors of the commit."""
        if self.versions is None or now.versions is None:
            same = are_equal(now.tensors, committed)
        else:
            same = self.versions == now.versions and resembles(now.tensors, committed)
        if not same:
            return "tensors"
        return None if self.tree == now.tree else "values"

    def firm_differs(self, now: Written, committed: Callable[[], Sequence[Tensor]]) -> bool:
        """Whether a firm tensor was written to until ``now``, or another one has replaced it."""
        if self.versions is None or now.versions is None:
            return not are_equal(list(compress(now.tensors, now.firm)), list(compress(committed(), self.firm)))
        pairs = zip(self.versions, now.versions, strict=True)
        return any(list(compress(mine, self.firm)) != list(compress(theirs, now.firm)) for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """The written parts: the text of each by its name, their tensors, and which of these are firm."""

    texts: dict[str, str] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    firm: list[bool] = field(default_factory=list)

    def add(self, name: str, part: Part, text: str, tensors: Sequence[Tensor]) -> None:
        """Add a part. Call it in the order of the parts."""
        self.texts[name] = text
        self.tensors.extend(tensors)
        self.firm.extend(part.is_firm(tensors))


class Inventory:
    """Parts by name, and names of plain values, of the object ``owner`` that has both as attributes."""

    def __init__(self, owner: object, parts: Mapping[str, Part], *, names: Sequence[str], part_for: PartFor) -> None:
        self.owner = owner
        self.parts = dict(parts)
        self._names = list(names)
        self._part_for = part_for
        for part in parts.values():
            part.join(self.parts)

    @property
    def names(self) -> frozenset[str]:
        """Names of all parts and plain values."""
        return frozenset((*self.parts, *self._names))

    def values(self) -> dict[str, Any]:
        """The live plain values, by name."""
        return {name: getattr(self.owner, name) for name in self._names}

    def live(self) -> dict[str, Any]:
        """The live shared state, as a tree."""
        return {"parts": {name: part.capture() for name, part in self.parts.items()}, "values": self.values()}

    def values_of(self, kind: type[Part]) -> dict[str, Any]:
        """The live values of the parts of one kind, by name."""
        return {name: part.value for name, part in self.parts.items() if isinstance(part, kind)}

    def optimizers(self) -> dict[str, Any]:
        """The live optimizers, by name: parts, then attributes of a user's own State, which is the part ""."""
        own: dict[str, Any] = {}
        for name in sorted(self.parts, key=lambda name: name == ""):
            own |= self.parts[name].optimizers(name)
        return own

    @contextmanager
    def watched(self, stepped: Callable[[], None]) -> Iterator[None]:
        """Context in which ``stepped`` is called whenever a step of an optimizer may have ended."""
        with ExitStack() as stack:
            for part in self.parts.values():
                stack.enter_context(part.watched(stepped))
            yield

    def generators(self) -> dict[str, Any]:
        """The states of random generators within parts, which stay on their rank, by the names of the parts."""
        states = {name: part.generators() for name, part in self.parts.items()}
        return {name: found for name, found in states.items() if found is not None}

    def restore_generators(self, states: Mapping[str, Any]) -> None:
        """Restore those of the parts that ``states`` names."""
        for name, part in self.parts.items():
            if (found := states.get(name)) is not None:
                part.restore_generators(found)

    def seed_generators(self, seed: int) -> None:
        """Seed them. Each rank gets another ``seed``."""
        for part in self.parts.values():
            part.seed_generators(seed)

    def descriptions(self) -> dict[str, bytes]:
        """What an export should know of parts besides their contents, by their names."""
        found = {name: part.description() for name, part in self.parts.items()}
        return {name: each for name, each in found.items() if each is not None}

    def expected_bytes(self) -> int:
        """Bytes of state that the first step will create."""
        return sum(tensor.nbytes for part in self.parts.values() for tensor in part.expected())

    def make_ready(self) -> list[Tensor]:
        """Allocate tensors for the state that the first sync may bring, and return them."""
        return [tensor for part in self.parts.values() for tensor in part.make_ready()]

    def write(self, parts: WrittenParts | None = None) -> Written:
        """Write the live state. Raises :class:`StateError`, which names the value that cannot be committed.

        ``parts``: the result of :meth:`put_back`, if only contents of tensors have changed since.
        """
        written = self._write_parts() if parts is None else parts
        tensors, of_parts, classes = list(written.tensors), len(written.tensors), self._classes()
        values = _write_values(self.values() | ({CLASSES: classes} if classes else {}), tensors)
        self._demand_no_parameters_of(written.tensors, among=tensors[of_parts:])
        firm = written.firm + [False] * (len(tensors) - of_parts)
        versions = versions_of(tensors) if all(part.counts_writes for part in self.parts.values()) else None
        return Written(trees.encode({**written.texts, VALUES: values}), tensors, firm, versions)

    def _write_parts(self) -> WrittenParts:
        written = WrittenParts()
        for name, part in self.parts.items():
            tensors = list(written.tensors)
            text = write_one(name, _captured(part, name=name), tensors)
            written.add(name, part, text, tensors[len(written.tensors) :])
        return written

    def _demand_no_parameters_of(self, parts: Sequence[Tensor], *, among: Sequence[Tensor]) -> None:
        """Refuse values with a model's parameters: a roll-back would replace them by copies that are not trained."""
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
                    "come back as copies that are not trained; take them from the model where they are needed"
                )

    def put_back(
        self,
        tree: bytes,
        layout: Layout,
        *,
        views: Sequence[Tensor],
        copy_to: CopyTo | None = None,
        only_reloaded: bool = False,
    ) -> WrittenParts | None:
        """Restore the live state from ``tree``, with ``views`` for its tensors.

        If ``copy_to`` alone restores a part, the part is not loaded. If this is so for all parts, they are returned for
        :meth:`write`. With ``only_reloaded``, only the parts that must adapt to a new world are restored.
        """
        texts = trees.decode(tree)
        self._demand_same_parts(texts)
        values = {} if only_reloaded else read(texts[VALUES], _copied(layout, views))
        self._demand_same_classes(values.pop(CLASSES, None))
        written = WrittenParts()
        for name, part in self.parts.items():
            if part.reload or not only_reloaded:
                live = None if copy_to is None else _copied_in_place(name, part, texts[name], copy_to, most=len(views))
                if live is not None:
                    written.add(name, part, texts[name], live)
                    continue
                at = _uncopied(views) if part.takes_views else _copied(layout, views)
                _restore(part, read(texts[name], at), name=name)
        if not only_reloaded:
            self._assign(values)
        return written if written.texts.keys() == self.parts.keys() else None

    def adapt(self) -> None:
        """Adapt the parts that must to a new world, with their live state."""
        for name, part in self.parts.items():
            if part.reload and not isinstance(getattr(part, "value", None), ElasticSampler):  # its rounds do that
                _restore(part, copied(_captured(part, name=name)), name=name)

    def settle(self) -> None:
        """Make every part drop its unfinished work of the last world."""
        for part in self.parts.values():
            part.settle()

    def sync_users(self) -> bool:
        """Run the syncs of the user's own handlers and State. Return whether there are any."""
        parts = [part for part in self.parts.values() if part.has_sync]
        for part in parts:
            part.sync()
        return bool(parts)

    def assigning(self, name: str, value: object) -> bool:
        """Prepare for the assignment of ``value`` to ``owner.name``. Return True if this changes which object is kept
        under that name."""
        part = self.parts.get(name)
        if part is None and name not in self._names:
            return False
        if part is not None and part.value is value:
            return False
        new = self._part_for(value)
        if part is None and new is None:
            return False
        for each in (*self.parts.values(), *([new] if new is not None else [])):
            each.assigning(name)
        self.parts.pop(name, None)
        if name in self._names:
            self._names.remove(name)
        if new is not None:
            self.parts[name] = new
            new.join(self.parts)
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
        """Class names of the parts for which the class matters, by part."""
        return {name: found for name, part in self.parts.items() if (found := part.class_name) is not None}

    def _demand_same_classes(self, committed: object) -> None:
        """Refuse another class of optimizer or scheduler: its fields would be merged with those here. Older commits
        name no class."""
        names = committed if isinstance(committed, dict) else {}
        for name, here in self._classes().items():
            there = names.get(name, here)
            if there != here:
                raise StateError(
                    f"state.{name} is {here} here and {there} in the commit; build the same State on every rank"
                )


def versions_of(tensors: Sequence[Tensor]) -> Versions | None:
    """Return a value that changes when torch writes to a tensor, or when another one replaces it. None if torch does
    not count the writes."""
    try:
        return list(map(id, tensors)), list(map(_version, tensors))
    except RuntimeError:  # an inference tensor has no version
        return None


def write_one(name: str, value: Any, tensors: list[Tensor]) -> str:
    """Return ``value`` as text. Raises :class:`StateError`, which says what in ``state.NAME`` cannot be committed."""
    try:
        return write(value, tensors)
    except Unfit as unfit:
        place = f"state.{name}{unfit.path}"
        kept = unfit.instead.format("value" if unfit.path else name)
        remedy = unfit.in_state or (f"keep its text or number: {place} = {kept}" if kept else "")
        raise StateError(f"{place} cannot be committed: {unfit}{f'; {remedy}' if remedy else ''}") from None


def _write_values(values: Mapping[str, Any], tensors: list[Tensor]) -> str:
    known = len(tensors)
    try:
        return write(dict(values), tensors)
    except Unfit:
        del tensors[known:]
        for name, value in values.items():
            write_one(name, value, [])
        raise


def _copied_in_place(name: str, part: Part, text: str, copy_to: CopyTo, *, most: int) -> list[Tensor] | None:
    """Restore a part by copies into its live tensors, and return these. None if that is not enough."""
    first = _FIRST_TENSOR.search(text)
    before = 0 if first is None else int(first[1])
    live = part.in_place() if before <= most and _SPARSE not in text else None
    if live is None:
        return None
    # The tensors before them are not needed, only their count: the text refers to tensors by number.
    tensors = [torch.empty(0)] * before
    try:
        written = write_one(name, live.tree, tensors)
    except StateError:
        return None
    del tensors[:before]
    same = written == text or part.align(written, text)
    return tensors if same and may_be_overwritten([*live.beside, *tensors]) and copy_to(tensors, before) else None


def _captured(part: Part, *, name: str) -> Any:
    try:
        return part.capture()
    except StateError as error:
        raise StateError(f"state.{name}: {error}") from error


def _restore(part: Part, tree: Any, *, name: str) -> None:
    try:
        part.restore(tree)
    except Permanent as error:
        raise StateError(f"state.{name}: {error}") from error


def resembles(live: Sequence[Tensor], committed: Sequence[Tensor]) -> bool:
    """Whether a sample of the elements is equal. This finds changes that torch does not count, such as by ``.data``."""
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
    # Compare bytes, so that a NaN equals itself.
    return torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def are_equal(live: Sequence[Tensor], committed: Sequence[Tensor]) -> bool:
    """Whether all contents are equal, byte for byte."""
    return len(live) == len(committed) and all(map(_same_bytes, live, committed))


def _same_bytes(live: Tensor, committed: Tensor) -> bool:
    if live.shape != committed.shape or live.dtype != committed.dtype:
        return False
    mine, theirs = live.detach().cpu().contiguous().view(-1), committed.cpu().contiguous().view(-1)
    return torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))  # so that a NaN equals itself


def _uncopied(views: Sequence[Tensor]) -> TensorAt:
    return lambda index, kind: views[index]


def _copied(layout: Layout, views: Sequence[Tensor]) -> TensorAt:
    def at(index: int, kind: str) -> Tensor:
        tensor = views[index].to(layout.places[index].device, copy=True)
        if kind in ("parameter", "frozen"):
            return nn.Parameter(tensor, requires_grad=kind == "parameter")
        return tensor.requires_grad_(kind == "leaf")

    return at

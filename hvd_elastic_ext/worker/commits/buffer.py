"""The commit buffer: stage, then seal.

A commit is staged on a side without a commit, by copies in place. One small store then makes it the last commit. Until
that store, the previous commit stays whole, whatever happens.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from torch import Tensor

from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits import layout as layouts
from hvd_elastic_ext.worker.commits.copying import Plan, awaited, pin
from hvd_elastic_ext.worker.commits.layout import Layout
from hvd_elastic_ext.worker.commits.memory import SIDES, Side, populate

CopyTo = Callable[[Sequence[Tensor], int], bool]
"""Copies a commit's tensors, from a given number on, into given tensors. Returns False if these differ in form from the
last committed ones."""

log = logging.getLogger(__name__)

_ALIGNED: Final = 64
"""What lies behind a commit begins at a multiple of so many bytes."""
_BESIDE: Final = struct.Struct("<8s3q3q")
"""In front of it: a mark, the commit's incarnation, generation and number, and the bytes of its data, layout and tree.
It is as long as :data:`_ALIGNED` at most."""
_MARK: Final = b"hvdbesid"


@dataclass(frozen=True, slots=True)
class Beside:
    """What lies behind a commit in this memory, and is not a part of it: nobody sends it, and no checkpoint has it. A
    tree and the tensors in it."""

    tree: bytes
    tensors: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a commit: a written tree, the live tensors in it, and this rank's own tree, ``local``.

    ``firm``: for each tensor, whether it is equal on all ranks with the same commit, whatever the user does
    (parameters, optimizer state).
    """

    tree: bytes
    tensors: Sequence[Tensor]
    firm: Sequence[bool]
    local: bytes | Callable[[], bytes] = b""
    """This rank's own tree. If it is a function, it is called while a device copies the tensors."""
    beside: Beside | None = None
    """What the next process of this slot will find with the commit, as long as it is the last one."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A sealed commit; ``views`` share the buffer's memory and are valid until the commit after the next one."""

    record: Record
    tree: bytes
    local: bytes
    layout: Layout
    views: Sequence[Tensor]
    _load: Callable[..., bool] | None

    @contextmanager
    def copying(self) -> Iterator[CopyTo | None]:
        """Give a function that copies into live tensors, no two of which may share memory. All copies are done at the
        end of the context.

        It is None if this process has committed nothing of this layout.
        """
        with awaited() as later:
            yield None if self._load is None else partial(self._load, later=later)


@dataclass(frozen=True, slots=True, order=True)
class HandedOver:
    """A commit that another process has sealed in this memory since this process last looked."""

    sequence: int
    index: int
    record: Record


class Held:
    """The shared bytes of a sealed commit that is not the last one any more. Later commits may overwrite it."""

    def __init__(self, record: Record, side: Side) -> None:
        self.record = record
        self._side = side
        self._copy: Tensor | None = None
        self._protects = False

    def protect(self) -> None:
        """Let later commits go elsewhere if they can, also those of another process."""
        if not self._side.kept:
            self._side.kept = self._side.for_result = self._protects = True

    def release(self) -> None:
        """Allow to overwrite it again, unless it is kept for a checkpoint."""
        if self._protects and self._side.for_result:
            self._side.kept = self._side.for_result = False
        self._protects = False

    def copy(self) -> None:
        """Copy it now: it is about to be overwritten."""
        if self._copy is None:
            self._copy = self._side.bytes[: self.record.shared].clone()

    @property
    def bytes(self) -> memoryview:
        """The shared bytes: data, layout and tree. Raises :class:`StateError` if they were overwritten."""
        if self._copy is not None:
            return self._copy.numpy().data
        there = self._side.record()
        if there is None or there[1].identity[1:] != self.record.identity[1:]:
            raise StateError("it was overwritten")
        return self._side.bytes[: self.record.shared].numpy().data


class CommitBuffer:
    """Two or more sides, one of which holds the last sealed commit.

    If an earlier process has filled the sides, ``last`` is its last commit. The owner of the memory may transfer a
    newer commit into it at any time. That commit stays there, and :meth:`catch_up` makes it the last one.
    """

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        self._views: dict[int, tuple[Layout, list[Tensor]]] = {}
        self._planned: Plan | None = None
        self._planned_beside: Plan | None = None
        self.beside_length = 0
        """Bytes that the last :class:`Beside` has taken behind its commit."""
        self._told_of_beside = False
        self._arriving = 0
        self.call = 0
        """The training call whose commits are made here; those of other calls are not taken over. 0: of any."""
        found = [(sealed[0], index) for index, side in enumerate(sides) if (sealed := side.record()) is not None]
        self._sequence: int
        self._current: int | None
        self._sequence, self._current = max(found) if found else (0, None)

    @property
    def record(self) -> Record | None:
        """The record of the last commit; None if there is no commit."""
        if self._current is None:
            return None
        sealed = self._sides[self._current].record()
        return None if sealed is None else sealed[1]

    def last(self) -> Commit | None:
        """The last sealed commit; None if there is none."""
        record = self.record
        if record is None or self._current is None:
            return None
        side = self._sides[self._current]
        at = record.data
        encoded, at = side.read(at, record.layout), at + record.layout
        tree, at = side.read(at, record.tree), at + record.tree
        layout = self._known(encoded)
        if (layout.loose, layout.length) != (record.loose, record.data):
            raise StateError("the layout of a commit is not that of its bytes; run the same code on every rank")
        views, plan = self._views_on(self._current, layout), self._planned
        load = partial(plan.load, side.bytes, views) if plan is not None and plan.layout is layout else None
        return Commit(record, tree, side.read(at, record.local), layout, views, load)

    def beside(self) -> Beside | None:
        """What was put beside the last commit when it was taken here; None if nothing was, or if it came from another
        slot or a checkpoint. The tensors share the buffer's memory, as :attr:`Commit.views` do."""
        index, record = self._sealed()
        side, at = self._sides[index], _behind(record)
        head = side.read(at, _BESIDE.size)
        if len(head) < _BESIDE.size:
            return None
        mark, incarnation, generation, number, data, layout, tree = _BESIDE.unpack(head)
        if mark != _MARK or (incarnation, generation, number) != record.identity[1:]:
            return None
        at += _ALIGNED
        places = layouts.decode(side.read(at + data, layout))
        return Beside(side.read(at + data + layout, tree), places.views(side.bytes[at:]))

    def _put_beside(self, index: int, record: Record, beside: Beside | None) -> None:
        """Put it where :meth:`beside` finds it, or see to it that nothing is found. The side is claimed, and not sealed
        yet. A commit does not need it: if it cannot be stored, it is left out.
        """
        side, at = self._sides[index], _behind(record)
        if side.bytes.numel() >= at + _BESIDE.size:
            side.write(at, bytes(_BESIDE.size))
        if beside is None:
            return
        try:
            self._put_behind(index, record, beside)
        except StateError as error:
            if not self._told_of_beside:
                log.warning("what stays in this slot beside a commit was not stored: %s", error)
            self._told_of_beside = True

    def _put_behind(self, index: int, record: Record, beside: Beside) -> None:
        side, firm = self._sides[index], [True] * len(beside.tensors)
        if self._planned_beside is None or not self._planned_beside.suits(beside.tensors, firm):
            self._planned_beside = Plan(beside.tensors, firm)
        layout, at = self._planned_beside.layout, _behind(record)
        texts = layout.encoded + beside.tree
        length = at - record.total + _ALIGNED + layout.length + len(texts)
        if side.reserve(record.total + length):
            self._views.pop(index, None)
        self.beside_length = length
        data = side.bytes[at + _ALIGNED :]
        with awaited() as later:
            self._planned_beside.store(beside.tensors, data, layout.views(data), later=later)
        side.write(at + _ALIGNED + layout.length, texts)
        # Last: whoever finds the mark finds the rest.
        lengths = layout.length, len(layout.encoded), len(beside.tree)
        side.write(at, _BESIDE.pack(_MARK, *record.identity[1:], *lengths))

    def take(self, contents: Contents, identity: Identity, *, step: int) -> Record:
        """Stage and seal ``contents``. Allocates nothing after the first commits of one layout."""
        with self._staged(contents, self._plan_for(contents), identity, step) as (index, record):
            self._seal(index, record)
        return record

    @contextmanager
    def _staged(self, contents: Contents, plan: Plan, identity: Identity, step: int) -> Iterator[tuple[int, Record]]:
        """Stage contents on a spare side, which is claimed as long as the context lasts. Does not seal them."""
        shared = len(plan.layout.encoded) + len(contents.tree)
        index, side = self._spare(plan.layout.length + shared)
        try:
            pin(side, contents.tensors)
            with awaited() as later:
                plan.store(contents.tensors, side.bytes, self._views_on(index, plan.layout), later=later)
                local = contents.local if isinstance(contents.local, bytes) else contents.local()
            record = Record(
                identity, step, loose=plan.layout.loose, data=plan.layout.length,
                layout=len(plan.layout.encoded), tree=len(contents.tree), local=len(local), call=self.call,
            )  # fmt: skip
            if side.reserve(record.total):
                self._views.pop(index, None)
            side.write(record.data, plan.layout.encoded + contents.tree + local)
            self._put_beside(index, record, contents.beside)
            yield index, record
        finally:
            side.release()

    def prepare(self, length: int, *, besides: Sequence[Tensor] = ()) -> None:
        """Allocate memory on every side for commits of ``length`` bytes, and for ``besides``, in the background."""
        grown: list[Side] = []
        for index, side in enumerate(self._sides[:SIDES]):
            if side.reserve(length):
                self._views.pop(index, None)
                # The side that is written next comes first.
                grown.insert(len(grown) if index == self._current else 0, side)
        populate([*(side.bytes for side in grown[:1]), *besides, *(side.bytes for side in grown[1:])])

    def receiving(self, record: Record, *, local: int) -> Tensor:
        """Return the bytes of a spare side, for the shared regions of an arriving commit; see :meth:`received`."""
        self._arriving, side = self._spare(record.shared + local)
        return side.bytes[: record.shared]

    def received(self, record: Record, local: bytes, *, lineage: int, beside: Beside | None = None) -> None:
        """Seal the received bytes, with this rank's own ``local`` tree, as a commit of ``lineage``."""
        side = self._sides[self._arriving]
        if side.reserve(record.shared + len(local)):
            self._views.pop(self._arriving, None)
        side.write(record.shared, local)
        identity = record.identity._replace(lineage=lineage)
        record = record._replace(identity=identity, local=len(local), stored=False)
        self._put_beside(self._arriving, record, beside)
        self._seal(self._arriving, record)
        self.release_sides()

    def release_sides(self) -> None:
        """Release every claimed side; an arriving commit is dropped."""
        for side in self._sides:
            side.release()

    def complete(self, local: bytes) -> None:
        """Add this rank's own part to the last commit, which was handed over without one."""
        index, record = self._sealed()
        assert not record.local, "the last commit has a part of its own"
        side = self._sides[index]
        if side.reserve(record.shared + len(local)):
            self._views.pop(index, None)
        side.write(record.shared, local)
        record = record._replace(local=len(local))
        self._put_beside(index, record, None)
        self._seal(index, record)

    def catch_up(self) -> bool:
        """If a newer commit was handed over, make it the last commit. Return whether there was one."""
        handed = self._handed_over()
        if handed is None:
            return False
        self._current = handed.index
        self._seal(handed.index, handed.record)  # for a later hand-over: this commit is a process's own now
        return True

    def sending(self) -> Tensor:
        """The shared regions of the last commit."""
        index, record = self._sealed()
        return self._sides[index].bytes[: record.shared]

    @property
    def can_keep(self) -> bool:
        """Whether a spare side remains while one side is kept."""
        return len(self._sides) > SIDES

    def prepare_to_keep(self) -> None:
        """Allocate memory in the background for one more commit as large as the last. May be called from any thread.

        While no commit is kept, no other process uses this side.
        """
        record = self.record
        if self.can_keep and record is not None and not any(side.kept for side in self._sides):
            side = self._sides[SIDES]
            if side.reserve(record.total + self.beside_length):
                self._views.pop(SIDES, None)
                populate([side.bytes])

    def keep(self) -> int:
        """Keep the last commit in its place until the memory's owner releases it; return the number of its side.

        This releases a commit that was kept before.
        """
        kept, _ = self._sealed()
        self._keep_only(kept)
        return kept

    def hold(self) -> Held:
        """Return the last commit's shared bytes, for later: they are in their place, until :meth:`Held.copied`."""
        index, record = self._sealed()
        return Held(record, self._sides[index])

    def keep_none(self) -> None:
        """Release the kept commit, if there is one."""
        self._keep_only(None)

    def _keep_only(self, kept: int | None) -> None:
        for index, side in enumerate(self._sides):
            side.for_result = False
            if side.kept != (index == kept):
                side.kept = index == kept

    def keep_instead(self, contents: Contents, identity: Identity, *, step: int) -> int:
        """Store ``contents`` beside the last commit, as the kept commit of that identity, and return the number of its
        side. It counts as older than any commit, so no process uses it as the last one.
        """
        plan = Plan(contents.tensors, contents.firm)
        with self._staged(contents, plan, identity, step) as (index, record):
            self._sides[index].seal(0, record)
        self._keep_only(index)
        return index

    def relabel(self, identity: Identity) -> None:
        """Change the lineage of the last commit: the first sync of a job determines it."""
        index, record = self._sealed()
        self._seal(index, record._replace(identity=identity))

    def forget(self) -> None:
        """Drop every commit, because this process cannot use them. Keep a commit that was handed over meanwhile."""
        last = None if self._current is None else self._sides[self._current]
        for side in sorted(self._sides, key=lambda side: side is last):
            if side.claim(shared=True):  # else a process writes a commit there, which does not count before its end
                if all(side is not self._sides[handed.index] for handed in self._others()):
                    side.open()
                side.release()
        self._current = None

    def layout_digest(self) -> int:
        """Return a digest of the layout; commits of the same tensors have the same one."""
        index, last = self._sealed()
        return zlib.crc32(self._sides[index].read(last.data, last.layout))

    def _sealed(self) -> tuple[int, Record]:
        record = self.record
        assert self._current is not None, "nothing has been committed"
        assert record is not None, "the last commit's record is gone"
        return self._current, record

    def _spare(self, length: int) -> tuple[int, Side]:
        """Claim a side, clear it and make room. Never the side of the last commit or of a handed-over one."""
        index = self._claimed()
        side = self._sides[index]
        side.open()
        if side.reserve(length):
            self._views.pop(index, None)
        return index, side

    def _claimed(self) -> int:
        self.release_sides()
        while True:
            others = [index for index in range(len(self._sides)) if index != self._current]
            # Overwrite a kept commit rather than let training wait: its reader notices that.
            for index in sorted(others, key=lambda index: self._sides[index].kept):
                if self._sides[index].claim():
                    handed = self._handed_over()
                    if handed is None or handed.index != index:
                        return index
                    self._sides[index].release()
            self._sides[others[-1]].wait()

    def _others(self) -> list[HandedOver]:
        """Commits of worlds that other processes have sealed here since this process last sealed one."""
        found = []
        for index, side in enumerate(self._sides):
            if side.renew():
                self._views.pop(index, None)
            sealed = side.record()
            if sealed is None or self.call not in (0, sealed[1].call or self.call):
                continue
            if sealed[0] > self._sequence and sealed[1].identity.lineage:
                found.append(HandedOver(sealed[0], index, sealed[1]))
        return found

    def _handed_over(self) -> HandedOver | None:
        """The newest handed-over commit, if it is newer than the last commit; else None."""
        newest, mine = max(self._others(), default=None), self.record
        return newest if newest is not None and (mine is None or newest.record.age > mine.age) else None

    def _seal(self, index: int, record: Record) -> None:
        # The next process takes the commit with the highest number. So this number is higher than that of every older
        # handed-over commit, and lower than that of every newer one. Increase it before sealing: two commits with one
        # number could not be distinguished, but an unused number does no harm.
        passed = [handed.sequence for handed in self._others() if handed.record.age <= record.age]
        self._sequence = max([self._sequence, *passed]) + 1
        self._sides[index].seal(self._sequence, record)
        self._current = index

    def _plan_for(self, contents: Contents) -> Plan:
        if self._planned is None or not self._planned.suits(contents.tensors, contents.firm):
            self._planned = None  # frees its staging memory for the next plan
            self._planned = Plan(contents.tensors, contents.firm)
        return self._planned

    def _known(self, encoded: bytes) -> Layout:
        if self._planned is not None and self._planned.layout.encoded == encoded:
            return self._planned.layout
        return layouts.decode(encoded)

    def _views_on(self, index: int, layout: Layout) -> list[Tensor]:
        known = self._views.get(index)
        if known is None or known[0] is not layout:
            known = self._views[index] = (layout, layout.views(self._sides[index].bytes))
        return known[1]


def _behind(record: Record) -> int:
    """The first byte behind a commit."""
    return -(-record.total // _ALIGNED) * _ALIGNED


def digest_of(data: Tensor) -> int:
    """Return a checksum of a side's bytes, to compare with the checksums of other ranks."""
    return zlib.crc32(data.numpy().data) if data.numel() else 0

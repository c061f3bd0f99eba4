"""The record in front of a commit in memory: the commit's identity, the lengths of its regions, and whether it is kept.

A side is a page with two places for a record, and the commit's bytes behind it
(``worker/commits/memory.py``). This format is the same for the training process, for
the agent that owns the memory, and for programs that store or transfer a commit.

While a process writes a commit on a side of a slot's memory, it holds the exclusive lock
(``flock``) on the side's file. While a program transfers a commit from there, it holds the
shared lock. Each uses an open file of its own (``/proc/self/fd/N``, opened again). The
kernel releases the lock when its holder dies.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

PAGE: Final = mmap.PAGESIZE
"""Bytes in front of the commit's data."""
PLACES: Final = (0, PAGE // 2)
"""Offsets of the two records of a side: one can be replaced while the other one is valid."""
KEPT_AT: Final = PAGE // 4
"""Offset of a byte. While it is 1, the owner of the memory reads the commit, and no other commit may overwrite it.

If a request names a commit of a process, that process sets the byte; for a commit without a process, the owner sets it.
The owner clears it.
"""

HANDED_OVER: Final = 1 << 32
"""The sequence number of a commit that is transferred into a slot's memory is the next multiple of this.

The slot's process increases its number by one for each commit. So its commits stay below that number, until it has
noticed the transferred commit.
"""

_MAGIC: Final = b"hvdecmt2"
_FIELDS: Final = struct.Struct("<13q")
_HEAD: Final = struct.Struct(f"<{len(_MAGIC)}sI")
LENGTH: Final = _HEAD.size + _FIELDS.size
"""Bytes of one record."""
NO_HEAD: Final = bytes(_HEAD.size)
"""Bytes that invalidate a record when written over its beginning."""


class Identity(NamedTuple):
    """The identity of a commit. Of two commits of one lineage, the greater one is newer."""

    lineage: int
    """A random number from the first sync of a job; 0: none yet."""
    incarnation: int
    """Counts launchers."""
    generation: int
    """Counts worlds."""
    number: int
    """Counts commits."""


class Record(NamedTuple):
    """The record of a sealed commit: its identity, the number of optimizer steps, and the lengths of its regions in
    bytes."""

    identity: Identity
    step: int
    loose: int
    """The first part of :attr:`data`, which may differ among ranks with the same commit."""
    data: int
    layout: int
    tree: int
    local: int
    stored: bool = False
    """It came from a checkpoint, which another program may have made."""
    call: int = 0
    """The number of the training call in which it was made; 0: unknown."""

    @property
    def shared(self) -> int:
        """Bytes that are equal on all ranks: data, layout and tree."""
        return self.data + self.layout + self.tree

    @property
    def total(self) -> int:
        """Bytes of all regions, including ``local``."""
        return self.shared + self.local

    @property
    def age(self) -> tuple[int, ...]:
        """Sort key: greater for the newer commit. The lineage only distinguishes a commit of a world from one without a
        world."""
        return (self.identity.lineage != 0, *self.identity[1:], self.step)


class Readable(Protocol):
    """A memory mapping, or the bytes of a page."""

    def __getitem__(self, part: slice, /) -> bytes: ...


class Sealed(NamedTuple):
    """A valid record: its offset, the side's count of seals, and its content."""

    place: int
    sequence: int
    record: Record


def pack(sequence: int, record: Record) -> tuple[bytes, bytes]:
    """Return a record in two parts: head and fields. Write the fields first: the head then makes them valid."""
    fields = _FIELDS.pack(
        sequence, *record.identity, record.step, record.loose, record.data, record.layout, record.tree,
        record.local, record.stored << 1, record.call,
    )  # fmt: skip
    return _HEAD.pack(_MAGIC, zlib.crc32(fields)), fields


def records(page: Readable, room: int) -> Iterator[Sealed]:
    """Yield each valid record of a side that has room for ``room`` bytes behind its page."""
    for place in PLACES:
        magic, checksum = _HEAD.unpack(page[place : place + _HEAD.size])
        fields = page[place + _HEAD.size : place + LENGTH]
        if magic != _MAGIC or checksum != zlib.crc32(fields):
            continue
        sequence, lineage, incarnation, generation, number, step, *rest, origin, call = _FIELDS.unpack(fields)
        loose, data, layout, tree, local = rest
        identity = Identity(lineage, incarnation, generation, number)
        record = Record(identity, step, loose, data, layout, tree, local, bool(origin & 2), call)
        if record.total <= room:
            yield Sealed(place, sequence, record)


def newest(page: Readable, room: int) -> Sealed | None:
    """Return the valid record; None if there is none, or only an incomplete one."""
    return max(records(page, room), key=lambda found: found.sequence, default=None)


def held(sealed: Iterable[Sealed | None]) -> tuple[int, Sealed] | None:
    """Return the commit of a world in the memory of a slot: the number of its side, and its sealed record.

    ``sealed``: the result of :func:`newest` for each side, in order. The returned commit is the last sealed one. The
    next process in the slot continues from it.
    """
    of_a_world = [(number, found) for number, found in enumerate(sealed) if found and found.record.identity.lineage]
    return max(of_a_world, key=lambda each: each[1].sequence, default=None)

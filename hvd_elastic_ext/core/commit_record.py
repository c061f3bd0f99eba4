"""The record in front of a commit in memory: the commit's identity, the lengths of its regions, and whether it is kept.

A side is a page with two places for a record, and the commit's bytes behind it
(``worker/commits/memory.py``). Its process, the agent that owns the memory, what
makes a commit durable and what transfers it must all read the same.

A process that writes a commit on a side of a slot's memory holds ``flock``'s exclusive lock
on the side's file meanwhile, one that transfers a commit from there the shared one, each
by an open file of its own (``/proc/self/fd/N``, opened again). The kernel gives the
lock back when its holder dies.
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
"""Offset of a byte. 1: the owner of the memory reads the commit, and no other commit may overwrite it until the byte is
0.

The process sets it for a commit of its own that it is asked to keep, the owner for one that no process has; the
owner clears it.
"""

HANDED_OVER: Final = 1 << 32
"""A commit that is transferred into a slot's memory is sealed with the next multiple of this as its sequence number.

The slot's process counts on by one meanwhile, so what it seals without having seen that commit stays below it.
"""

_MAGIC: Final = b"hvdecmt1"
_FIELDS: Final = struct.Struct("<12q")
_HEAD: Final = struct.Struct(f"<{len(_MAGIC)}sI")
LENGTH: Final = _HEAD.size + _FIELDS.size
"""Bytes of one record."""
NO_HEAD: Final = bytes(_HEAD.size)
"""Bytes that invalidate a record when written over its beginning."""


class Identity(NamedTuple):
    """The identity of a commit; of two commits of one lineage the greater one is newer.

    ``lineage`` is drawn in the first sync of a job (0: none yet), ``incarnation``
    counts launchers, ``generation`` worlds, ``number`` commits.
    """

    lineage: int
    incarnation: int
    generation: int
    number: int


class Record(NamedTuple):
    """The record of a sealed commit: its identity, the number of optimizer steps, and the lengths of its regions in
    bytes.

    ``loose`` is the part of ``data`` in front that may differ among ranks that
    hold the same commit; ``stored`` says that it came from a checkpoint, which another program may have made.
    """

    identity: Identity
    step: int
    loose: int
    data: int
    layout: int
    tree: int
    local: int
    stored: bool = False

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
    """A mapping, or the bytes of a page."""

    def __getitem__(self, part: slice, /) -> bytes: ...


class Sealed(NamedTuple):
    """A valid record: where it stands, the side's count of seals, and what it says."""

    place: int
    sequence: int
    record: Record


def pack(sequence: int, record: Record) -> tuple[bytes, bytes]:
    """Write a record in two parts, the second of which goes first: what the head says of the fields makes it valid."""
    fields = _FIELDS.pack(
        sequence, *record.identity, record.step, record.loose, record.data, record.layout, record.tree,
        record.local, record.stored << 1,
    )  # fmt: skip
    return _HEAD.pack(_MAGIC, zlib.crc32(fields)), fields


def records(page: Readable, room: int) -> Iterator[Sealed]:
    """Yield each valid record of a side that has room for ``room`` bytes behind its page."""
    for place in PLACES:
        magic, checksum = _HEAD.unpack(page[place : place + _HEAD.size])
        fields = page[place + _HEAD.size : place + LENGTH]
        if magic != _MAGIC or checksum != zlib.crc32(fields):
            continue
        sequence, lineage, incarnation, generation, number, step, *rest, origin = _FIELDS.unpack(fields)
        loose, data, layout, tree, local = rest
        identity = Identity(lineage, incarnation, generation, number)
        record = Record(identity, step, loose, data, layout, tree, local, bool(origin & 2))
        if record.total <= room:
            yield Sealed(place, sequence, record)


def newest(page: Readable, room: int) -> Sealed | None:
    """Return the record that holds; None if there is none, or only a torn one."""
    return max(records(page, room), key=lambda found: found.sequence, default=None)


def held(sealed: Iterable[Sealed | None]) -> tuple[int, Sealed] | None:
    """Which commit of a world the memory of a slot holds: the number of its side, and what is sealed there.

    ``sealed`` has what :func:`newest` says of each side, in their order. It is the commit that was sealed last, which
    a process that starts in the slot takes up.
    """
    of_a_world = [(number, found) for number, found in enumerate(sealed) if found and found.record.identity.lineage]
    return max(of_a_world, key=lambda each: each[1].sequence, default=None)

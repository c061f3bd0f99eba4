"""The commit memory of a slot. Its process may be alive. Reads a commit there, or writes another one beside it.
``core/commit_record.py`` describes the format of a side, and its locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from hvd_elastic_ext.core import commit_record as sides
from hvd_elastic_ext.core.commit_record import HANDED_OVER, KEPT_AT, PAGE, Record, Sealed
from hvd_elastic_ext.core.errors import Permanent, Transient

Name = tuple[int, ...]
"""The name of a commit within its lineage: incarnation, generation and number."""
TURNS: Final = 2
"""Number of sides between which commits alternate; others stay empty until they are needed."""
CHUNK: Final = 8 << 20
"""Bytes of one copy."""


def sealed(descriptors: Sequence[int]) -> list[Sealed | None]:
    """Return the sealed commit of each side."""
    return [_sealed(descriptor) for descriptor in descriptors]


def held(descriptors: Sequence[int]) -> tuple[int, Sealed] | None:
    """Return the newest commit of a world in this memory: the number of its side, and its sealed record."""
    return sides.held(sealed(descriptors))


def commit_numbers(record: Record) -> list[int]:
    """Return a commit in the form for the launcher: incarnation, generation, number and step."""
    return [*record.identity[1:], record.step]


def next_sequence(descriptors: Sequence[int]) -> int:
    """Return the sequence number for a commit that is transferred to this memory. It is above all others there."""
    highest = max((found.sequence for found in sealed(descriptors) if found is not None), default=0)
    return (highest // HANDED_OVER + 1) * HANDED_OVER


class Source:
    """A commit in memory that no process overwrites while this object exists."""

    def __init__(self, descriptor: int, found: Sealed) -> None:
        self._descriptor = descriptor
        self.record = found.record
        self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        self.shared = memoryview(self._map)[PAGE : PAGE + found.record.shared]

    def demand_same(self) -> None:
        """Raise ``Transient`` if the commit was replaced after all."""
        found = _sealed(self._descriptor)
        if found is None or _bare(found.record) != _bare(self.record):
            raise Transient("the commit was replaced in memory while it was read")

    def close(self) -> None:
        """Unmap the memory. If something still refers to :attr:`shared`, the last reference unmaps it."""
        with contextlib.suppress(BufferError):  # the traceback of an error may still refer to blocks
            self.shared.release()
            self._map.close()


@contextmanager
def reading(descriptors: Sequence[int], commit: Name) -> Iterator[Source]:
    """Give the commit of that name in this memory, and keep it from being overwritten meanwhile. Raises ``Permanent``
    if it is not there, ``Transient`` if it is being replaced.
    """
    index = _where(descriptors, commit)
    with _locked(descriptors[index], fcntl.LOCK_SH) as locked:
        sealed_commit = _sealed(descriptors[index])
        if not locked or sealed_commit is None or sealed_commit.record.identity[1:] != commit:
            raise Transient(f"commit {_named(commit)} is just being replaced in memory")
        with contextlib.closing(Source(descriptors[index], sealed_commit)) as source:
            yield source


class Target:
    """A free side for an arriving commit."""

    def __init__(self, descriptors: Sequence[int], index: int) -> None:
        self._descriptors = descriptors
        self.descriptor = descriptors[index]
        _open(self.descriptor)

    def seal(self, record: Record, own: bytes | None = None) -> None:
        """Seal the written bytes as a commit, with ``own`` as the rank's own part; without it, with that of this slot's
        last commit."""
        last = held(self._descriptors)
        if last is not None and last[1].record.age > record.age:
            raise Transient(f"the slot has made commit {_named(last[1].record.identity[1:])} meanwhile, which is newer")
        local = own
        if local is None:
            local = b"" if last is None else _local(self._descriptors[last[0]], last[1], stored=record.stored)
        record = record._replace(local=len(local))
        _lengthen(self.descriptor, record.total)
        os.pwrite(self.descriptor, local, PAGE + record.shared)
        head, fields = sides.pack(next_sequence(self._descriptors), record)
        os.pwrite(self.descriptor, fields, len(head))
        os.pwrite(self.descriptor, head, 0)


@contextmanager
def writing(descriptors: Sequence[int]) -> Iterator[Target]:
    """Give a side for a new commit, to which no other process writes meanwhile. It is not the side of the last commit,
    a side that a live process uses, or a kept one. Raises ``Transient`` if there is none.
    """
    for index in _free(descriptors):
        with _locked(descriptors[index], fcntl.LOCK_EX) as locked:
            if locked and index in _free(descriptors):  # again: it may have changed before it was locked
                yield Target(descriptors, index)
                return
    raise Transient("all of the slot's memory is in use")


@contextmanager
def room(descriptor: int, length: int) -> Iterator[memoryview]:
    """Return ``length`` bytes behind the page of a side."""
    _lengthen(descriptor, length)
    memory = mmap.mmap(descriptor, 0)
    view = memoryview(memory)[PAGE : PAGE + length]
    try:
        yield view
    finally:
        with contextlib.suppress(BufferError):  # a traceback may refer to it
            view.release()
            memory.close()


def copy(source: Source, into: memoryview) -> None:
    """Copy the shared regions."""
    for start in range(0, len(into), CHUNK):
        into[start : start + CHUNK] = source.shared[start : start + CHUNK]


def _where(descriptors: Sequence[int], commit: Name) -> int:
    found = [
        (each.sequence, index)
        for index, each in enumerate(sealed(descriptors))
        if each is not None and each.record.identity.lineage and each.record.identity[1:] == commit
    ]
    if not found:
        raise Permanent(f"commit {_named(commit)} is not in that memory")
    return max(found)[1]


def _free(descriptors: Sequence[int]) -> list[int]:
    """Return the sides that may be overwritten, best first. Of the alternating ones, it is that of the older commit."""
    sequences = [-1 if found is None else found.sequence for found in sealed(descriptors)]
    taken = {max(enumerate(sequences), key=lambda each: each[1])[0]} if max(sequences) >= 0 else set()
    # A process that has not noticed a handed-over commit uses the last commit that a process has sealed.
    of_processes = [(each, index) for index, each in enumerate(sequences) if each > 0 and each % HANDED_OVER]
    taken |= {max(of_processes)[1]} if of_processes else set()
    free = [index for index, each in enumerate(descriptors) if index not in taken and not _kept(each)]
    return sorted(free, key=lambda index: (index >= TURNS, sequences[index]))


def _local(descriptor: int, last: Sealed, *, stored: bool) -> bytes:
    """Return a copy of the slot's own part of its last commit; empty if it is not available."""
    if last.record.stored and not stored:
        return b""  # the copy of a commit from storage would count as sealed by a process
    local = os.pread(descriptor, last.record.local, PAGE + last.record.shared)
    return local if _sealed(descriptor) == last else b""


def _bare(record: Record) -> Record:
    """Return the record without the fields that a process may change while the shared regions stay."""
    return record._replace(identity=record.identity._replace(lineage=0), local=0)


def _kept(descriptor: int) -> bool:
    return os.pread(descriptor, 1, KEPT_AT) == b"\1"


def _open(descriptor: int) -> None:
    if os.fstat(descriptor).st_size >= PAGE:
        for place in sides.PLACES:
            os.pwrite(descriptor, sides.NO_HEAD, place)


def _lengthen(descriptor: int, length: int) -> None:
    """Make room for ``length`` bytes behind the page; never shrinks."""
    wanted = PAGE * (1 + -(-length // PAGE))
    while (size := os.fstat(descriptor).st_size) < wanted:
        with contextlib.suppress(PermissionError):  # another process made it longer still; it cannot shrink
            os.ftruncate(descriptor, wanted)
            return
        if os.fstat(descriptor).st_size == size:
            raise Transient("the memory of that slot cannot grow")


def _sealed(descriptor: int) -> Sealed | None:
    size = os.fstat(descriptor).st_size
    return None if size < PAGE else sides.newest(os.pread(descriptor, PAGE, 0), size - PAGE)


@contextmanager
def _locked(descriptor: int, how: int) -> Iterator[bool]:
    """Try to lock the side, and keep the lock until the end of the context. Gives whether it is locked."""
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    try:
        try:
            fcntl.flock(again, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(again)


def _named(commit: Sequence[int]) -> str:
    return ".".join(map(str, commit))

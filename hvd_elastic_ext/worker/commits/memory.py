"""Memory for commits: sides that are used in turn, each sealed by one small record.

A side is a ``memfd``: a page with the record, then the commit's bytes. A record is valid only if its checksum is right.
So a process that dies at any instruction leaves a whole record or none, and does not change the other side. The
descriptors may come from a parent that outlives this process: the next process then finds the newest sealed side.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import torch
from torch import Tensor

from hvd_elastic_ext.core.commit_record import KEPT_AT, NO_HEAD, PAGE, PLACES, Record, newest, pack
from hvd_elastic_ext.core.errors import StateError

SIDES: Final = 2
"""A commit is staged on one side while the other one holds the last. A third side allows to keep one commit longer."""

_MADV_POPULATE_WRITE: Final = 23
_CHUNK: Final = 4 << 20
"""Bytes populated in one call: whole pages, and so few that the end of the process waits only a short time."""
_SLACK: Final = 1 / 16
"""Part of a side that is kept free, because some content grows a little from commit to commit."""


class _Lock:
    """The lock on a file that several processes write to. It belongs to a second open file of this process.

    The inherited descriptor is the same open file in all processes, so a lock on it would exclude none of them.
    """

    _of: ClassVar[weakref.WeakValueDictionary[tuple[int, int], _Lock]] = weakref.WeakValueDictionary()

    def __init__(self, descriptor: int) -> None:
        self.file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        weakref.finalize(self, os.close, self.file)

    @classmethod
    def of(cls, descriptor: int) -> _Lock:
        facts = os.fstat(descriptor)
        return cls._of.setdefault((facts.st_dev, facts.st_ino), cls(descriptor))


class Side:
    """One mapped memory file. It grows and never shrinks. If it is ``private``, its descriptor is closed with it."""

    def __init__(self, descriptor: int, *, private: bool = False) -> None:
        self._descriptor = descriptor
        if private:
            weakref.finalize(self, os.close, descriptor)
        self._lock: _Lock | None = None
        self._locked = False
        self.for_result = False
        """Whether :attr:`kept` is set for the result of a training call, and not for a checkpoint."""
        self._map: mmap.mmap | None = None
        self._unpin: weakref.finalize[[], Side] | None = None
        self.bytes: Tensor = torch.empty(0, dtype=torch.uint8)
        """All bytes behind the record's page."""
        size = _lengthened(descriptor, 0)  # changes nothing, and fails if the file cannot be written or grow
        if not private:
            self._lock = _Lock.of(descriptor)
        if size >= PAGE:
            self._remap(size)

    def reserve(self, length: int) -> bool:
        """Make room for ``length`` bytes; True if this has mapped the side again. The contents do not change.

        Raises :class:`StateError` if there is no memory.
        """
        if length <= self.bytes.numel():
            return False
        size = PAGE * (1 + -(-int(length * (1 + _SLACK) + PAGE) // PAGE))
        try:
            self._remap(_lengthened(self._descriptor, size))
        except (OSError, OverflowError) as error:
            raise StateError(f"no memory for a commit of {length / 1e6:.0f} MB: {_why(error)}") from error
        return True

    @property
    def pinned(self) -> bool:
        """Whether this mapping has been pinned for a device."""
        return self._unpin is not None

    def pin(self, unpin: Callable[[], object]) -> None:
        """Note that this mapping is pinned. ``unpin`` is called before the memory is unmapped.

        Otherwise the device would still use the pinned address, and copy to whatever is mapped there later.
        """
        self._unpin = weakref.finalize(self, unpin)
        self._unpin.atexit = False  # the end of the process unpins; the device may be closed then

    def renew(self) -> bool:
        """Map the side again if another process has lengthened it. Return whether it was."""
        size = os.fstat(self._descriptor).st_size
        grew = size > PAGE + self.bytes.numel()
        if grew:
            self._remap(size)
        return grew

    def claim(self, *, shared: bool = False) -> bool:
        """Exclude other writers, and readers of a kept commit, until :meth:`release`; False if there is one now.

        ``shared``: exclude writers only.
        """
        if self._lock is None:
            return True
        self._locked = True
        try:
            fcntl.flock(self._lock.file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            self._locked = False
        return self._locked

    def wait(self) -> None:
        """Wait until no other process reads or writes here."""
        if self._lock is not None:
            fcntl.flock(self._lock.file, fcntl.LOCK_EX)
            fcntl.flock(self._lock.file, fcntl.LOCK_UN)

    def release(self) -> None:
        """Release the lock of :meth:`claim`, if this process holds it."""
        if self._locked and self._lock is not None:
            fcntl.flock(self._lock.file, fcntl.LOCK_UN)
            self._locked = False

    def record(self) -> tuple[int, Record] | None:
        """The sequence number and record of the commit sealed here; None if there is no complete one."""
        found = None if self._map is None else newest(self._map, self.bytes.numel())
        return None if found is None else (found.sequence, found.record)

    @property
    def kept(self) -> bool:
        """Whether the commit sealed here has to stay, even after it is no longer the last one."""
        return self._map is not None and self._map[KEPT_AT] == 1

    @kept.setter
    def kept(self, stays: bool) -> None:
        """Store the mark in the memory file, where other processes see it too; the side must be mapped."""
        assert self._map is not None
        self._map[KEPT_AT] = int(stays)

    def open(self) -> None:
        """Remove the seal, so that the contents may be overwritten."""
        if self._map is not None:
            for start in PLACES:
                self._map[start : start + len(NO_HEAD)] = NO_HEAD

    def seal(self, sequence: int, record: Record) -> None:
        """Make the contents a commit. It becomes valid when the last byte of one small record is stored.

        An earlier record of the same bytes stays readable until then.
        """
        assert self._map is not None
        before = newest(self._map, self.bytes.numel())
        start = PLACES[0] if before is None or before.place != PLACES[0] else PLACES[1]
        head, fields = pack(sequence, record)
        self._map[start : start + len(head)] = NO_HEAD
        self._map[start + len(head) : start + len(head) + len(fields)] = fields
        self._map[start : start + len(head)] = head

    def read(self, start: int, length: int) -> bytes:
        """A copy of some of the bytes."""
        return b"" if self._map is None else self._map[PAGE + start : PAGE + start + length]

    def write(self, start: int, data: bytes) -> None:
        """Overwrite some of the bytes."""
        assert self._map is not None
        self._map[PAGE + start : PAGE + start + len(data)] = data

    def _remap(self, size: int) -> None:
        if self._unpin is not None:
            self._unpin()
            self._unpin = None
        # Tensors in the old mapping keep it alive until they are gone.
        self._map = mmap.mmap(self._descriptor, size)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)[PAGE:] if size > PAGE else self.bytes[:0]


def _lengthened(descriptor: int, length: int) -> int:
    """Lengthen a file, never shorten it, also if another process lengthens it meanwhile. Return its length."""
    while True:
        before = os.fstat(descriptor).st_size
        try:
            os.ftruncate(descriptor, max(length, before))
        except PermissionError:  # it cannot shrink, and has grown meanwhile
            if os.fstat(descriptor).st_size == before:
                raise
        else:
            return max(length, before)


def populate(memories: Sequence[Tensor]) -> threading.Thread:
    """Allocate the memory of all tensors in a thread, in their order. Otherwise the first writer waits for it, page by
    page, for up to half of the time of a large sync. The contents do not change. Before Linux 5.14 the kernel cannot do
    this, and nothing happens.
    """
    thread = threading.Thread(target=_populate, args=(memories,), name="hvd-commit-memory", daemon=True)
    thread.start()
    return thread


def _populate(memories: Sequence[Tensor]) -> None:
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    for memory in memories:
        first = -(-memory.data_ptr() // PAGE) * PAGE
        for start in range(first, memory.data_ptr() + memory.nbytes - _CHUNK + 1, _CHUNK):
            address = ctypes.c_void_p(start)
            if madvise(address, ctypes.c_size_t(_CHUNK), _MADV_POPULATE_WRITE):
                return


def open_sides(descriptors: Sequence[int] | None) -> list[Side]:
    """Return sides over inherited descriptors, or private ones. Raises :class:`StateError` for invalid descriptors."""
    if descriptors is None:
        return [Side(os.memfd_create(f"hvd-elastic-commit-{index}"), private=True) for index in range(SIDES)]
    if len(descriptors) < SIDES:
        raise StateError(f"a commit needs {SIDES} memory descriptors, got {len(descriptors)}")
    try:
        _demand_different_files(descriptors)
        return [Side(descriptor) for descriptor in descriptors]
    except (OSError, OverflowError) as error:
        numbers = ",".join(map(str, descriptors))
        raise StateError(
            f"commit memory: descriptors {numbers} cannot be used: {_why(error)}; unset HVD_ELASTIC_COMMIT_FDS"
        ) from error


def _why(error: Exception) -> object:
    return error.strerror if isinstance(error, OSError) else error


def _demand_different_files(descriptors: Sequence[int]) -> None:
    files = {(facts.st_dev, facts.st_ino) for facts in map(os.fstat, descriptors)}
    if len(files) < len(descriptors):
        raise OSError(errno.EINVAL, "two of them are one file")

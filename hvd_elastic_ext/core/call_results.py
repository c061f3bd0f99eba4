"""The past of a slot: the results of the training calls that are over, one after the other in one memory file.

A *training call* is one call of a training function; the calls of a process have the numbers 1, 2, 3 and so on. Call 0
is what comes before the first one. The result of a call contains all that a process needs which was not there: see
:mod:`hvd_elastic_ext.worker.calls.result`. The file holds the results 0, 1, … in this order, without gaps. A result is
written once and never changed, apart from that of call 0.

The format is the same for the training process, which appends results, for the agent that owns the memory, and for
programs that store or transfer the past. The file begins with a page; only the first bytes of it are used::

    8 bytes   magic
    8 bytes   number of results
    8 bytes   bytes of all results
    4 bytes   CRC-32 of these two numbers

Each result is a header and its bytes::

    4 bytes   CRC-32 of the rest of the header
    8 bytes   number of the call
    8 bytes   the job's step at which the call ended
    8 bytes   the number of the job's last commit in that call
    8 bytes   bytes of the result
    8 bytes   BLAKE2b digest of these bytes

A result is valid when the page counts it, so a process that dies while it appends leaves the past as it was. Whoever
appends holds the exclusive lock (``flock``) on a descriptor of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from hvd_elastic_ext.core.sizes import size_text

RESULTS: Final = "HVD_ELASTIC_RESULTS_FD"
"""Variable: the descriptor of the memory file of a slot's past."""
MOST_BYTES: Final = 1 << 30
"""Most bytes of all results of a slot, unless ``HVD_ELASTIC_RESULTS_BYTES`` says otherwise."""
LARGEST: Final = 1 << 40
"""Most bytes of a past that is transferred: what was kept once is kept again."""
LIMIT: Final = "HVD_ELASTIC_RESULTS_BYTES"
"""Variable: most bytes of all results of a slot."""
UNEQUAL: Final = "the returned values differ between ranks"
"""Why a result is not kept, for good: no rank has one that counts for all."""

_MAGIC: Final = b"hvdepst1"
_PAGE: Final = mmap.PAGESIZE
_COUNTS: Final = struct.Struct("<qq")
_CHECK: Final = struct.Struct("<I")
_HEADER: Final = struct.Struct("<qqqqQ")
_OVERHEAD: Final = _CHECK.size + _HEADER.size
_CHUNK: Final = 4 << 20


class Entry(NamedTuple):
    """One result in the file."""

    call: int
    """The number of the call."""
    step: int
    """The job's step when the call ended."""
    number: int
    """The number of the job's last commit then."""
    at: int
    """Where its bytes begin in the file."""
    bytes: int
    """How many they are."""
    digest: int


class Damaged(ValueError):
    """The bytes of a past are not what was written."""


def result_of(call: int) -> str:
    """How a message names a result. That of call 0 is what collectives returned before the first call."""
    return f"the result of call {call}" if call else "what collectives returned before the first call"


def counts(descriptor: int) -> tuple[int, int]:
    """Return the number of results, and the bytes of all, as :func:`body` yields them."""
    page = os.pread(descriptor, len(_MAGIC) + _COUNTS.size + _CHECK.size, 0)
    both = page[len(_MAGIC) : len(_MAGIC) + _COUNTS.size]
    if not page.startswith(_MAGIC) or page[len(_MAGIC) + _COUNTS.size :] != _CHECK.pack(zlib.crc32(both)):
        return 0, 0
    number, length = _COUNTS.unpack(both)
    return number, length


def count(descriptor: int) -> int:
    """Return the number of results; 0 for an empty file or one that does not hold a past."""
    return counts(descriptor)[0]


def length(descriptor: int) -> int:
    """Return the bytes of all results, as :func:`body` yields them."""
    return counts(descriptor)[1]


def entries(descriptor: int) -> tuple[Entry, ...]:
    """Return all results, in order. Raises :class:`Damaged`."""
    number, size = counts(descriptor)
    found, until, at = list[Entry](), _PAGE + size, _PAGE
    for call in range(number):
        head = os.pread(descriptor, _OVERHEAD, at)
        if len(head) != _OVERHEAD or _CHECK.unpack_from(head)[0] != zlib.crc32(head[_CHECK.size :]):
            raise Damaged(f"the header of result {call} is damaged")
        own, step, commit, its, digest = _HEADER.unpack_from(head, _CHECK.size)
        at += _OVERHEAD
        if own != call or its < 0 or at + its > until:
            raise Damaged(f"result {call} is not in its place")
        found.append(Entry(call, step, commit, at, its, digest))
        at += its
    return tuple(found)


def read(descriptor: int, entry: Entry) -> bytearray:
    """Return the bytes of a result. Raises :class:`Damaged` if they are not what was written."""
    data = bytearray(entry.bytes)
    view, at = memoryview(data), entry.at
    while view:
        got = os.preadv(descriptor, [view[:_CHUNK]], at)
        if not got:
            raise Damaged(f"result {entry.call} is cut off")
        view, at = view[got:], at + got
    if _digest([data]) != entry.digest:
        raise Damaged(f"result {entry.call} is damaged")
    return data


def append(
    descriptor: int,
    parts: Sequence[bytes | memoryview],
    *,
    call: int,
    step: int,
    number: int,
    limit: int = MOST_BYTES,
    verify: Callable[[], object] = lambda: None,
) -> str | None:
    """Append the result of ``call``, the bytes of ``parts``. Return why it was not; None if it is there now.

    It is not appended if it is there already (which counts as there), if an earlier result is missing, or if all
    results together would have more than ``limit`` bytes. The errors of a full memory are passed on, and those of
    ``verify``, which is called when all bytes are copied: it raises if they have changed meanwhile.
    """
    with _locked(descriptor):
        there, before = counts(descriptor)
        size = sum(map(_bytes, parts))
        if call < there:
            return None
        if call > there:
            return f"{result_of(there)} was not kept"
        if (why := _no_room(before, size, limit)) is not None:
            return why
        at = _PAGE + before
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, at + _OVERHEAD + size))
        head = _HEADER.pack(call, step, number, size, _digest(parts))
        _write(descriptor, [_CHECK.pack(zlib.crc32(head)), head, *parts], at)
        verify()
        _set_counts(descriptor, there + 1, before + _OVERHEAD + size)
    return None


def no_room(descriptor: int, size: int, *, limit: int = MOST_BYTES) -> str | None:
    """Return why a result of ``size`` bytes could not be appended now; None if it could, or memory was full."""
    return _no_room(length(descriptor), size, limit)


def drop_last(descriptor: int, call: int) -> None:
    """Forget the result of ``call``, if it is the last one. Raises :class:`Damaged`."""
    with _locked(descriptor):
        found = entries(descriptor)
        if found and found[-1].call == call:
            _set_counts(descriptor, call, found[-1].at - _OVERHEAD - _PAGE)


def amend(descriptor: int, parts: Sequence[bytes | memoryview], *, limit: int = MOST_BYTES) -> str | None:
    """Replace the result of call 0: a job that starts again has another one. Return why it was not; None if it was.

    Whoever reads at the same time finds a damaged past, and reads again; after a process that dies meanwhile it is
    empty. The errors of a full memory are passed on, and leave the past as it was.
    """
    with _locked(descriptor):
        there, before = counts(descriptor)
        first, *_ = entries(descriptor)
        old, done = memoryview(bytearray(before)), 0
        while done < before:
            got = os.preadv(descriptor, [old[done : done + _CHUNK]], _PAGE + done)
            if not got:
                raise Damaged("the past is cut off")
            done += got
        rest = old[_OVERHEAD + first.bytes :]
        size = sum(map(_bytes, parts))
        if _OVERHEAD + size + len(rest) > limit:
            return f"its {size_text(size)} are too much ({LIMIT})"
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, _PAGE + _OVERHEAD + size + len(rest)))
        head = _HEADER.pack(0, first.step, first.number, size, _digest(parts))
        _set_counts(descriptor, 0, 0)
        try:
            _write(descriptor, [_CHECK.pack(zlib.crc32(head)), head, *parts, rest], _PAGE)
        except OSError:
            _write(descriptor, [old], _PAGE)  # its memory is there
            _set_counts(descriptor, there, before)
            raise
        _set_counts(descriptor, there, _OVERHEAD + size + len(rest))
    return None


def clear(descriptor: int) -> None:
    """Forget all results: training starts from the beginning, or the memory holds the past of another program."""
    with _locked(descriptor):
        if os.fstat(descriptor).st_size:
            _set_counts(descriptor, 0, 0)


def mapped(descriptor: int) -> tuple[int, memoryview]:
    """The number of results, and their bytes as :func:`body` yields them, without a copy."""
    number, length = counts(descriptor)
    if not length:
        return number, memoryview(b"")
    return number, memoryview(mmap.mmap(descriptor, _PAGE + length, access=mmap.ACCESS_READ))[_PAGE:]


def body(descriptor: int) -> Iterator[bytes]:
    """Yield the bytes of all results, in pieces: :func:`replace` takes them elsewhere."""
    at, until = _PAGE, _PAGE + length(descriptor)
    while at < until:
        piece = os.pread(descriptor, min(_CHUNK, until - at), at)
        if not piece:
            raise Damaged("the past is cut off")
        yield piece
        at += len(piece)


def header(entry: Entry) -> bytes:
    """Return the bytes in front of a result's own: both together are its part of a :func:`body`."""
    head = _HEADER.pack(entry.call, entry.step, entry.number, entry.bytes, entry.digest)
    return _CHECK.pack(zlib.crc32(head)) + head


def replace(descriptor: int, pieces: Iterator[bytes] | Sequence[bytes], number: int) -> None:
    """Put a whole past of ``number`` results here. It becomes valid at the end, if each result is. Raises
    :class:`Damaged`, and leaves an empty past then. A past here that has as many results stays as it is.
    """
    with _locked(descriptor):
        if counts(descriptor)[0] >= number:
            return
        if os.fstat(descriptor).st_size:
            _set_counts(descriptor, 0, 0)
        at = _PAGE
        for piece in pieces:
            if os.fstat(descriptor).st_size < at + len(piece):
                os.ftruncate(descriptor, at + len(piece))
            _write(descriptor, [piece], at)
            at += len(piece)
        _set_counts(descriptor, number, at - _PAGE)
        try:
            for entry in entries(descriptor):
                _demand_whole(descriptor, entry)
        except Damaged:
            _set_counts(descriptor, 0, 0)
            raise


def extend(descriptor: int, whole: memoryview, number: int, *, limit: int = LARGEST, record: bool = False) -> int:
    """Append those of the ``number`` results in ``whole``, the bytes of a :func:`body`, that are not here yet. Return
    how many are here now. A process may read the past meanwhile. Raises :class:`Damaged`, before anything is appended.

    ``record``: the result of call 0 takes the place of another one that is here: see :func:`amend`.
    """
    found, at = list[tuple[Entry, memoryview]](), 0
    for call in range(number):
        head = whole[at : at + _OVERHEAD]
        if len(head) != _OVERHEAD or _CHECK.unpack_from(head)[0] != zlib.crc32(head[_CHECK.size :]):
            raise Damaged(f"the header of result {call} is damaged")
        own, step, commit, its, digest = _HEADER.unpack_from(head, _CHECK.size)
        at += _OVERHEAD
        data = whole[at : at + its]
        if own != call or its < 0 or len(data) != its or _digest([data]) != digest:
            raise Damaged(f"result {call} is damaged")
        found.append((Entry(call, step, commit, at, its, digest), data))
        at += its
    if record and found and (here := entries(descriptor)) and here[0].digest != found[0][0].digest:
        why = amend(descriptor, [found[0][1]], limit=limit)
        if why is not None:
            raise ValueError(f"{result_of(0)} was not replaced: {why}")
    for entry, data in found:
        why = append(descriptor, [data], call=entry.call, step=entry.step, number=entry.number, limit=limit)
        if why is not None:
            raise ValueError(f"{result_of(entry.call)} was not kept: {why}")
    return count(descriptor)


def _no_room(before: int, size: int, limit: int) -> str | None:
    if before + _OVERHEAD + size <= limit:
        return None
    return (
        f"its {size_text(_OVERHEAD + size)} and {size_text(before)} of earlier results are more than "
        f"{size_text(limit)} ({LIMIT})"
    )


def _demand_whole(descriptor: int, entry: Entry) -> None:
    digest, at, until = hashlib.blake2b(digest_size=8), entry.at, entry.at + entry.bytes
    while at < until:
        piece = os.pread(descriptor, min(_CHUNK, until - at), at)
        if not piece:
            raise Damaged(f"result {entry.call} is cut off")
        digest.update(piece)
        at += len(piece)
    if int.from_bytes(digest.digest(), "little") != entry.digest:
        raise Damaged(f"result {entry.call} is damaged")


def _set_counts(descriptor: int, number: int, length: int) -> None:
    counts = _COUNTS.pack(number, length)
    os.pwrite(descriptor, _MAGIC + counts + _CHECK.pack(zlib.crc32(counts)), 0)


def _digest(parts: Sequence[bytes | bytearray | memoryview]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def _bytes(part: bytes | memoryview) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _write(descriptor: int, parts: Sequence[bytes | memoryview], at: int) -> None:
    for part in parts:
        view = memoryview(part).cast("B") if len(part) else memoryview(b"")
        while view:
            wrote = os.pwrite(descriptor, view[:_CHUNK], at)
            view, at = view[wrote:], at + wrote


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Hold the lock by an open file of its own, so that two processes, or two threads, exclude each other."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(own, fcntl.LOCK_UN)  # a process that was forked meanwhile has the same open file
        os.close(own)

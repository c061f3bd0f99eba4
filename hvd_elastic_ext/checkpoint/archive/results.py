"""The results of finished training calls on storage: each is written once, and all checkpoints of a store share it.

Before a checkpoint's manifest names a result, no other checkpoint uses its file. So each writer uses new names, as for
other files. A file that a manifest names was complete, and is used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import secrets
from collections.abc import Iterator, Sequence

from hvd_elastic_ext.checkpoint.archive import read
from hvd_elastic_ext.checkpoint.format import checksums
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.manifest import RESULT, RESULTS, CallResult, File, identity_of
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.core import call_results
from hvd_elastic_ext.core.call_results import Entry, result_of
from hvd_elastic_ext.core.errors import Permanent

Key = tuple[int, int, int]


def write(store: Store, past: int, call: int) -> tuple[CallResult, ...]:
    """Write the results of the calls before ``call`` that are in ``past``, a slot's memory file, and not on storage
    yet. They are durable on return. Raises :class:`StoreFailed`, and :class:`Permanent` also for a damaged past.
    """
    wanted = _entries(past)[:call]
    if not wanted:
        return ()
    known = _known(store)
    memory = mmap.mmap(past, 0, prot=mmap.PROT_READ)
    try:
        files = [known.get(_key(entry)) or _write_one(store, memoryview(memory), entry) for entry in wanted]
    finally:
        with contextlib.suppress(BufferError):  # the traceback of an error may refer to it
            memory.close()
    return tuple(
        CallResult(file, entry.step, entry.number, entry.digest) for file, entry in zip(files, wanted, strict=True)
    )


def load(store: Store, name: str, results: Sequence[CallResult], past: int) -> None:
    """Put the results of the checkpoint ``name`` into ``past``. More results of the same calls may be there, and stay.

    Raises :class:`Damaged` if a file is not what was written; the past is empty then.
    """
    if not holds(past, results):
        call_results.clear(past)
        try:
            call_results.replace(past, _pieces(store, name, results), len(results))
        except call_results.Damaged as error:  # the checksums were right, so this was appended
            raise Damaged(name, str(error)) from error


def holds(past: int, results: Sequence[CallResult]) -> bool:
    """Whether the past begins with these results."""
    try:
        there = call_results.entries(past)
    except call_results.Damaged:
        return False
    return [_key(entry) for entry in there[: len(results)]] == [
        (result.call, result.digest, result.file.bytes) for result in results
    ]


def copy(source: int, past: int, results: Sequence[CallResult]) -> None:
    """Put the results that :func:`load` has put into ``source`` also into ``past``."""
    if not holds(past, results):
        call_results.clear(past)
        try:
            call_results.replace(past, call_results.body(source), call_results.count(source))
        except call_results.Damaged as error:
            raise Permanent(f"the results in memory are damaged: {error}") from error


def _entries(past: int) -> tuple[Entry, ...]:
    try:
        return call_results.entries(past)
    except call_results.Damaged as error:
        raise Permanent(f"the results of finished calls in memory are damaged: {error}") from error


def _key(entry: Entry) -> Key:
    return entry.call, entry.digest, entry.bytes


def _known(store: Store) -> dict[Key, File]:
    """Return the complete files that manifests name."""
    sizes = store.sizes(RESULTS)
    found: dict[Key, File] = {}
    for name in store.folders() if sizes else ():
        if identity_of(name) is not None:
            with contextlib.suppress(Missing, Damaged):  # not sealed yet, or not usable
                for each in read.read_manifest(store, name).results:
                    if sizes.get(each.file.name) == each.file.bytes:
                        found[each.call, each.digest, each.file.bytes] = each.file
    return found


def _write_one(store: Store, memory: memoryview, entry: Entry) -> File:
    name = f"{RESULT}-{entry.call:05d}-{entry.digest:016x}-{secrets.token_hex(4)}.bin"
    found: list[str] = []
    content = memory[entry.at : entry.at + entry.bytes]
    store.write(RESULTS, name, _verified(content, entry, found), length=entry.bytes)
    return File(RESULT, entry.call, name, entry.bytes, tuple(found))


def _verified(content: memoryview, entry: Entry, found: list[str]) -> Iterator[Sequence[memoryview]]:
    """Yield the blocks of a result, add the checksum of each to ``found``, and raise at the end if the result is not
    what was appended: the file is then not finished."""
    digest = hashlib.blake2b(digest_size=8)
    for block in checksums.blocks([content]):
        for piece in block:
            digest.update(piece)
        found.append(checksums.digest(block))
        yield block
    if int.from_bytes(digest.digest(), "little") != entry.digest:
        raise Permanent(f"{result_of(entry.call)} in memory is damaged")


def _pieces(store: Store, name: str, results: Sequence[CallResult]) -> Iterator[bytes]:
    for each in results:
        yield call_results.header(Entry(each.call, each.step, each.commit, 0, each.file.bytes, each.digest))
        yield bytes(read.result(store, name, each))

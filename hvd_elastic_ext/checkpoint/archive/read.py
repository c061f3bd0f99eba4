"""Reads a checkpoint into memory, and verifies it: the result is what was sealed, or an error.

Storage may contain anything. A length is trusted only if the files have that length, and a file only if its checksums
are right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from hvd_elastic_ext.checkpoint.format import checksums, shards, tensor_places
from hvd_elastic_ext.checkpoint.format import manifest as manifests
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing, Unreadable
from hvd_elastic_ext.checkpoint.format.manifest import (
    LAYOUT,
    LOCAL,
    MANIFEST,
    RESULT,
    RESULTS,
    SHARD,
    TREE,
    CallResult,
    File,
    Manifest,
    identity_of,
)
from hvd_elastic_ext.checkpoint.format.shards import Piece, joined
from hvd_elastic_ext.checkpoint.format.tensor_places import Places
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.core.commit_record import Record
from hvd_elastic_ext.core.errors import Permanent

Found = TypeVar("Found")
Job = TypeVar("Job")

SMALL: Final = 1 << 30
"""Most bytes of a layout or tree."""


@dataclass(frozen=True)
class Shard:
    """A file with the bytes of tensors: its header as it was read, and its pieces."""

    file: File
    header: bytes
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint: its content is known, its tensors are still on storage."""

    store: Store
    name: str
    manifest: Manifest
    places: Places
    layout: bytes
    tree: bytes
    """The data that all ranks share besides tensors (:mod:`trees`)."""
    shards: tuple[Shard, ...]

    def local(self, rank: int) -> bytes | None:
        """Return the rank's own tree; None if the rank has not written one."""
        file = self.manifest.file(LOCAL, rank)
        return None if file is None else _text(self.store, self.name, file, trees.check_value)

    def record(self, local: bytes) -> Record:
        """Return the record of this commit for a side with ``local`` as the rank's own tree."""
        return self.manifest.record._replace(tree=len(self.tree), local=len(local), stored=True)

    def fill(self, commit: memoryview, local: bytes) -> Record:
        """Write data, layout, tree and ``local`` into ``commit``, the bytes of a side behind its page. Bytes between
        tensors become zero. Raises :class:`Damaged`; the bytes are then undefined.
        """
        record = self.record(local)
        if len(commit) < record.total:
            raise Permanent(f"a commit of {record.total} bytes does not fit into {len(commit)}")
        for start, end in self.places.gaps:
            commit[start:end] = bytes(end - start)
        reads = [_read_of(shard, self.places, commit) for shard in self.shards]
        _read_all(self.store, self.name, reads)
        at = record.data
        for region in (self.layout, self.tree, local):
            commit[at : at + len(region)] = region
            at += len(region)
        return record


@dataclass(frozen=True)
class Read:
    """A file, and the memory for its bytes."""

    file: File
    into: tuple[memoryview, ...]
    """In the order of the bytes."""
    header: bytes = b""
    """The required beginning."""


def read_manifest(store: Store, name: str) -> Manifest:
    """Return the manifest of the checkpoint ``name``. Raises :class:`Missing`, :class:`Damaged` and
    :class:`StoreFailed`."""
    length = store.sizes(name).get(MANIFEST)
    if identity_of(name) is None or length is None:
        raise Missing(f"checkpoint {name[:200]} in {store.where}")
    if length > manifests.LIMIT:
        raise Damaged(name, f"{MANIFEST} has {length} bytes")
    try:
        data = bytearray(length)
        store.read(name, MANIFEST, 0, [memoryview(data)])
        manifest = manifests.decode(bytes(data))
    except (ValueError, EOFError, Missing, Unreadable) as error:
        raise Damaged(name, f"{MANIFEST}: {error}") from error
    if manifest.record.identity != identity_of(name):
        raise Damaged(name, f"{MANIFEST} belongs to another one")
    return manifest


def opened(store: Store, name: str) -> Checkpoint:
    """Open the checkpoint ``name``: read and verify everything except its tensors. Raises like
    :func:`read_manifest`."""
    manifest = read_manifest(store, name)
    sizes = store.sizes(name)
    for file in manifest.files:
        if problem := wrong_length(file, sizes):
            raise Damaged(name, problem)
    _demand_results(store, name, manifest)
    layout_file, tree_file = manifest.file(LAYOUT), manifest.file(TREE)
    assert layout_file is not None
    assert tree_file is not None
    layout = _small(store, name, layout_file)
    placed = _understood(name, layout_file, lambda: tensor_places.decode(layout))
    if (placed.loose, placed.length, len(layout)) != (
        manifest.record.loose,
        manifest.record.data,
        manifest.record.layout,
    ):
        raise Damaged(name, f"{layout_file.name} does not match the bytes")
    shards = tuple(_shard(store, name, file, placed) for file in manifest.files if file.kind == SHARD)
    _demand_all(name, placed, shards)
    tree = _text(store, name, tree_file, trees.check)
    return Checkpoint(store, name, manifest, placed, layout, tree, shards)


def verify(store: Store, name: str) -> Manifest:
    """Read every byte of a checkpoint. Raises :class:`Damaged` for the first error."""
    checkpoint = opened(store, name)
    for file in checkpoint.manifest.files:
        if file.kind == LOCAL:
            _text(store, name, file, trees.check_value)
    results = [result.file for result in checkpoint.manifest.results]
    _check_all(store, name, [*(shard.file for shard in checkpoint.shards), *results])
    return checkpoint.manifest


def result(store: Store, name: str, found: CallResult) -> bytearray:
    """Return the verified bytes of a result that the checkpoint ``name`` lists. Raises :class:`Damaged`."""
    data = bytearray(found.file.bytes)
    _read_all(store, name, [Read(found.file, (memoryview(data),))])
    return data


def _demand_results(store: Store, name: str, manifest: Manifest) -> None:
    sizes = store.sizes(RESULTS) if manifest.results else {}
    problem = next(filter(None, (wrong_length(each.file, sizes) for each in manifest.results)), None)
    if problem:
        raise Damaged(name, problem)


def wrong_length(file: File, sizes: Mapping[str, int]) -> str | None:
    """Return what the lengths of the files in its folder say is wrong with ``file``; None if nothing."""
    if (size := sizes.get(file.name)) == file.bytes:
        return None
    shown = f"{RESULTS}/{file.name}" if file.kind == RESULT else file.name
    return f"{shown} is missing" if size is None else f"{shown} has {size} bytes instead of {file.bytes}"


def _shard(store: Store, name: str, file: File, placed: Places) -> Shard:
    def read() -> Shard:
        start = _bytes(store, name, file, 0, min(shards.HEADER_LENGTH.size, file.bytes))
        length = shards.HEADER_LENGTH.unpack(start)[0] if len(start) == shards.HEADER_LENGTH.size else file.bytes
        if length > min(shards.HEADER_LIMIT, file.bytes - shards.HEADER_LENGTH.size):
            raise ValueError(f"its header would have {length} bytes")
        text = _bytes(store, name, file, shards.HEADER_LENGTH.size, length)
        pieces = tuple(shards.decode_header(text, placed))
        if shards.HEADER_LENGTH.size + length + sum(piece.end - piece.start for piece in pieces) != file.bytes:
            raise ValueError("its tensors do not add up to its length")
        return Shard(file, start + text, pieces)

    return _or_damaged(name, file, read)


def _demand_all(name: str, placed: Places, shards: Iterable[Shard]) -> None:
    """Check that every byte of every tensor is in exactly one shard."""
    spans = sorted(piece.span(placed) for shard in shards for piece in shard.pieces if piece.start != piece.end)
    wanted = list(
        joined((place.offset, place.offset + place.length) for place in (placed.all[n] for n in placed.by_offset))
    )
    held = list(joined(iter(spans)))
    if held != wanted or any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise Damaged(name, "its shards do not hold each tensor once")


def _small(store: Store, name: str, file: File) -> bytes:
    """Return the verified content of a small file."""
    if file.bytes > SMALL:
        raise Damaged(name, f"{file.name} has {file.bytes} bytes")
    data = memoryview(bytearray(file.bytes))
    _read_all(store, name, [Read(file, (data,))])
    return bytes(data)


def _text(store: Store, name: str, file: File, check: Callable[[bytes], None]) -> bytes:
    data = _small(store, name, file)
    _understood(name, file, lambda: check(data))
    return data


def _read_of(shard: Shard, placed: Places, commit: memoryview) -> Read:
    runs = joined(piece.span(placed) for piece in shard.pieces)
    head = memoryview(bytearray(len(shard.header)))
    return Read(shard.file, (head, *(commit[start:end] for start, end in runs)), shard.header)


def _read_all(store: Store, name: str, reads: Iterable[Read]) -> None:
    """Read and verify block by block, in as many threads as the store suggests."""

    reads = list(reads)
    jobs = [(read.file, *job) for read in reads for job in enumerate(checksums.blocks(read.into))]
    _in_threads(store.threads, lambda job: _read_block(store, name, *job), jobs)
    for read in reads:
        if read.header and bytes(read.into[0]) != read.header:
            raise Damaged(name, f"{read.file.name}: its header changed while it was read")


def _check_all(store: Store, name: str, files: Iterable[File]) -> None:
    """Verify files without keeping their content: each thread reuses the memory of one block."""
    own = threading.local()

    def one(job: tuple[File, int]) -> None:
        file, number = job
        if not hasattr(own, "memory"):
            own.memory = memoryview(bytearray(checksums.BLOCK))
        length = min(checksums.BLOCK, file.bytes - number * checksums.BLOCK)
        _read_block(store, name, file, number, [own.memory[:length]])

    _in_threads(store.threads, one, [(file, number) for file in files for number in range(len(file.checksums))])


def _read_block(store: Store, name: str, file: File, number: int, block: Sequence[memoryview]) -> None:
    def read() -> None:
        store.read(RESULTS if file.kind == RESULT else name, file.name, number * checksums.BLOCK, block)
        if checksums.digest(block) != file.checksums[number]:
            raise ValueError(f"block {number} of {len(file.checksums)} is not what was written")

    _or_damaged(name, file, read)


def _in_threads(threads: int, work: Callable[[Job], None], jobs: Sequence[Job]) -> None:
    """Do all jobs, or raise the first error and cancel the rest."""
    if len(jobs) < 2:
        for job in jobs:
            work(job)
        return
    with ThreadPoolExecutor(min(threads, len(jobs)), thread_name_prefix="hvd-elastic reads") as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _bytes(store: Store, name: str, file: File, start: int, length: int) -> bytes:
    data = bytearray(length)
    store.read(name, file.name, start, [memoryview(data)])
    return bytes(data)


def _or_damaged(name: str, file: File, read: Callable[[], Found]) -> Found:
    """Return the result of ``read``; raise :class:`Damaged` for any error that shows a wrong file."""
    try:
        return read()
    except EOFError:
        raise Damaged(name, f"{file.name} is shorter than it was") from None
    except Missing:
        raise Damaged(name, f"{file.name} is missing") from None
    except (ValueError, Unreadable) as error:
        raise Damaged(name, f"{file.name}: {error}") from error


def _understood(name: str, file: File, parse: Callable[[], Found]) -> Found:
    """Return the result of ``parse`` for verified bytes; raise :class:`Damaged` if they are invalid."""
    try:
        return parse()
    except (ValueError, Permanent) as error:
        raise Damaged(name, f"{file.name}: {error}") from error

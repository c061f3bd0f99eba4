"""Writes a commit to storage: each writer streams its part from the commit's memory, then one writes the manifest.

Files have names that no earlier attempt has used, and checksums are made while a block is in the processor's cache. The
manifest comes last: an attempt that is interrupted anywhere leaves files that no manifest names, and the checkpoints
before it as they were.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.checkpoint.format import checksums, shards, tensor_places
from hvd_elastic_ext.checkpoint.format import manifest as manifests
from hvd_elastic_ext.checkpoint.format.errors import StoreFailed
from hvd_elastic_ext.checkpoint.format.manifest import (
    LAYOUT,
    LOCAL,
    MANIFEST,
    RESULTS,
    SHARD,
    TREE,
    CallResult,
    File,
    Manifest,
    name_of,
)
from hvd_elastic_ext.checkpoint.format.shards import Share
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.checkpoint.values import trees
from hvd_elastic_ext.core.commit_record import Record
from hvd_elastic_ext.core.errors import ElasticError, Permanent, Transient

PROBE: Final = ".probe"
"""Prefix of the names of test folders, of which there may be several at the same time. The file in each has the
folder's name."""


def probe(store: Store) -> None:
    """Check that checkpoints can be written: write a small file, and remove it. Raises :class:`Permanent` if that
    cannot work later either. A temporary failure of storage raises nothing. Storage that cannot remove files raises
    nothing either: old checkpoints then stay.
    """
    folder = f"{PROBE}-{secrets.token_hex(4)}"
    try:
        with contextlib.suppress(Transient):
            store.put(folder, PROBE, b"checkpoints can be written here")
    except Permanent as error:
        raise Permanent(str(error).replace(f"/{folder}/{PROBE}", "")) from error
    finally:
        with contextlib.suppress(ElasticError):
            store.remove(folder, PROBE)
            store.remove_folder(folder)


def write_part(
    store: Store, record: Record, commit: memoryview, *, part: int | None, parts: int, rank: int | None
) -> tuple[File, ...]:
    """Write one part of ``commit``, the bytes of a side behind its page; it is durable on return. The first part
    includes the data that all ranks share besides tensors, every part the own state of ``rank`` (None: no rank's).
    Without a ``part`` only that state is written. The bytes must not change meanwhile. Raises :class:`StoreFailed` and
    :class:`Permanent`.
    """
    data, layout, tree, local = _regions(record, commit)
    placed = tensor_places.decode(layout)
    if (placed.loose, placed.length) != (record.loose, record.data):
        raise Permanent("the layout of a commit does not match its bytes; run the same code on every rank")
    if part is not None and not 0 <= part < parts:
        raise Permanent(f"there is no part {part} of {parts}")
    name = name_of(record.identity)
    files = [] if part is None else [_write_shard(store, name, shards.share(placed, parts)[part], data)]
    if part == 0:
        files.append(_write_small(store, name, (LAYOUT, 0), layout))
        trees.check(tree)
        files.append(_write_small(store, name, (TREE, 0), tree))
    if rank is not None and local:
        trees.check_value(local)
        files.append(_write_small(store, name, (LOCAL, rank), local))
    return tuple(files)


def seal(
    store: Store,
    record: Record,
    files: Collection[File],
    *,
    parts: int,
    world: int,
    facts: Mapping[str, Any] | None = None,
    results: Sequence[CallResult] = (),
) -> Manifest:
    """Write the manifest, which completes the checkpoint. Raises :class:`StoreFailed` if a part, or one of ``results``,
    is missing on storage."""
    ordered = tuple(sorted(files, key=lambda file: (file.kind, file.number)))
    problem = manifests.incomplete(ordered, parts) or manifests.wrong_results(results, record.call)
    if problem:
        raise Permanent(f"checkpoint {name_of(record.identity)} cannot be sealed: {problem}")
    name = name_of(record.identity)
    sizes = store.sizes(name)
    lost = [f"{name}/{file.name}" for file in ordered if sizes.get(file.name) != file.bytes]
    kept = store.sizes(RESULTS) if results else {}
    lost += [f"{RESULTS}/{each.file.name}" for each in results if kept.get(each.file.name) != each.file.bytes]
    if lost:
        raise StoreFailed(f"{store.where}/{lost[0]}", "it was written, and is now missing or incomplete")
    made = Manifest(record, world, parts, ordered, dict(facts or {}), tuple(results))
    try:
        encoded = manifests.encode(made)
    except (ValueError, TypeError) as error:
        raise Permanent(f"checkpoint {name} cannot be sealed: its facts are not plain data ({error})") from None
    if len(encoded) > manifests.LIMIT:
        raise Permanent(f"checkpoint {name} cannot be sealed: its facts are too long")
    store.put(name, MANIFEST, encoded)
    return made


def _regions(record: Record, commit: memoryview) -> tuple[memoryview, bytes, bytes, bytes]:
    if len(commit) < record.total:
        raise Permanent(f"a commit of {record.total} bytes does not lie in {len(commit)}")
    at = record.data
    regions = []
    for length in (record.layout, record.tree, record.local):
        regions.append(bytes(commit[at : at + length]))
        at += length
    return commit[: record.data], regions[0], regions[1], regions[2]


def _write_shard(store: Store, name: str, share: Share, data: memoryview) -> File:
    file = f"shard-{share.part:05d}-of-{share.parts:05d}-{_token()}.safetensors"
    streamed = [memoryview(share.header), *(data[start:end] for start, end in share.runs)]
    digests: list[str] = []
    store.write(name, file, _with_digests(checksums.blocks(streamed), digests), length=share.length)
    return File(SHARD, share.part, file, share.length, tuple(digests))


def _write_small(store: Store, name: str, which: tuple[str, int], data: bytes) -> File:
    kind, number = which
    file = f"{kind}-{number:05d}-{_token()}.json"
    store.write(name, file, checksums.blocks([memoryview(data)]), length=len(data))
    return File(kind, number, file, len(data), checksums.of(data))


def _with_digests(blocks: Iterable[Sequence[memoryview]], found: list[str]) -> Iterator[Sequence[memoryview]]:
    """Yield the blocks, and add the checksum of each requested one to ``found``, while the block is in the processor's
    cache."""
    for block in blocks:
        found.append(checksums.digest(block))
        yield block


def _token() -> str:
    """Return a part of a file name that no earlier attempt has used."""
    return secrets.token_hex(4)

"""Lists the checkpoints of a store, finds the complete ones, and removes old ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hvd_elastic_ext.checkpoint.archive import read, retention
from hvd_elastic_ext.checkpoint.archive.retention import Entry, Named, Retention
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.manifest import RESULTS, Manifest
from hvd_elastic_ext.checkpoint.format.naming import MANIFEST, identity_of
from hvd_elastic_ext.checkpoint.stores.store import Store


def listing(store: Store) -> list[Entry]:
    """Return every checkpoint, the newest first, also those that were never sealed. Checks only the lengths of files.
    Ignores other folders. Raises :class:`StoreFailed` if the store cannot be read.
    """
    seen = [_seen(store, name) for name in store.folders() if identity_of(name) is not None]
    named = any(isinstance(each.manifest, Manifest) and each.manifest.results for each in seen)
    results = store.sizes(RESULTS) if named else {}  # after the manifests: each file was there before its manifest
    return retention.newest_first([_entry(each, results) for each in seen])


def prune(store: Store, keep: Retention) -> list[Named]:
    """Remove the checkpoints that may be removed (:func:`retention.prune`), the oldest first. Return these with the
    reasons."""
    results = store.sizes(
        RESULTS
    )  # before the listing: a file that comes later may be of a checkpoint that comes later
    entries = listing(store)
    removed = retention.prune(entries, keep)
    gone = {named.name for named in removed}
    for named in removed:
        store.remove(named.name, MANIFEST)  # first: without it, a half-removed checkpoint is not a checkpoint
        store.remove_folder(named.name)
    left = [entry for entry in entries if entry.name not in gone]
    for name, file in retention.strays(left):
        store.remove(name, file)
    for file in retention.unreferenced(results, left):
        store.remove(RESULTS, file)
    return removed


class _Seen(NamedTuple):
    """What is in a checkpoint's folder. ``manifest``: None without one, or the reason why it cannot be used."""

    name: str
    sizes: Mapping[str, int]
    manifest: Manifest | str | None


def _seen(store: Store, name: str) -> _Seen:
    sizes = store.sizes(name)
    if MANIFEST not in sizes:
        return _Seen(name, sizes, None)
    try:
        return _Seen(name, sizes, read.read_manifest(store, name))
    except Missing:  # removed since the listing
        return _Seen(name, {}, None)
    except Damaged as error:
        return _Seen(name, sizes, error.why)


def _entry(seen: _Seen, results: Mapping[str, int]) -> Entry:
    name, sizes, manifest = seen
    identity = identity_of(name)
    assert identity is not None
    if not isinstance(manifest, Manifest):
        sealed, why = manifest is not None, manifest or "never sealed"
        return Entry(name, identity, whole=False, sealed=sealed, why=why, bytes=sum(sizes.values()))
    wrong = [
        *(read.wrong_length(file, sizes) for file in manifest.files),
        *(read.wrong_length(each.file, results) for each in manifest.results),
    ]
    why = next(filter(None, wrong), "")
    return Entry(
        name,
        identity,
        whole=not why,
        why=why,
        step=manifest.record.step,
        bytes=manifest.bytes,
        world=manifest.world,
        facts=manifest.facts,
        call=manifest.record.call,
        lacks=manifest.lacks,
        strays=tuple(sorted(sizes.keys() - {MANIFEST, *(file.name for file in manifest.files)})),
        results=tuple(each.file.name for each in manifest.results),
    )

"""Lists the checkpoints of a store, finds the complete ones, and removes old ones."""

from __future__ import annotations

from hvd_elastic_ext.checkpoint.archive import read, retention
from hvd_elastic_ext.checkpoint.archive.retention import Entry, Named, Retention
from hvd_elastic_ext.checkpoint.format import manifest as manifests
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.naming import MANIFEST, identity_of
from hvd_elastic_ext.checkpoint.stores.store import Store


def listing(store: Store) -> list[Entry]:
    """Return every checkpoint, the newest first, also those that were never sealed. Checks only the lengths of files.
    Ignores other folders. Raises :class:`StoreFailed` if the store cannot be read.
    """
    return retention.newest_first([_entry(store, name) for name in store.folders() if identity_of(name) is not None])


def prune(store: Store, keep: Retention) -> list[Named]:
    """Remove the checkpoints that may be removed (:func:`retention.prune`), the oldest first. Return these with the
    reasons."""
    entries = listing(store)
    removed = retention.prune(entries, keep)
    gone = {named.name for named in removed}
    for named in removed:
        store.remove(named.name, MANIFEST)  # first: without it, a half-removed checkpoint is not a checkpoint
        store.remove_folder(named.name)
    for name, file in retention.strays([entry for entry in entries if entry.name not in gone]):
        store.remove(name, file)
    return removed


def _entry(store: Store, name: str) -> Entry:
    identity = identity_of(name)
    assert identity is not None
    sizes = store.sizes(name)
    if MANIFEST not in sizes:
        return Entry(name, identity, whole=False, sealed=False, why="never sealed", bytes=sum(sizes.values()))
    try:
        manifest = read.read_manifest(store, name)
    except Missing:  # removed since the listing
        return Entry(name, identity, whole=False, sealed=False, why="never sealed")
    except Damaged as error:
        return Entry(name, identity, whole=False, why=error.why, bytes=sum(sizes.values()))
    wrong = next((file for file in manifest.files if sizes.get(file.name) != file.bytes), None)
    why = "" if wrong is None else _what_is_wrong(wrong, sizes.get(wrong.name))
    return Entry(
        name,
        identity,
        whole=wrong is None,
        why=why,
        step=manifest.record.step,
        bytes=manifest.bytes,
        world=manifest.world,
        facts=manifest.facts,
        strays=tuple(sorted(sizes.keys() - {MANIFEST, *(file.name for file in manifest.files)})),
    )


def _what_is_wrong(file: manifests.File, size: int | None) -> str:
    return f"{file.name} is missing" if size is None else f"{file.name} has {size} bytes instead of {file.bytes}"

"""The checkpoints of a store: which there are, which one is loaded, which ones stay, and which are removed.

The age of a checkpoint is in its name, so no clock decides. What is removed is chosen before anything is: the newest
complete checkpoint always stays, and so does the newest one from which a job can resume. A removal deletes the manifest
first: without it, a checkpoint that is half removed is not a checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from hvd_elastic_ext.checkpoint.archive import read
from hvd_elastic_ext.checkpoint.format.errors import Damaged, Missing
from hvd_elastic_ext.checkpoint.format.manifest import MANIFEST, RESULTS, Age, Manifest, age, identity_of
from hvd_elastic_ext.checkpoint.stores.store import Store
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import UsageError

# --- which one is taken, and which stay


@dataclass(frozen=True)
class Entry:
    """A checkpoint in a store. Unknown fields of an incomplete one are None or 0."""

    name: str
    identity: Identity
    whole: bool
    """The manifest is valid, and every file exists in its length."""
    sealed: bool = True
    """It has a manifest, valid or not. Without one it is being written, or was never finished."""
    why: str = ""
    """What is wrong with one that is not whole."""
    step: int | None = None
    bytes: int = 0
    world: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    call: int = 0
    """The training call in progress; 0: unknown."""
    lacks: str = ""
    """Why no job can resume from it, although it is whole: a result of an earlier call was not kept."""
    strays: tuple[str, ...] = ()
    """Files in its folder that its manifest does not name: those of earlier attempts."""
    results: tuple[str, ...] | None = None
    """The files with results of earlier calls that its manifest names; None without a valid manifest."""

    @property
    def shown(self) -> str:
        """Its name with its step: the number in the name is that of the commit."""
        return shown(self.name, self.step)


def shown(name: str, step: int | None) -> str:
    """Return a checkpoint's name with its step, as messages have it. Pure."""
    return name if step is None else f"{name} (step {step})"


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Return the JSON form for answers and `checkpoints list --json`."""
    fields = {**asdict(entry), "identity": list(entry.identity)}
    del fields["strays"], fields["results"], fields["lacks"]
    return fields | {"resumable": entry.whole and not entry.lacks, "not_resumable": entry.lacks}


class Named(NamedTuple):
    """A checkpoint, with the reason for its treatment, and its step, which is not in its name."""

    name: str
    why: str
    step: int | None = None

    @property
    def shown(self) -> str:
        """Its name with its step."""
        return shown(self.name, self.step)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept."""

    last: int = 3
    """So many of the newest."""
    every: int | None = None
    """Also the oldest of every so many steps; None: no such rule."""

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError("the newest checkpoint always stays; keep 1 or more of the last ones")
        if self.every is not None and self.every < 1:
            raise UsageError("one checkpoint of every so many steps is kept; give 1 or more, or leave it out")


def newest_first(entries: Collection[Entry]) -> list[Entry]:
    """Return all entries, complete or not, sorted by their commits, the newest first."""
    return sorted(entries, key=_age, reverse=True)


def newest(entries: Collection[Entry], skip: Collection[str] = ()) -> Entry | None:
    """Return the newest complete entry that is not to be skipped; None if there is none. Whether a job can resume from
    it does not matter."""
    return next((entry for entry in newest_first(entries) if entry.whole and entry.name not in skip), None)


def removable(entries: Collection[Entry], keep: Retention) -> list[Named]:
    """Return the entries that may be removed, the oldest first, each with the reason. The newest complete one is kept,
    and the newest one from which a job can resume. An incomplete one is removed only if it cannot be in progress: if a
    complete one of a later world exists.
    """
    whole = [entry for entry in newest_first(entries) if entry.whole]
    if not whole:
        return []
    stay = _kept(whole, keep)
    gone = [
        *(
            Named(entry.name, f"older than {_newest_ones(keep)}", entry.step)
            for entry in whole
            if entry.name not in stay
        ),
        *_unusable(entries, whole[0]),
    ]
    ages = {entry.name: _age(entry) for entry in entries}
    return sorted(gone, key=lambda named: ages[named.name])


def _newest_ones(keep: Retention) -> str:
    return "the newest one" if keep.last == 1 else f"the newest {keep.last}"


def strays(entries: Collection[Entry]) -> list[tuple[str, str]]:
    """Return checkpoint and name of each file that no manifest names, if a newer checkpoint exists: then no process
    still writes the file."""
    whole = [entry for entry in newest_first(entries) if entry.whole]
    return [(entry.name, file) for entry in whole[1:] for file in entry.strays]


def unreferenced(results: Collection[str], entries: Collection[Entry]) -> list[str]:
    """Return those of the files with results that no checkpoint names. Returns none while a checkpoint may be in
    progress, or has an unreadable manifest: it may use any of them. ``entries``: all that stay."""
    if not any(entry.whole for entry in entries) or any(entry.results is None for entry in entries):
        return []
    named = {file for entry in entries for file in entry.results or ()}
    return sorted(file for file in results if file not in named)


def _kept(whole: Sequence[Entry], keep: Retention) -> set[str]:
    stay = {entry.name for entry in whole[: keep.last]}
    stay.update(entry.name for entry in [each for each in whole if not each.lacks][:1])
    if keep.every is not None:
        # Keep the oldest of each interval: deleting newer ones does not change which one that is.
        oldest = {(entry.identity.lineage, (entry.step or 0) // keep.every): entry.name for entry in whole}
        stay.update(oldest.values())
    return stay


def _unusable(entries: Collection[Entry], reference: Entry) -> Iterator[Named]:
    for entry in entries:
        if not entry.whole and _world(entry) < _world(reference):
            why = "damaged, and there is a newer one" if entry.sealed else "never finished"
            yield Named(entry.name, why, entry.step)


def _age(entry: Entry) -> Age:
    return age(entry.identity)


def _world(entry: Entry) -> tuple[int, int]:
    return entry.identity.incarnation, entry.identity.generation


# --- in a store


def listing(store: Store) -> list[Entry]:
    """Return every checkpoint, the newest first, also those that were never sealed. Checks only the lengths of files.
    Ignores other folders. Raises :class:`StoreFailed` if the store cannot be read.
    """
    seen = [_seen(store, name) for name in store.folders() if identity_of(name) is not None]
    named = any(isinstance(each.manifest, Manifest) and each.manifest.results for each in seen)
    results = store.sizes(RESULTS) if named else {}  # after the manifests: each file was there before its manifest
    return newest_first([_entry(each, results) for each in seen])


def prune(store: Store, keep: Retention) -> list[Named]:
    """Remove the checkpoints that may be removed (:func:`removable`), the oldest first. Return these with the
    reasons."""
    results = store.sizes(
        RESULTS
    )  # before the listing: a file that comes later may be of a checkpoint that comes later
    entries = listing(store)
    removed = removable(entries, keep)
    gone = {named.name for named in removed}
    for named in removed:
        store.remove(named.name, MANIFEST)  # first: without it, a half-removed checkpoint is not a checkpoint
        store.remove_folder(named.name)
    left = [entry for entry in entries if entry.name not in gone]
    for name, file in strays(left):
        store.remove(name, file)
    for file in unreferenced(results, left):
        store.remove(RESULTS, file)
    return removed


class _Seen(NamedTuple):
    """What is in a checkpoint's folder."""

    name: str
    sizes: Mapping[str, int]
    manifest: Manifest | str | None
    """None without one, or the reason why it cannot be used."""


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

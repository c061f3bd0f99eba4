"""Chooses the checkpoint to load, and those that may be removed. Pure: the age is in the names, no clock is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from hvd_elastic_ext.checkpoint.format.naming import Age, age
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """A checkpoint in a store. Unknown fields of an incomplete one are None or 0. ``whole``: the manifest is valid, and
    every file exists in its length; else ``why`` says what is wrong. ``sealed``: it has a manifest, valid or not.
    Without one it is being written, or was never finished.
    """

    name: str
    identity: Identity
    whole: bool
    sealed: bool = True
    why: str = ""
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
    """Which checkpoints are kept: the ``last`` ones, and the oldest of every ``every`` steps (None: no such rule)."""

    last: int = 3
    every: int | None = None

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError("the newest checkpoint always stays; keep 1 or more of the last ones")
        if self.every is not None and self.every < 1:
            raise UsageError("one of every so many steps is kept; give 1 or more, or leave it out")


def newest_first(entries: Collection[Entry]) -> list[Entry]:
    """Return all entries, complete or not, sorted by their commits, the newest first."""
    return sorted(entries, key=_age, reverse=True)


def newest(entries: Collection[Entry], skip: Collection[str] = ()) -> Entry | None:
    """Return the newest complete entry that is not to be skipped; None if there is none. Whether a job can resume from
    it does not matter."""
    return next((entry for entry in newest_first(entries) if entry.whole and entry.name not in skip), None)


def prune(entries: Collection[Entry], keep: Retention) -> list[Named]:
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

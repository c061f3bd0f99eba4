"""Which checkpoint is taken, and which ones may go. Pure: age is in the names, and no clock is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from hvd_elastic_ext.checkpoint.format.naming import Age, age
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """A checkpoint that was met. What is not known of one that is not whole is None or 0.

    ``whole``: its manifest is, and every file it names is there in its length; ``why`` it is not, if it is not.
    ``sealed``: it has a manifest, whole or not. One without is being written, or never was finished.
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
    strays: tuple[str, ...] = ()
    """Files in its folder that its manifest does not name: of attempts before the one that was sealed."""


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """For answers, and for `checkpoints list --json`."""
    told = {**asdict(entry), "identity": list(entry.identity)}
    del told["strays"]
    return told


class Named(NamedTuple):
    """A checkpoint, and why what happens to it does."""

    name: str
    why: str


@dataclass(frozen=True)
class Retention:
    """What stays: the ``last`` ones, and the oldest of every ``every`` steps (None: no such)."""

    last: int = 3
    every: int | None = None

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError("the newest checkpoint always stays; keep 1 or more of the last ones")
        if self.every is not None and self.every < 1:
            raise UsageError("one of every so many steps is kept; give 1 or more, or leave it out")


def newest_first(entries: Collection[Entry]) -> list[Entry]:
    """All entries, whole or not, sorted by their commits: the newest comes first."""
    return sorted(entries, key=_age, reverse=True)


def newest(entries: Collection[Entry], skip: Collection[str] = ()) -> Entry | None:
    """The newest whole one that is not to be skipped; None if there is none."""
    return next((entry for entry in newest_first(entries) if entry.whole and entry.name not in skip), None)


def prune(entries: Collection[Entry], keep: Retention) -> list[Named]:
    """What may go, the oldest first, each with the reason. The newest whole one stays.

    What is not whole goes if it is surely not being written any more: if a whole one is of a later world.
    """
    whole = [entry for entry in newest_first(entries) if entry.whole]
    if not whole:
        return []
    stay = _kept(whole, keep)
    gone = [
        *(Named(entry.name, "kept long enough") for entry in whole if entry.name not in stay),
        *_unusable(entries, whole[0]),
    ]
    ages = {entry.name: _age(entry) for entry in entries}
    return sorted(gone, key=lambda named: ages[named.name])


def strays(entries: Collection[Entry]) -> list[tuple[str, str]]:
    """Checkpoint and name of each file that no manifest names and no process writes any more: there is a newer one."""
    whole = [entry for entry in newest_first(entries) if entry.whole]
    return [(entry.name, file) for entry in whole[1:] for file in entry.strays]


def _kept(whole: Sequence[Entry], keep: Retention) -> set[str]:
    stay = {entry.name for entry in whole[: keep.last]}
    if keep.every is not None:
        # Keep the oldest of each interval; deleting newer ones does not change it.
        oldest = {(entry.identity.lineage, (entry.step or 0) // keep.every): entry.name for entry in whole}
        stay.update(oldest.values())
    return stay


def _unusable(entries: Collection[Entry], reference: Entry) -> Iterator[Named]:
    for entry in entries:
        if not entry.whole and _world(entry) < _world(reference):
            yield Named(entry.name, "damaged, and there is a newer one" if entry.sealed else "never finished")


def _age(entry: Entry) -> Age:
    return age(entry.identity)


def _world(entry: Entry) -> tuple[int, int]:
    return entry.identity.incarnation, entry.identity.generation

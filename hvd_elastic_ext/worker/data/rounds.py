"""The samples of ranks that train alone between two averages.

Each rank goes through its own part of a *deal* at its own pace. Only what has been averaged counts as consumed: at an
average the ranks tell each other how far they are, and the sampler's progress becomes that. What a lost rank has taken
since returns to the rest of the epoch. What the others have taken since does not: they still have what they learnt from
it, so the next deal leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Key = tuple[int, int]
"""The epoch, and which pass through it without ``set_epoch``."""
_NONE: Indices = np.empty(0, dtype=np.int64)
COLUMNS: Final = 4
"""Of what ranks tell each other: the epoch, the pass, a number, and what that is."""
_TAKEN, _BESIDES, _NUMBER = range(3)
"""A sample that is not part of an average; one that is, as one of :attr:`Progress.besides`; :attr:`Progress.number`."""


class Progress(NamedTuple):
    """What is averaged of an epoch: ``besides``, and the first ``number`` samples of its order without these."""

    number: int
    besides: tuple[int, ...]
    """Sorted."""

    def mask(self, order: Indices) -> NDArray[np.bool_]:
        """Which samples of the whole epoch's ``order`` that are."""
        rest = np.flatnonzero(~np.isin(order, self.besides))
        mask = np.ones(len(order), dtype=np.bool_)
        mask[rest[self.number :]] = False
        return mask


def united(found: Iterable[Progress], order: Callable[[], Indices]) -> Progress:
    """Return what is averaged as far as any rank knows: the same on all ranks that know the same. ``order``: makes the
    whole epoch's order, if that is needed."""
    distinct = sorted(set(found))
    if len(distinct) == 1:
        return distinct[0]
    whole = order()
    masks = [each.mask(whole) for each in distinct]
    every = np.logical_or.reduce(masks)
    for each, mask in zip(distinct, masks, strict=True):
        if (mask == every).all():
            return each  # as it is written where it is known already
    number = int(np.argmin(every)) if not every.all() else len(whole)
    return Progress(number, tuple(sorted(whole[number:][every[number:]].tolist())))


def _rows_of(key: Key, numbers: Sequence[int] | Indices, kind: int) -> Indices:
    rows = np.empty((len(numbers), COLUMNS), dtype=np.int64)
    rows[:] = (*key, 0, kind)
    rows[:, 2] = numbers
    return rows


def consumed(pool: Indices, counts: Sequence[int]) -> tuple[int, Indices]:
    """Return how many of the first samples of ``pool`` are consumed, and which ones behind these.

    ``pool`` is dealt to the ranks in turn, and the one of rank r has taken the first ``counts[r]`` of its part.
    """
    size, least = len(counts), min(counts)
    beyond = [pool[rank::size][least:count] for rank, count in enumerate(counts)]
    return min(least * size, len(pool)), np.concatenate(beyond)


class Reached(NamedTuple):
    """How far a rank is."""

    key: Key
    at_end: bool
    """Whether it has taken of its part what it can, as far as it knows: a loader may leave out less than a batch."""
    empty: bool
    """Whether nothing of its part is left."""
    whole: bool
    """Whether it knows that loaders leave out nothing."""


def stays(mine: Reached, others: Sequence[Reached]) -> bool:
    """Return whether a rank stays at an average, since it has come to the end of its epoch, and another one has not."""
    whole = any(rank.whole for rank in (mine, *others))

    def is_over(rank: Reached) -> bool:
        return rank.key > mine.key or (rank.key == mine.key and (rank.empty if whole else rank.at_end))

    return is_over(mine) and not all(map(is_over, others))


@dataclass(slots=True)
class Deal:
    """The rest of an epoch, as it was dealt to the ranks of one world."""

    key: Key
    pool: Indices
    """All samples that were dealt, in order."""
    own: Indices
    """Those of this rank."""
    start: int
    """The sampler's progress when it was dealt: consumed from the start of the order …"""
    besides: Indices
    """… of which these were left out."""
    members: Sequence[int]
    """The ranks it was dealt to: those that were not beyond this epoch when the world began."""
    taken: int = 0
    """How many of its own this rank has consumed."""
    settled: int = 0
    """How many of these are part of an average."""
    averaged: int = 0
    """How many of these all ranks know to be, since all were in this epoch."""

    @property
    def left(self) -> int:
        """How many of its own are left."""
        return len(self.own) - self.taken

    def progress(self, keys: Sequence[Key], taken: Sequence[int]) -> tuple[int, Indices]:
        """Return the sampler's progress, as ``start`` and ``besides``, when all that the ranks have taken is averaged.

        A member that is in a later epoch has taken its whole part of this one, and one in an earlier epoch nothing.
        """
        counts = [
            taken[rank] if keys[rank] == self.key else len(self.own) if keys[rank] > self.key else 0
            for rank in self.members
        ]
        first, beyond = consumed(self.pool, counts)
        return self.start + first, np.union1d(self.besides, beyond)


@dataclass(slots=True)
class Round:
    """What this rank knows of the samples that were taken since the last average."""

    deal: Deal | None = None
    """None until the next loop begins."""
    passes: int = 0
    """How often the present epoch has begun again."""
    mine: dict[int, list[Indices]] = field(default_factory=dict)
    """What this rank has taken of earlier deals since the last average, by epoch."""
    held: Mapping[int, Indices] = field(default_factory=dict)
    """What the ranks of this world had taken and not averaged when it began, by epoch."""
    known: dict[Key, list[Progress]] = field(default_factory=dict)
    """What ranks knew to be averaged when this world began: of this rank's epoch and of later ones."""
    keys: Sequence[Key] = ()
    """Where the ranks of this world were when it began; empty if nobody has told."""
    samples: int = 0
    """How many samples this rank has contributed to the round."""

    def take(self, count: int) -> None:
        """Note ``count`` more of this rank's samples."""
        self.samples += count
        if self.deal is not None:
            self.deal.taken = min(len(self.deal.own), self.deal.taken + count)

    def fold(self) -> None:
        """Put the present deal aside: the next loop begins with another one."""
        deal, self.deal = self.deal, None
        if deal is not None and deal.taken > deal.averaged:
            self.mine.setdefault(deal.key[0], []).append(deal.own[deal.averaged : deal.taken])

    def forget(self) -> None:
        """Note that the sampler's progress is that of an average, and nothing was taken since. What this world's ranks
        have told each other stands."""
        self.deal = None
        self.go_back()

    def go_back(self) -> None:
        """Note that nothing was taken since the last average. The deal stands: the other ranks go on with theirs."""
        self.mine, self.samples = {}, 0
        if self.deal is not None:
            self.deal.taken = self.deal.settled

    def members(self, rank: int, size: int, *, key: Key) -> list[int]:
        """Return which ranks the epoch ``key`` is dealt to, for one of ``size``: all that are not beyond it."""
        if len(self.keys) != size or self.keys[rank] > key:  # or this one has gone back: so have all
            return list(range(size))
        return [other for other in range(size) if self.keys[other] <= key]

    def rows(self, key: Key, progress: Progress) -> Indices:
        """What the ranks of a new world must know from this one: what it has taken and not averaged, and what it knows
        to be averaged. ``progress``: that of its own epoch, ``key``.
        """
        rows = [_rows_of((epoch, 0), taken, _TAKEN) for epoch in self.mine for taken in self.mine[epoch]]
        later = [(each, one) for each, found in self.known.items() if each > key for one in found]
        for each, one in [(key, progress), *later]:
            rows += [_rows_of(each, [one.number], _NUMBER), _rows_of(each, one.besides, _BESIDES)]
        return np.concatenate([np.empty((0, COLUMNS), dtype=np.int64), *rows])

    def learn(self, rows: Indices, *, key: Key) -> None:
        """Take in the :meth:`rows` of all ranks of a world, one rank's after another's.

        Leave out of the next deals what they have taken, and know what is averaged of the epoch ``key``, in which this
        rank is, and of later ones.
        """
        taken, told = rows[rows[:, 3] == _TAKEN], rows[rows[:, 3] != _TAKEN]
        self.held = {int(epoch): np.unique(taken[taken[:, 0] == epoch, 2]) for epoch in np.unique(taken[:, 0])}
        self.known = {}
        for part in np.split(told, np.flatnonzero(told[:, 3] == _NUMBER)[1:]):  # each begins with its number
            if len(part) and (each := (int(part[0, 0]), int(part[0, 1]))) >= key:
                found = Progress(int(part[0, 2]), tuple(sorted(part[1:, 2].tolist())))
                self.known.setdefault(each, []).append(found)

    def averaged_of(self, key: Key, own: Progress, order: Callable[[], Indices]) -> Progress:
        """Return what is averaged of the epoch ``key``, of which this rank itself knows ``own``."""
        return united([own, *self.known.get(key, ())], order)

    def held_of(self, epoch: int) -> Indices:
        """What is left out of deals of ``epoch``."""
        return self.held.get(epoch, _NONE)

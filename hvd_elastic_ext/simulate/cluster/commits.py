"""Commits of the simulated cluster, and the election of a commit in a sync."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Commit(NamedTuple):
    """A commit, ordered by age as in ``worker/sync/exchange.py``. ``batch``: number of batches trained before it.
    ``call``: the training call that it belongs to.
    """

    incarnation: int
    generation: int
    number: int
    batch: int
    lineage: int
    call: int = 1

    @property
    def name(self) -> list[int]:
        """Name of the commit, as used by launcher and agents."""
        return [self.incarnation, self.generation, self.number]

    @property
    def held(self) -> list[int]:
        """The commit in the form of agents' reports."""
        return [*self.name, self.batch]

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.generation}.{self.number} (batch {self.batch})"


class Candidate(NamedTuple):
    """The commit of a rank in a sync. ``entered``: the newest generation of the State that the rank was part of.
    ``end``: the last commit of the training call before; commits of a call are newer than those of earlier ones.
    """

    commit: Commit | None
    entered: int
    incarnation: int
    end: Commit | None = None


class Elected(NamedTuple):
    """``commit``: the commit from which all ranks continue. The next ones have ``generation`` and ``incarnation``."""

    commit: Commit
    generation: int
    incarnation: int
    anew: bool


def elect(candidates: Sequence[Candidate], *, lineage: int) -> Elected:
    """Elect a commit like ``worker/sync/exchange.py`` and ``State.sync``. ``lineage``: that of a history that begins
    here."""
    held = [each.commit for each in candidates if each.commit is not None]
    ends = [each.end for each in candidates if each.end is not None]
    generation = 1 + max(each.entered for each in candidates)
    incarnation = max(each.commit.incarnation if each.commit else each.incarnation for each in candidates)
    if held or not ends:
        newest = max(held) if held else Commit(candidates[0].incarnation, 0, 0, 0, lineage)
        return Elected(newest, generation, incarnation, not held)
    end = max(ends)
    incarnation, generation = max(incarnation, end.incarnation), max(generation, end.generation + 1)
    first = Commit(max(candidates[0].incarnation, end.incarnation), end.generation, end.number + 1, end.batch, lineage)
    return Elected(first._replace(call=end.call + 1), generation, incarnation, anew=False)

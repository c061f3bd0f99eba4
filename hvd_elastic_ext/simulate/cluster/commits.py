"""Commits as the simulated cluster has them, and what the ranks of a world make of them at a sync."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Commit(NamedTuple):
    """Ordered by age, as ``worker/sync/election.py`` has it. ``batch``: so many batches were trained before it."""

    incarnation: int
    generation: int
    number: int
    batch: int
    lineage: int

    @property
    def name(self) -> list[int]:
        """As launcher and agents name it."""
        return [self.incarnation, self.generation, self.number]

    @property
    def held(self) -> list[int]:
        """As agents tell of it."""
        return [*self.name, self.batch]

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.generation}.{self.number} (batch {self.batch})"


class Candidate(NamedTuple):
    """What a rank brings to a sync. ``entered``: the newest generation of the State that it was part of."""

    commit: Commit | None
    entered: int
    incarnation: int


class Elected(NamedTuple):
    """``commit`` is the one that all ranks go on from; the next ones are of ``generation`` and ``incarnation``."""

    commit: Commit
    generation: int
    incarnation: int
    anew: bool


def elect(candidates: Sequence[Candidate], *, lineage: int) -> Elected:
    """Do what ``worker/sync/election.py`` and ``State.sync`` do. ``lineage``: of a history that begins here."""
    held = [each.commit for each in candidates if each.commit is not None]
    generation = 1 + max(each.entered for each in candidates)
    incarnation = max(each.commit.incarnation if each.commit else each.incarnation for each in candidates)
    newest = max(held) if held else Commit(candidates[0].incarnation, 0, 0, 0, lineage)
    return Elected(newest, generation, incarnation, not held)

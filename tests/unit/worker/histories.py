"""Invented histories of elastic jobs: worlds of any size, with losses, resizes and rests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st


@dataclass(frozen=True)
class World:
    """One world: so many ranks take so many batches, commit every ``commit_every``, and then it ends.

    It ends with a loss (back to the last commit) or a resize (everything live goes on).
    """

    size: int
    batches: int
    commit_every: int
    end: Literal["loss", "resize"]


WORLDS = st.builds(
    World,
    size=st.integers(1, 9),
    batches=st.integers(0, 30),
    commit_every=st.integers(1, 7),
    end=st.sampled_from(["loss", "resize"]),
)
HISTORIES = st.lists(WORLDS, min_size=1, max_size=8)


@dataclass
class Committed:
    """What the job falls back to: progress, and everything consumed so far in the history that leads there."""

    progress: dict[str, Any]
    consumed: list[Any]

"""Notes of steps that a commit takes along (``run --replay``), as far as programs outside of training read them.

A commit has the notes of the newest steps that led to it, in the part that stays on its rank. So with two checkpoints
of one history, the older one has the weights, and the newer one says how the steps after it were done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.json_text import to_text

KEY: Final = "replay"
"""The key for them, in a rank's own part of a commit."""
REQUEST: Final = "HVD_ELASTIC_REPLAY_STEP"
"""Variable of a process that executes one recorded step: two descriptors of memory files, of the request, and of the
report."""


@dataclass(frozen=True, slots=True)
class Head:
    """What notes say of themselves. Steps are counted as they are noted, from the first one of the job on."""

    seed: int
    """From which the seeds of all steps are made."""
    began: int
    """The steps before the first one that is noted."""
    at: int
    """The steps before the commit."""
    step: int
    """The steps of the optimizer before the commit. Memory may hold a commit with an older part of its rank: then this
    differs from the commit's own count."""
    worlds: tuple[tuple[int, int], ...]
    """The worlds whose commits the notes lead through: the generation of each, and the steps before it."""

    def encode(self) -> str:
        """Return one line."""
        found = {"seed": self.seed, "began": self.began, "at": self.at, "step": self.step, "worlds": self.worlds}
        return to_text(found)

    def leads_through(self, generation: int, at: int) -> bool:
        """Whether the steps led through the commit that a world of this generation made after ``at`` steps, and all
        steps since then are noted. A world whose steps were lost is not one of them, though it made as many."""
        ends = [begin for _, begin in self.worlds[1:]] + [self.at]
        worlds = zip(self.worlds, ends, strict=True)
        return self.began <= at and any(found == generation and begin <= at <= end for (found, begin), end in worlds)


def head_of(notes: str) -> Head:
    """Return the first line of notes. Raises ``ValueError``, ``TypeError`` or ``LookupError`` for another text."""
    found = json.loads(notes.partition("\n")[0])
    worlds = tuple((int(generation), int(begin)) for generation, begin in found["worlds"])
    return Head(int(found["seed"]), int(found["began"]), int(found["at"]), int(found["step"]), worlds)


def notes_in(local: str, *, step: int) -> str | None:
    """Return the notes in a rank's own part of a commit after ``step`` steps; None if it has none of that commit."""
    try:
        found: Any = json.loads(local)[KEY]
        return str(found) if head_of(found).step == step else None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


# --- which steps can be executed again


class Noted(NamedTuple):
    """A checkpoint whose steps were noted."""

    name: str
    identity: Identity
    call: int
    step: int
    notes: str

    @property
    def head(self) -> Head:
        """What its notes say of themselves."""
        return head_of(self.notes)


class Way(NamedTuple):
    """From a checkpoint to a later one: each step in between can be executed again."""

    base: Noted
    end: Noted

    @property
    def steps(self) -> range:
        """The numbers of these steps."""
        return range(self.base.step + 1, self.end.step + 1)


def ways(checkpoints: Iterable[Noted]) -> list[Way]:
    """Return the ways between these checkpoints of a job, those from the newest one first. Pure."""
    newest_first = sorted(checkpoints, key=lambda each: each.identity[1:], reverse=True)
    return [Way(base, end) for base in newest_first for end in newest_first if _lead(base, end)]


def _lead(base: Noted, end: Noted) -> bool:
    same = (base.identity.lineage, base.call) == (end.identity.lineage, end.call)
    # Steps outside of the loop, as of a reset callback, are not noted; those that a scaler has skipped are.
    every_noted = 0 < end.step - base.step <= end.head.at - base.head.at
    return same and every_noted and end.head.leads_through(base.identity.generation, base.head.at)


def way_to(step: int, found: Iterable[Way]) -> Way | None:
    """Return the shortest way to a step, the first of several; None if there is none. Pure."""
    return min((way for way in found if step in way.steps), key=lambda way: step - way.base.step, default=None)


def ranges_of(found: Iterable[Way]) -> list[range]:
    """Return the steps on all ways, as few ranges in their order. Pure."""
    made: list[range] = []
    for steps in sorted((way.steps for way in found), key=lambda steps: (steps.start, steps.stop)):
        if made and steps.start <= made[-1].stop:
            made[-1] = range(made[-1].start, max(made[-1].stop, steps.stop))
        else:
            made.append(steps)
    return made

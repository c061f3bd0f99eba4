"""How a world ends if its script has no elastic loop, and what is left when all processes that trained are lost. Pure.

A script with a loop reports that training is done, and asks for another world when it loses one. One without a loop
does neither: only the ends of its processes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple


class Ended(NamedTuple):
    """How a process has ended. ``who``: its rank and seat. ``well``: with 0, and without having been told to.

    ``own``: it has reported an error of its script. Errors that only tell of a lost peer are not reported.
    """

    who: str
    how: str
    well: bool
    own: bool = False


class WorldPhase(Enum):
    """How far a world whose processes have no elastic loop has come to its end, as far as is known."""

    RUNNING = "running"
    """Some processes live, and none has ended well. Next: any other."""
    ENDING = "ending"
    """Some processes have ended well, and the others are about to end. Next: DONE or FAILED."""
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    """No process lives, and none has ended well."""


class WorldOutcome(NamedTuple):
    """The phase of a world and why; ``reason`` is empty for ``RUNNING`` and ``LOST``."""

    phase: WorldPhase
    reason: str = ""


def outcome_of_world(size: int, alive: int, ended: Sequence[Ended]) -> WorldOutcome:
    """Return the phase of a world of ``size`` processes. One that neither lives nor ended was lost with its host."""
    well = sum(each.well for each in ended)
    if alive:
        return (
            WorldOutcome(WorldPhase.ENDING, "some have ended well; the others are about to")
            if well
            else WorldOutcome(WorldPhase.RUNNING)
        )
    if not well:
        return WorldOutcome(WorldPhase.LOST)
    if well == size:
        return WorldOutcome(WorldPhase.DONE, "all have ended well")
    return WorldOutcome(WorldPhase.FAILED, _failure(size, well, ended))


def why_unjoined_failed(ended: Iterable[Ended], *, wanted: int) -> str | None:
    """Why programs that need no world have failed, after the last of them has ended; None if they have not.

    ``ended``: the last one of each seat. ``wanted``: how many were to end well. Another one may have taken the place
    of one that failed.
    """
    last = list(ended)
    well = sum(each.well for each in last)
    return None if well >= wanted or well == len(last) else _failure(len(last), well, last)


def first_cause(ended: Iterable[Ended]) -> Ended | None:
    """The process to name for what has gone wrong: the first with an error of its own, else the first that failed.

    ``ended``: in the order in which their ends became known. The peers of one that fails end by that, and may be gone
    first: it has its interpreter to take down.
    """
    bad = [each for each in ended if not each.well]
    return next((each for each in bad if each.own), bad[0] if bad else None)


def _failure(size: int, well: int, ended: Sequence[Ended]) -> str:
    first, bad = first_cause(ended), sum(not each.well for each in ended)
    what = "the host of a process was lost" if first is None else f"{first.who} {first.how}"
    more = f", and {bad - 1} more" if bad > 1 else ""
    return f"{what}{more}; {well} of {size} processes ended well"


def restart_reason(step: int, last: str, *, loops: bool) -> str:
    """Why the next world would start from the beginning, and what would have prevented that.

    All processes that have trained are lost, and no commit is known. ``step``: the newest one that was reported.
    ``last``: the process to name for that, and how it ended. ``loops``: the script has an elastic loop.
    """
    kept = f"{step} steps were" if step else "what was trained was"
    remedy = (
        "a State of hvd_elastic_ext, or --adopt, keeps commits when processes die, and --checkpoint-dir with it "
        "when hosts do"
        if loops
        else "the script has no elastic loop, and only elastic.run with a State of hvd_elastic_ext keeps commits"
    )
    return f"no process is left that has trained ({last}), and {kept} kept nowhere: {remedy}"

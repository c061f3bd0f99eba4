"""How a world ends if its script has no elastic loop, and what remains when all processes that trained are lost. Pure.

A script with a loop reports that training is done, and asks for another world when it loses one. A script without a
loop does neither: only the ends of its processes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple


class Ended(NamedTuple):
    """How a process has ended. ``who``: its rank and seat. ``well``: with exit code 0, and without an order to end.

    ``own``: it has reported an error of its script. Errors that only report a lost peer do not count. ``victim``: it
    ended because a peer was lost. ``error``: the digest of its own error.
    """

    who: str
    how: str
    well: bool
    own: bool = False
    victim: bool = False
    error: str = ""


class WorldPhase(Enum):
    """How far a world without an elastic loop has come to its end, as far as known."""

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
    """Why programs that need no world have failed, after the end of the last one; None if they have not.

    ``ended``: the last end in each seat. ``wanted``: the number of programs that have to end well. Another one may have
    replaced a failed one.
    """
    last = list(ended)
    well = sum(each.well for each in last)
    return None if well >= wanted or well == len(last) else _failure(len(last), well, last)


def first_cause(ended: Iterable[Ended]) -> Ended | None:
    """The process that caused a failure: the first with an error of its own, else the first that is not a victim, else
    the first that failed.

    ``ended``: in the order in which the ends became known. Peers of a failed process end because of it, and may end
    first: the failed one still has to shut down its interpreter.
    """
    bad = [each for each in ended if not each.well]
    found = [each for each in bad if each.own and not each.victim] or [each for each in bad if not each.victim] or bad
    return found[0] if found else None


def _failure(size: int, well: int, ended: Sequence[Ended]) -> str:
    first, bad = first_cause(ended), sum(not each.well for each in ended)
    what = "the host of a process was lost" if first is None else f"{first.who} {first.how}"
    more = f", and {bad - 1} more" if bad > 1 else ""
    return f"{what}{more}; {well} of {size} processes ended well"


def restart_reason(step: int, last: str, *, loops: bool) -> str:
    """Why the next world would start from the beginning, and what would have prevented that.

    All processes that have trained are lost, and no commit is known. ``step``: the newest reported one. ``last``: the
    process that caused it, and how it ended. ``loops``: the script has an elastic loop.
    """
    kept = f"{step} steps were" if step else "what was trained was"
    remedy = (
        "a State of hvd_elastic_ext, or --adopt, keeps commits when processes die, and --checkpoint-dir with it "
        "when hosts do"
        if loops
        else "the script has no elastic loop, and only elastic.run with a State of hvd_elastic_ext keeps commits"
    )
    return f"no process is left that has trained ({last}), and {kept} kept nowhere: {remedy}"

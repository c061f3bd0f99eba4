"""How a world ends whose processes do not report that training is done, and what remains when all processes that
trained are lost. Pure.

A script with an elastic loop reports that training is done, and asks for another world when it loses one. A script
without a loop does neither: only the ends of its processes are known. A script with a loop may also leave from within
its training function, as by ``sys.exit(0)``: training is done if all members of the world do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

LEAVE_WITHIN_S: Final = 10.0
"""Members that leave their training function with exit code 0 so soon after one another have left together. So long
the others are waited for at most, from the first one.
"""
REMEDY: Final = "let all ranks leave at the same step, or return from the training function"


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


class Left(NamedTuple):
    """A member that has ended with exit code 0 within its training function.

    ``who``: its rank and seat. ``at``: when (mono). ``step``: its last step, as far as known. ``call``: the training
    call; 0 if unknown. ``told``: the order, notice or signal because of which it may have left; empty: it left by
    itself.
    """

    who: str
    at: float
    step: int = 0
    call: int = 0
    told: str = ""


class Staying(NamedTuple):
    """A member of the same world that has not.

    ``lost``: it has ended in another way, or is about to. ``done``: it has reported that training is done. ``joins``:
    it has lost that world, and asks for the next one. ``told``: as in :class:`Left`.
    """

    who: str
    lost: bool = False
    done: bool = False
    joins: bool = False
    told: str = ""


class Departure(Enum):
    """What it means that members have left their training function with exit code 0."""

    WAIT = "wait"
    """The others may be about to leave, too. Next: any other."""
    DONE = "done"
    """All have left: training is done."""
    RESUMABLE = "resumable"
    """They may have left because of an order, a notice or a signal: others take their places. Next: none, until
    another world has formed."""
    PART = "part"
    """Only some have left, or they have not left together: others take their places. Next: DONE or RESUMABLE."""
    LOSS = "loss"
    """Another member is lost: its end decides. Next: none."""


class DepartureOutcome(NamedTuple):
    """What the departure of members means, and why. ``until``: the end of the wait (mono)."""

    departure: Departure
    reason: str
    until: float | None = None


def outcome_of_departure(now: float, left: Sequence[Left], others: Sequence[Staying]) -> DepartureOutcome:
    """Return what it means that the members ``left`` of a world (at least one) have left their training function with
    exit code 0. ``others``: the rest of its members.
    """
    lost = [each for each in others if each.lost and not each.done]
    told = [(each.who, each.told) for each in left] + [(each.who, each.told) for each in others]
    orders = [f"{who}: {why}" for who, why in told if why]
    trains = [each for each in others if not each.done]
    first, last = min(each.at for each in left), max(each.at for each in left)
    if orders:
        return DepartureOutcome(Departure.RESUMABLE, orders[0])
    if lost:
        return DepartureOutcome(Departure.LOSS, f"{lost[0].who} is lost")
    who = _few([each.who for each in left])
    if trains:
        rest = _few([each.who for each in trains])
        if now >= first + LEAVE_WITHIN_S or any(each.joins for each in trains):
            return DepartureOutcome(
                Departure.PART, f"{who} left the training function with exit code 0, {rest} did not"
            )
        reason = f"{who} left the training function with exit code 0; {rest} may do the same"
        return DepartureOutcome(Departure.WAIT, reason, first + LEAVE_WITHIN_S)
    if len({each.call for each in left if each.call}) > 1:
        return DepartureOutcome(Departure.PART, "they left in different calls of training functions")
    steps = sorted({each.step for each in left})
    if len(steps) > 1 and last - first > LEAVE_WITHIN_S:
        reason = f"they left at steps {steps[0]} to {steps[-1]}, {last - first:.0f} s apart"
        return DepartureOutcome(Departure.PART, reason)
    at = f" at step {steps[0]}" if len(steps) == 1 and steps[0] else ""
    return DepartureOutcome(Departure.DONE, f"all ranks left the training function with exit code 0{at}")


def _few(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


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

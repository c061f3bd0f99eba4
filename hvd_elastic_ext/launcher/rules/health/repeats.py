"""The same failure start after start: when that ends the job, and when it only blocks a slot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from hvd_elastic_ext.launcher.health.causes import SIGKILLED, Cause
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

STARTS: Final = 3
"""So many starts with the same failure, without a step between, show that it comes again."""
UNREPORTED_S: Final = 600.0
"""Where no process reports steps, one that was in a world for so long counts as one that has done some."""


class Failure(NamedTuple):
    """A process has failed ``at`` a time (mono). It was ``created`` earlier (mono).

    ``stepped``: it had done a step. ``alone``: it was in no world yet, and the others train on: that costs them
    nothing, and says nothing about their script.
    """

    seat: Seat
    created: float
    at: float
    stepped: bool = False
    alone: bool = False


class Verdict(Enum):
    """What follows from a failure that comes again."""

    NOTHING = "nothing"
    """The usual strike."""
    BLOCK = "block"
    """Its slot gets no work for the longest cooldown, and the others train."""
    END = "end"
    """The job ends."""


class Decision(NamedTuple):
    """``starts``: how many starts in a row have failed like this. ``reason``: why the job ends, or the slot is blocked;
    empty for ``NOTHING``.
    """

    verdict: Verdict
    starts: int
    reason: str = ""


def is_counted(cause: Cause, code: int) -> bool:
    """Whether a failure may come again by itself. A SIGKILL comes from outside, if it is not the kernel's for memory;
    what is silent, late or unreachable depends on the load and the network.
    """
    return cause is Cause.MEMORY or (cause is Cause.CRASHED and code not in SIGKILLED)


def decide(failures: Sequence[Failure], *, stepped_at: float, left: int, needed: int) -> Decision:
    """Decide what follows from the last of ``failures``, all of the same kind and exit code, in the order of time.

    ``stepped_at``: when any process of the job did its last step (mono). ``left``: slots without the one that failed.
    ``needed``: how many a world needs.
    """
    last = failures[-1]
    in_a_row = [] if last.alone else [each for each in failures if not each.alone and each.at > stepped_at]
    count = starts(in_a_row)
    if count >= STARTS:
        hosts = list(dict.fromkeys(each.seat.host for each in in_a_row))
        if len(hosts) > 1:
            return Decision(Verdict.END, count, f"it came on {len(hosts)} hosts: {', '.join(hosts)}")
        if left < needed:
            return Decision(Verdict.END, count, f"slots left without {last.seat}: {left}, needed: {needed}")
        return Decision(Verdict.BLOCK, count, "the others go on without it")
    here = starts(_since_last_step(each for each in failures if each.seat == last.seat and not each.alone))
    if here >= STARTS and not last.alone and left >= needed:
        return Decision(Verdict.BLOCK, here, "the others go on without it")
    return Decision(Verdict.NOTHING, max(count, here))


def _since_last_step(failures: Iterable[Failure]) -> list[Failure]:
    found: list[Failure] = []
    for each in failures:
        found = [] if each.stepped else [*found, each]
    return found


def starts(failures: Iterable[Failure]) -> int:
    """The number of starts: processes that were started before another one of them had failed belong to one."""
    count, since = 0, float("-inf")
    for each in failures:
        if each.created >= since:
            count, since = count + 1, each.at
    return count

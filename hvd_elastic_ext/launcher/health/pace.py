"""Whether a world makes no step for longer than usual. Pure.

A pause is only logged. A stall (see :mod:`stalls`) begins much later. A pause is logged within 5 s, and then at the
pace of all waits (:mod:`hvd_elastic_ext.core.pace`). ``--wait-lines`` changes how rare lines become for which no rank
waits: all ranks are busy (perhaps in a validation), a start beside the training, a sleep.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core.pace import CLOSE_S, EVERY_S
from hvd_elastic_ext.launcher.health.stalls import Member, named

SOON_S: Final = 3.0
"""Shortest pause that is logged. With one second from the last step to its heartbeat, and one to the next look, that is
within 5 s of the last step.
"""


UNBEGUN_S: Final = 60.0
"""How long lines tell of a world without any sign of training: a script may train without reporting steps."""


FACTOR: Final = 2.0
"""A pause is logged if it is longer than a usual step by this factor."""


LAST_LINE_S: Final = 10.0
"""How late the last of these lines may be."""


RECENT: Final = 20
"""The number of last steps that decide what is usual."""


@dataclass(frozen=True, slots=True)
class StepPause:
    """``still_s``: for how long no rank has made progress, by heartbeats.

    ``usual_s``: seconds of a usual step; 0 if unknown. ``lag``: ranks that do not wait for others; ``waiting``: the
    number of those that do; ``finished``: members that are done with training; ``unbegun``: those without a report of
    progress yet. ``killed``: those that were killed, and whose end is not known yet.

    ``busy``: the share of their hosts' CPUs that is used, if nobody has begun and that is known; ``looping``: whether
    one has entered an elastic loop; ``prologue``: whether a loop is to come, which may take long.
    """

    still_s: float
    usual_s: float
    lag: tuple[Member, ...]
    waiting: int
    finished: tuple[Member, ...] = ()
    unbegun: tuple[Member, ...] = ()
    killed: tuple[Member, ...] = ()
    busy: float | None = None
    looping: bool = False
    prologue: bool = False

    @property
    def without_sign(self) -> bool:
        """Whether no member has given any sign of training since the world was formed."""
        return not (self.lag or self.waiting or self.killed or self.finished) and bool(self.unbegun)

    @property
    def is_told(self) -> bool:
        """Whether lines tell of it. A script that gives no sign for long may report none."""
        return not self.without_sign or self.prologue or self.still_s < UNBEGUN_S + LAST_LINE_S

    @property
    def waited_for(self) -> bool:
        """Whether ranks wait for others. Else all are busy, or hang."""
        return self.waiting > 0

    @property
    def text(self) -> str:
        """Such as "no step for 4 s (usually 0.2 s): rank 3 (b[0]) is waited for"."""
        usual = f" (usually {self.usual_s:.2g} s)" if self.usual_s else ""
        return f"no step for {self.still_s:.0f} s{usual}: {self.who}"

    @property
    def who(self) -> str:
        """Whom it is for, such as "rank 3 (b[0]) is waited for"."""
        count = self.waiting + len(self.lag)
        if self.without_sign:
            return self._without_sign
        if self.killed:
            have = "has" if len(self.killed) == 1 else "have"
            return f"{named(self.killed)} {have} been killed and {_are(self.killed)} waited for"
        if self.lag and self.waiting:
            return f"{named(self.lag)} {_are(self.lag)} waited for"
        if self.lag:
            return f"{named(self.lag)} is busy, or hangs" if count == 1 else f"all {count} ranks are busy, or hang"
        if self.finished:
            have = "has" if len(self.finished) == 1 else "have"
            return f"{named(self.finished)} {have} finished training and {_are(self.finished)} waited for"
        if self.unbegun:
            have = "has" if len(self.unbegun) == 1 else "have"
            return f"{named(self.unbegun)} {have} not begun a step yet and {_are(self.unbegun)} waited for"
        return f"all {count} ranks wait for one another" if count > 1 else "the only rank waits; there is no other one"

    @property
    def lacks(self) -> str:
        """What members without any sign of training have not done."""
        have = "has" if len(self.unbegun) == 1 else "have"
        if self.prologue:
            return f"{have} not begun the training loop yet"
        return (
            f"{have} reported no step"
            if self.looping
            else f"{have} neither entered an elastic loop nor reported a step"
        )

    @property
    def _without_sign(self) -> str:
        what = f"{named(self.unbegun)} {self.lacks}"
        if self.busy is not None:
            what += f" (CPU of {'its host' if len(self.unbegun) == 1 else 'their hosts'}: {self.busy:.0%})"
        if self.still_s < UNBEGUN_S or self.prologue:
            return what
        return f"{what}: the script hangs, or reports no steps, and no more lines tell of it"


def _are(members: Sequence[Member]) -> str:
    return "is" if len(members) == 1 else "are"


def pause(
    now: float,
    members: Sequence[Member],
    recent: Iterable[Sequence[float]],
    finished: Sequence[Member] = (),
    *,
    unbegun: Sequence[Member] = (),
    killed: Sequence[Member] = (),
) -> StepPause | None:
    """Whether no member makes progress for longer than usual. ``recent``: the last steps of each, in seconds.

    ``finished``: those that are done with training, which may be why the others wait; ``unbegun``, ``killed``:
    as in :class:`StepPause`.
    """
    still = min((now - member.moved_at for member in members), default=0.0)
    if still < SOON_S:
        return None
    usual = max(map(usual_s, recent), default=0.0)
    if still < FACTOR * usual:
        return None
    lag = tuple(member for member in members if not member.waiting)
    waiting = len(members) - len(lag)
    return StepPause(still, usual, lag, waiting, tuple(finished), tuple(unbegun), tuple(killed))


def usual_s(steps: Sequence[float]) -> float:
    """The second longest of ``steps``: one long step among many is not usual, two are. 0 if there is none."""
    return min(heapq.nlargest(2, steps), default=0.0)


def next_line_hint(in_s: float) -> str:
    """The end of a line: when the next one comes, if that is later than users expect; else empty."""
    return f"; next line in {in_s:.0f} s" if in_s > EVERY_S + CLOSE_S else ""

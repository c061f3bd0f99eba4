"""When all that holds the training is about to go, what was trained is made durable while there is time.

One checkpoint at once, since a notice may come true early, and one as late as it can be made for sure: of that
nobody trains any further, so that nothing is lost.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from hvd_elastic_ext.launcher.planners.checkpoints.coordinator import Sealing
from hvd_elastic_ext.launcher.rules.membership.membership import Decision

BEFORE_S: Final = 5.0
"""The last checkpoint begins so long before the end at the latest, beside a multiple of what one takes."""
SHORTEST_S: Final = 30.0
"""So much time a notice is thought to leave that does not say: the least that clouds give."""
OVER_S: Final = 60.0
"""An end that has not come for so long does not come: training goes on."""


class Call(Enum):
    """What there is to be done about an end of everything."""

    NONE = "nothing"
    NOW = "a checkpoint, and training goes on"
    LAST = "the last checkpoint"


def call(now: float, by: float | None, before_s: float) -> Call:
    """Say what is to be done for an end at ``by`` (mono; None if there is none): see :func:`before_s`. Pure."""
    if by is None or now > by + OVER_S:
        return Call.NONE
    return Call.LAST if now >= by - before_s else Call.NOW


def before_s(durable_s: float, waited_s: float = 0.0) -> float:
    """So long before the end the last checkpoint begins. Pure.

    ``durable_s``: how long one takes from its commit on; ``waited_s``: how long its commit is waited for, in which
    ranks may be busy with something that is no step.
    """
    return BEFORE_S + 3.0 * durable_s + 2.0 * waited_s


class LastCall:
    """See the module's docstring. To be asked at every look."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing
        self._made = Call.NONE
        self._since: float | None = None
        """Since when an end is foreseen of which nobody knows when it comes (mono)."""

    def look(self, now: float, by: float | None) -> float | None:
        """Do what is to be done. ``by``: when less than training needs will be left (mono; infinite if unknown).

        When to look again at the latest (mono).
        """
        known = self._known(now, by)
        before = before_s(self._sealing.durable_s, self._sealing.waited_s)
        wanted = call(now, known, before)
        if self._made is Call.LAST and not self._sealing.nobody_goes_on:
            self._made = Call.NONE  # another world has formed, and trains
        if self._made is Call.LAST and wanted is Call.NOW:
            wanted = Call.LAST  # it was faster than thought; to train on for that might cost what was saved
        if wanted is not self._made:
            if wanted is Call.NONE:
                self._sealing.go_on()
                self._made = wanted
            elif self._sealing.now_please(stay=wanted is Call.LAST):
                self._made = wanted
        return None if known is None or wanted is not Call.NOW else known - before

    def held_back(self, decision: Decision) -> Decision:
        """The decision, or that no world is formed: what it trained would be lost, and all before is on storage."""
        if decision.members is None or self._made is not Call.LAST or not self._sealing.has_all:
            return decision
        return Decision(None, "", "all that training needs is about to go, and the last checkpoint is made")

    def _known(self, now: float, by: float | None) -> float | None:
        self._since = None if by != math.inf else now if self._since is None else self._since
        return by if self._since is None else self._since + SHORTEST_S

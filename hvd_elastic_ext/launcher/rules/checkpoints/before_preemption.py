"""Which checkpoints are made before all hosts that training needs are taken away. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Call(Enum):
    """What is due before all hosts are gone."""

    NONE = "nothing"
    NOW = "a checkpoint, and training goes on"
    LAST = "the last checkpoint"


MARGIN_S: Final = 5.0
"""Part of the time before the end at which the last checkpoint begins; see :func:`lead_s`."""
SHORTEST_S: Final = 30.0
"""Assumed time left if a notice names none: the shortest that clouds give."""
CANCELLED_AFTER_S: Final = 60.0
"""Training continues if hosts are still there this long after the announced end."""


def decide(now: float, by: float | None, lead_s: float) -> Call:
    """Which checkpoint an end at ``by`` (mono; None: no end is known) calls for."""
    if by is None or now > by + CANCELLED_AFTER_S:
        return Call.NONE
    return Call.LAST if now >= by - lead_s else Call.NOW


def lead_s(durable_s: float, waited_s: float = 0.0) -> float:
    """Seconds before the end at which the last checkpoint begins.

    ``durable_s``: time from its commit to its completion; ``waited_s``: time until the named commit is made.
    """
    return MARGIN_S + 3.0 * durable_s + 2.0 * waited_s

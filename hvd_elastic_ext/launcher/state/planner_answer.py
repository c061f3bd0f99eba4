"""What planners answer: a :class:`Plan`, and what may hold a world back.

A planner returns no reason. A planner that waits, or makes others wait, keeps the wait in its part of the state:
until when, for whom, an attempt, a decision. ``state/facts/waits.py`` reads all waits from there, each with its reason,
its limit and what follows. What holds a world back gives its reason as :class:`HeldBack`, and
:attr:`JobState.decision` keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hvd_elastic_ext.launcher.driver.job import JobState


class HeldBack(NamedTuple):
    """Why the next world does not form yet. ``until``: when that is over at the latest (mono), if that is known."""

    reason: str
    until: float | None = None


class WorldQuestion(NamedTuple):
    """Something that may hold the next world back; ``why_not`` answers by :attr:`JobState.decision`.

    It is asked at every look, even if no world would form, and notes in its part of the state what a world needs, which
    may take a while to get. A later planner gets it.
    """

    asks: str
    why_not: Callable[[JobState], HeldBack | None]


class Plan(NamedTuple):
    """``again_at``: when to ask the planner again at the latest (mono), if nothing happens before.

    ``stop``: no planner after this one is asked at this look.

    Actions are not here but in :attr:`JobState.to_do`: reducers request some, too, and the order of all counts.
    """

    again_at: float | None = None
    stop: bool = False


NOTHING: Final = Plan()

"""What a planner returns."""

from __future__ import annotations

from typing import Final, NamedTuple


class Plan(NamedTuple):
    """``again_at``: when to ask the planner again at the latest (mono), if nothing happens before.

    ``stop``: no planner after this one is asked at this look.

    Actions are not here but in :attr:`JobState.to_do`: reducers request some, too, and the order of all counts.
    """

    again_at: float | None = None
    stop: bool = False


NOTHING: Final = Plan()

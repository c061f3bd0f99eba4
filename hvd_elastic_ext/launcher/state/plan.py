"""What a planner answers."""

from __future__ import annotations

from typing import Final, NamedTuple


class Plan(NamedTuple):
    """``again_at``: when the planner has to be asked again at the latest (mono), if nothing happens before.

    ``last``: no planner after this one is asked at this look. What is to be done is in :attr:`JobState.to_do`.
    """

    again_at: float | None = None
    last: bool = False


NOTHING: Final = Plan()

"""What a planner returns."""

from __future__ import annotations

from typing import Final, NamedTuple


class Plan(NamedTuple):
    """``again_at``: when to ask the planner again at the latest (mono), if nothing happens before.

    ``stop``: no planner after this one is asked at this look. Its actions are in :attr:`JobState.to_do`.
    """

    again_at: float | None = None
    stop: bool = False


NOTHING: Final = Plan()

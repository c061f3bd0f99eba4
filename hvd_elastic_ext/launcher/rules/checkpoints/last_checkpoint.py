"""How long a job that is told to end waits for its last checkpoint. Pure."""

from __future__ import annotations

from typing import Final

LAST_CHECKPOINT_S: Final = 20.0
"""Longest time for the last checkpoint of a job that is told to end: pods have 30 s in all."""
BY_HAND_S: Final = 60.0
"""The same after Ctrl-C: on a busy machine each program of an agent takes seconds to start, and a second Ctrl-C ends
the job at any time."""


def longest_s(*, by_hand: bool, on_its_way: bool = True) -> float:
    """Seconds from the signal. ``on_its_way``: agents are heard, and none has reported that it cannot write."""
    return BY_HAND_S if by_hand and on_its_way else LAST_CHECKPOINT_S

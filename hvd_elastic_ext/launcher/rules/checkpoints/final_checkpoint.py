"""The limits of the last checkpoint of a job that is done, or has to end. Pure."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 300.0
"""Shortest limit for storage that does not answer."""
DURATION_FACTOR: Final = 4.0
"""That limit is this multiple of the duration of the last checkpoint, if that is longer."""
RETRY_S: Final = 20.0
"""How long to retry when storage fails."""
STOP_LIMIT_S: Final = 20.0
"""Longest time for the last checkpoint of a job that has to end: pods have 30 s in all."""
CTRL_C_LIMIT_S: Final = 60.0
"""The same after Ctrl-C: on a busy machine each program of an agent takes seconds to start, and a second Ctrl-C ends
the job at any time."""


def decide(waited_s: float, *, saved: bool, answered: bool, durable_s: float) -> tuple[bool, str]:
    """Whether agents are still needed, and why; "" if all is saved.

    ``waited_s``: since the last process ended. ``saved``: the end of training is on storage, or there is nothing to
    save. ``answered``: no agent works on it now. ``durable_s``: how long the last checkpoint took.
    """
    if saved:
        return False, ""
    if answered and waited_s >= RETRY_S:
        return False, f"it could not be written for {waited_s:.0f} s"
    if waited_s >= longest_s(durable_s):
        return False, f"storage gave no answer for {waited_s:.0f} s"
    return True, "the end of training is made durable"


def longest_s(durable_s: float) -> float:
    """Seconds after which storage that does not answer is given up."""
    return max(ANSWER_S, DURATION_FACTOR * durable_s)


def stop_limit_s(*, by_hand: bool, on_its_way: bool = True) -> float:
    """Seconds from the signal. ``on_its_way``: agents are connected, and none has reported that it cannot write."""
    return CTRL_C_LIMIT_S if by_hand and on_its_way else STOP_LIMIT_S

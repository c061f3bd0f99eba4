"""How long the last checkpoint of a job that is done with training is waited for. Pure."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 300.0
"""Shortest limit for storage that gives no answer."""
TIMES: Final = 4.0
"""That limit as a multiple of what the last checkpoint took, if that is longer."""
FAILING_S: Final = 20.0
"""How long to retry when storage fails."""


def decide(waited_s: float, *, saved: bool, answered: bool, durable_s: float) -> tuple[bool, str]:
    """Whether agents are still needed, and why; "" if all is saved.

    ``waited_s``: since the last process ended. ``saved``: the end of training is on storage, or there is nothing to
    save. ``answered``: no agent works on it now. ``durable_s``: how long the last checkpoint took.
    """
    if saved:
        return False, ""
    if answered and waited_s >= FAILING_S:
        return False, f"it could not be written for {waited_s:.0f} s"
    if waited_s >= longest_s(durable_s):
        return False, f"storage gave no answer for {waited_s:.0f} s"
    return True, "the end of training is made durable"


def longest_s(durable_s: float) -> float:
    """Seconds after which storage that gives no answer is not waited for any longer."""
    return max(ANSWER_S, TIMES * durable_s)

"""The pause after consecutive failures. Pure."""

from __future__ import annotations

from typing import Final

MAX_DOUBLINGS: Final = 64
"""Most doublings. More would not change the pause, but could overflow a float after weeks of failures."""


def pause_after(failures: int, *, first: float, longest: float, jitter: float = 0.0) -> float:
    """Return the seconds to wait after ``failures`` in a row (at least one): ``first``, doubled with each further one.

    ``longest``: the limit, including jitter. ``jitter``, in [0, 1), adds that part of the pause, so that many processes
    do not try at the same time.
    """
    return float(min(longest, first * 2.0 ** min(failures - 1, MAX_DOUBLINGS) * (1.0 + jitter)))

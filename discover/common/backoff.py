"""How long to wait after failures. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_PAUSE: Final = 0.8
"""Seconds, before jitter, after the first failure of an API server; doubled with each further one (rule R8)."""

LONGEST_PAUSE: Final = 30.0
"""Seconds, jitter included: so hosts are published again soon after a server is back."""

RESET_AFTER: Final = 120.0
"""Seconds without a failure after which the next one counts as the first."""


def pause_after(failures: int, *, first: float, longest: float, jitter: float = 0.0) -> float:
    """Return the seconds to wait after ``failures`` in a row (at least one). ``jitter`` is drawn from [0, 1)."""
    return min(longest, first * 2.0 ** min(failures - 1, 16) * (1.0 + jitter))


@dataclass(frozen=True, slots=True)
class Backoff:
    """``failures`` in a row, the last of them ``at`` (monotonic seconds)."""

    failures: int = 0
    at: float | None = None

    def failed(self, now: float, jitter: float) -> tuple[Backoff, float]:
        """Count a failure: ``(what is known then, seconds to wait)``. ``jitter`` keeps many daemons out of step."""
        first = self.at is None or now - self.at > RESET_AFTER
        failures = 1 if first else self.failures + 1
        return Backoff(failures, now), pause_after(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE, jitter=jitter)

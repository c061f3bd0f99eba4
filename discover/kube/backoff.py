"""How long to leave a server alone that has just failed (rule R8). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

FIRST_PAUSE: Final = 0.8
"""Seconds, before jitter, after the first failure; doubled with each further one."""

LONGEST_PAUSE: Final = 30.0
"""Seconds, jitter included: so the hosts are published again soon after a server is back."""

RESET_AFTER: Final = 120.0
"""Seconds without a failure after which the next one counts as the first."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """``failures`` in a row, the latest of them ``at`` (monotonic seconds)."""

    failures: int = 0
    at: float | None = None

    def failed(self, now: float, jitter: float) -> tuple[Backoff, float]:
        """Count a failure: ``(what is known then, seconds to wait)``. ``jitter`` is drawn from [0, 1).

        Up to as much again is added at random, so that many daemons do not come back in step.
        """
        fresh = self.at is None or now - self.at > RESET_AFTER
        before = 0 if fresh else self.failures
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(before, 16) * (1.0 + jitter))
        return replace(self, failures=before + 1, at=now), pause

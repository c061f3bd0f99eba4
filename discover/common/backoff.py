"""How long to wait after failures of an API server. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core.backoff import pause_after

FIRST_PAUSE: Final = 0.8
"""Seconds, before jitter, after the first failure. Each further failure doubles them (rule R8)."""

LONGEST_PAUSE: Final = 30.0
"""Seconds, including jitter. The limit makes hosts be published again soon after a server is back."""

RESET_AFTER: Final = 120.0
"""Seconds without a failure after which the next one counts as the first."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """``failures``: how many in a row. ``at``: when the last one was (monotonic seconds)."""

    failures: int = 0
    at: float | None = None

    def failed(self, now: float, jitter: float) -> tuple[Backoff, float]:
        """Count a failure at ``now``; return ``(new state, seconds to wait)``.

        ``jitter``, drawn from [0, 1), keeps many daemons from sending requests at the same time.
        """
        first = self.at is None or now - self.at > RESET_AFTER
        failures = 1 if first else self.failures + 1
        return Backoff(failures, now), pause_after(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE, jitter=jitter)

"""How long to wait after failures of an API server. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core.backoff import pause_after

FIRST_PAUSE: Final = 0.8
"""Seconds, before jitter, after the first failure; doubled with each further one (rule R8)."""

LONGEST_PAUSE: Final = 30.0
"""Seconds, jitter included: so hosts are published again soon after a server is back."""

RESET_AFTER: Final = 120.0
"""Seconds without a failure after which the next one counts as the first."""


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

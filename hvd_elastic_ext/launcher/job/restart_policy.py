"""Whether a failed job restarts, and after how long, by options that arena has too. Pure."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed

FIRST_S: Final = 10.0
"""Pause before the first one; each further one is twice as long, up to :data:`MOST_S`. Kubernetes' own for jobs."""
MOST_S: Final = 360.0


def pause_before_restart(failure: JobFailed, restarts: int, *, policy: str, limit: int) -> float | None:
    """Seconds until the job restarts after ``failure``, with ``restarts`` before; None if it is over."""
    on_request = isinstance(failure, Interrupted | Asleep)
    if policy != "OnFailure" or on_request or restarts >= limit:
        return None
    return pause_after(restarts + 1, first=FIRST_S, longest=MOST_S)

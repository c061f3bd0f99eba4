"""The signals that a script reports for ``--autoscale``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.process.link import Status

MAX_NAMES: Final = 16
"""Most names. They are few, because every heartbeat contains them."""


def observe(status: Status, signals: Mapping[str, float]) -> None:
    """Put ``signals`` into the next heartbeats. Raises :class:`UsageError` for an invalid signal."""
    found = dict(status.observed or {})
    for name, value in signals.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(f"state.observe({name}={value!r}): give a finite number")
        found[name] = number
    if len(found) > MAX_NAMES:
        raise UsageError(f"state.observe: {len(found)} names are too many; at most {MAX_NAMES} are allowed")
    status.observed = found

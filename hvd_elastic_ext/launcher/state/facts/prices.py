"""What hosts cost."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hvd_elastic_ext.launcher.driver.job import JobState


def price_of(job: JobState, host: str) -> float | None:
    """The price of a host for an hour: by the signal if it is given by host, else by its source; None if unknown."""
    prices = job.scaling.signals.get("price")
    if isinstance(prices, Mapping) and host in prices:
        return prices[host]
    listed = job.fleet.hosts.get(host)
    try:
        price = float("" if listed is None else listed.price)
    except ValueError:
        return None
    return price if math.isfinite(price) and price > 0 else None

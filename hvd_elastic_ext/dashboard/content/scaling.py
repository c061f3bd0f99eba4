"""The Autoscaling view: decisions, and the throughput at each size, in one unit. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.launcher.scaling.curve import GLOBAL, HOST
from hvd_elastic_ext.launcher.scaling.policies import parse
from hvd_elastic_ext.report.series import Speed
from hvd_elastic_ext.report.timeline import text, whole

DECIDED: Final = ("scaled", "scale_recommended", "not_scaled")
NEWEST: Final = 50
"""Number of newest decisions that are shown."""
SAMPLES: Final = "samples/s"
UNITS: Final[Mapping[str, str]] = {GLOBAL: "steps/s", HOST: "steps of one host/s"}
"""Units of the work that a policy maximizes, by which batch is constant."""
MEANS: Final[Mapping[str, str]] = {
    GLOBAL: "All hosts share one batch (batch=global): a step is the same work at each size.",
    HOST: "Each host keeps its batch (batch=host): a step of 4 hosts is the work of 4 steps of one host.",
    SAMPLES: "Counted in samples that the script reports.",
}


def scaling_of(records: Sequence[Record], speeds: Sequence[Speed], live: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the view. ``live``: the launcher's report on ``--autoscale``, None without a launcher."""
    policy = _policy(records, live)
    batch = _batch(policy)
    sampled = all(speed.samples_per_s is not None for speed in speeds)
    unit = SAMPLES if speeds and sampled else UNITS[batch]
    return {
        "policy": policy,
        "unit": unit,
        "means": MEANS[SAMPLES if unit == SAMPLES else batch] if speeds else "",
        "curve": curve(speeds, unit),
        "live": live,
        "decisions": [
            {
                "t": record.t,
                "event": EVENTS[record.event].title,
                "hosts": whole(record.get("hosts")),
                "before": whole(record.get("before")),
                "why": text(record.get("reason")),
            }
            for record in records
            if record.event in DECIDED
        ][-NEWEST:][::-1],
    }


def curve(speeds: Sequence[Speed], unit: str) -> list[list[Any]]:
    """Return by number of hosts ``[hosts, work per second, gain per host since the smaller size]``."""
    work = [(speed.hosts, _work(speed, unit)) for speed in speeds]
    steps = [(hosts - fewer, more - less) for (fewer, less), (hosts, more) in itertools.pairwise(work)]
    added = [None, *(_round(more / hosts) for hosts, more in steps)]
    return [[hosts, _round(rate), each] for (hosts, rate), each in zip(work, added, strict=False)]


def _work(speed: Speed, unit: str) -> float:
    if unit == SAMPLES:
        return speed.samples_per_s or 0.0
    return speed.steps_per_s * (speed.hosts if unit == UNITS[HOST] else 1)


def _round(value: float) -> float:
    """Four digits are more than a chart shows."""
    return float(f"{value:.4g}")


def _policy(records: Sequence[Record], live: Mapping[str, Any] | None) -> str:
    if live is not None:
        return text(live.get("policy"))
    started = (record for record in reversed(records) if record.event == "started")
    return text(next((record.get("autoscale") for record in started), None))


def _batch(policy: str) -> str:
    """Return which batch is constant. A policy in a journal may be any text or missing."""
    try:
        return parse(policy).batch
    except UsageError:
        return HOST

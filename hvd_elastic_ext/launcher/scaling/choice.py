"""Chooses the hosts to remove when a job shrinks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

SLOW: Final = 1.3
"""A host is slow if its step takes this many times the median; smaller differences are noise."""
_ORDINAL: Final = re.compile(r"(.*?)(\d+)\Z")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """``price``: for an hour; ``strikes``: number of faults; ``step_s``: seconds of a step of its slowest process,
    without the wait for others. None or 0 if unknown."""

    name: str
    price: float | None = None
    strikes: int = 0
    step_s: float | None = None


def leaving(hosts: Sequence[HostFacts], count: int, *, ordered: bool) -> tuple[str, ...]:
    """Return the ``count`` of ``hosts`` (most senior first) to remove. ``ordered``: the cluster removes those with the
    highest numbers, like a StatefulSet. Else the dearest go first, then the most often struck, then those that are much
    slower than most, then the youngest.
    """
    if count <= 0:
        return ()
    if ordered:
        chosen = sorted(hosts, key=_ordinal, reverse=True)
    else:
        young = {host.name: number for number, host in enumerate(hosts)}
        usual = median([host.step_s for host in hosts if host.step_s] or [0.0])

        def slow(host: HostFacts) -> float:
            return host.step_s if host.step_s is not None and host.step_s > SLOW * usual else 0.0

        chosen = sorted(
            hosts,
            key=lambda host: (host.price or 0.0, host.strikes, slow(host), young[host.name]),
            reverse=True,
        )
    return tuple(host.name for host in chosen[:count])


def _ordinal(host: HostFacts) -> tuple[int, str]:
    """Return the number at the end of the first label. A name without one is removed last."""
    found = _ORDINAL.match(host.name.partition(".")[0])
    return (int(found[2]), host.name) if found else (-1, host.name)

"""The hosts of a trace that a job with ``--autoscale`` gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.scaling.policies import parse
from hvd_elastic_ext.simulate.traces.rows import Row

KNOWN: Final = ("iteration", "price")
"""Signals that exist in a simulation."""


@dataclass(slots=True)
class Supply:
    """The supply. ``wanted``: number of requested hosts. ``there``: all hosts of the cluster in order of arrival, with
    their newest rows. ``given``: the hosts of the job, and those about to join."""

    wanted: int
    there: dict[str, Row] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """All requested numbers."""

    def asked(self, hosts: int, leaving: Sequence[str]) -> list[str]:
        """Set the requested number and release hosts. Return the hosts that the job loses."""
        self.wanted = hosts
        self.sizes.append(hosts)
        last_first = [*leaving, *(host for host in reversed(self.given) if host not in leaving)]
        taken = [host for host in last_first if host in self.given][: max(0, len(self.given) - hosts)]
        for host in taken:
            self.given.remove(host)
        return taken

    def gone(self, host: str) -> None:
        """Remove a host from the cluster."""
        self.there.pop(host, None)
        if host in self.given:
            self.given.remove(host)

    def more(self) -> list[str]:
        """Return new hosts for the missing ones, the cheapest first."""
        free = [host for host in self.there if host not in self.given]
        free.sort(key=lambda host: self.there[host].price or 0.0)
        new = free[: max(0, self.wanted - len(self.given))]
        self.given += new
        return new


def first_hosts(rows: Sequence[Row], slots: int) -> int:
    """Return how many of the first hosts provide so many slots."""
    count = 0
    for row in rows:
        if slots <= 0:
            break
        if row.event == "up":
            slots, count = slots - row.slots, count + 1
    return max(1, count)


def check(policy: str) -> None:
    """Raise :class:`UsageError` for an invalid policy, or for one that uses a signal that no simulation has."""
    unknown = [signal for signal in parse(policy).signals if signal not in KNOWN]
    if unknown:
        raise UsageError(
            f"--autoscale {policy!r}: a simulation does not know {unknown[0]}, only {', '.join(KNOWN)}; "
            "try efficiency, deadline or cost"
        )

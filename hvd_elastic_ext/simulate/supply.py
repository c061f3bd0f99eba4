"""Which hosts of a trace a job has that asks for a number of them (``--autoscale``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.autoscale.policies import parse
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces.rows import Row

KNOWN: Final = ("iteration", "price")
"""Signals that a simulation knows."""


@dataclass(slots=True)
class Supply:
    """``wanted``: how many hosts the job has asked for. ``there``: all that the cluster has, in the order in which they
    came, with their newest rows; ``given``: those that it has, or that come."""

    wanted: int
    there: dict[str, Row] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """All numbers that were asked for."""

    def asked(self, hosts: int, leaving: Sequence[str]) -> list[str]:
        """The job asks for so many hosts and lets some go. Returns those that are taken from it."""
        self.wanted = hosts
        self.sizes.append(hosts)
        last_first = [*leaving, *(host for host in reversed(self.given) if host not in leaving)]
        taken = [host for host in last_first if host in self.given][: max(0, len(self.given) - hosts)]
        for host in taken:
            self.given.remove(host)
        return taken

    def gone(self, host: str) -> None:
        """The cluster has it no more."""
        self.there.pop(host, None)
        if host in self.given:
            self.given.remove(host)

    def more(self) -> list[str]:
        """Hosts that come now, for those that are missing: the cheapest ones."""
        free = [host for host in self.there if host not in self.given]
        free.sort(key=lambda host: self.there[host].price or 0.0)
        new = free[: max(0, self.wanted - len(self.given))]
        self.given += new
        return new


def first_hosts(rows: Sequence[Row], slots: int) -> int:
    """How many of the first hosts have so many slots."""
    count = 0
    for row in rows:
        if slots <= 0:
            break
        if row.event == "up":
            slots, count = slots - row.slots, count + 1
    return max(1, count)


def check(policy: str) -> None:
    """Raises :class:`UsageError` for a policy that is none, or that goes by what no simulation knows."""
    unknown = [signal for signal in parse(policy).signals if signal not in KNOWN]
    if unknown:
        raise UsageError(
            f"--autoscale {policy!r}: a simulation does not know {unknown[0]}, only {', '.join(KNOWN)}; "
            "try efficiency, deadline or cost"
        )

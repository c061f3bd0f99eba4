"""How long too few processes are borne: until ``--elastic-timeout`` is over, or not at all."""

from __future__ import annotations

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.rules.membership.membership import Decision
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.worlds import Worlds


class Patience:
    """Asked at every look at which there is nobody to form another world with."""

    def __init__(self, station: Station, fleet: Fleet, worlds: Worlds) -> None:
        self._station = station
        self._fleet = fleet
        self._worlds = worlds
        self._since: float | None = station.now()

    def enough(self) -> None:
        """A world forms, or stands."""
        self._since = None

    def short(self, decision: Decision, wanted: tuple[Seat, ...]) -> str | None:
        """Why nobody trains and nobody can: too few slots may work. None if that is not so."""
        if self._worlds.standing:
            return None
        limits, begun = self._station.rules.limits, self._worlds.begun
        free = len(self._fleet.awake(wanted))
        if limits.size(free, begun=begun):
            return None
        need = f"slots needed to go on: {limits.least}" if begun else f"slots needed: {limits.start}"
        return f"{need}, usable: {free} ({self._names}): {decision.reason}"

    def lost(self, decision: Decision, wanted: tuple[Seat, ...]) -> JobFailed | None:
        """Why the job is over, if it is: nothing is left to wait for, or it was waited for long enough."""
        if self._worlds.standing:
            self.enough()
            return None
        now, rules = self._station.now(), self._station.rules
        self._since = now if self._since is None else self._since
        limits, begun = rules.limits, self._worlds.begun
        free = len(self._fleet.awake(wanted))
        # What only has to be started again is no loss: that is what a commit is kept for.
        if begun and rules.below_min == "fail" and not limits.size(free, begun=True):
            there = f"slots needed to go on: {limits.least}, usable: {free}"
            return JobFailed(f"{there} ({self._names}); --below-min is fail: {decision.reason}")
        if now - self._since < rules.elastic_timeout_s:
            return None
        need = limits.least if begun else limits.start
        there = f"slots needed: {need}, published: {self._fleet.hosts.slots} ({self._names})"
        return JobFailed(f"{there} after {rules.elastic_timeout_s:g} s, --elastic-timeout: {decision.reason}")

    @property
    def _names(self) -> str:
        return ", ".join(self._fleet.hosts.names) or "no host"

"""Hosts that another launcher of this job had: they are waited for, and what they train goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.planners.health.link_loss import RETURN_S
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Agent
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""How long it is waited until a start that failed is tried again, on a host that may train with those that are back."""


class TakingBack:
    """See the module's docstring. ``changed`` is called when something is new that should outlive the launcher."""

    def __init__(self, station: Station, worlds: Worlds, *, changed: Callable[[], None]) -> None:
        self.missing: dict[str, Host] = {}
        """Hosts that may train for this job, and were not heard since it has this launcher."""
        self._failed: dict[str, float] = {}
        """When the last start of an agent on one of them has failed (mono)."""
        self._handed_over: dict[str, float] = {}
        """When the last start on one of them has found an agent there, which is to come by itself (mono)."""
        self._station = station
        self._worlds = worlds
        self._changed = changed
        self._begun = station.now()
        self._until: float | None = None

    def expect(self, hosts: Iterable[Host], *, until: float) -> None:
        """Another launcher had agents on these hosts; they are waited for until ``until`` (mono) at most."""
        self._begun, self._until = self._station.now(), until
        for host in hosts:
            self.missing[host.name] = host
            self._call(host)

    def waits(self, now: float) -> bool:
        """Whether nothing may be decided yet. When that is over, training goes on with those who are back."""
        if self._until is None:
            return False
        if self.missing and not self._waited_enough(now, self._until):
            return True
        self._until = None
        if self.missing:
            log.warning("not back: %s", ", ".join(self.missing))
        self._worlds.take_over()
        self._changed()
        return False

    def _waited_enough(self, now: float, until: float) -> bool:
        # Whoever waits for a world is not kept waiting for long; those who train lack nothing.
        hurry = bool(self._station.rendezvous.waiting) and now - self._begun >= self._station.rules.heartbeat_timeout_s
        return now >= until or hurry or not self.on_their_way(now)

    def on_their_way(self, now: float) -> bool:
        """Whether missing hosts may still come, on their own or because an agent is being started there."""
        return bool(self.missing) and (now - self._begun < RETURN_S or not self._failed.keys() >= self.missing.keys())

    def tend(self, now: float) -> None:
        """Look for those who train with others that are back, as long as that world stands."""
        if not self.missing or self._until is not None:
            return
        if self._worlds.inherited:
            for name, host in self.missing.items():
                agent = self._station.roster.agents.get(name)
                if agent is not None:
                    agent.since = now  # it may take its time: nobody waits for it
                ended = self._failed.get(name, self._handed_over.get(name, now))
                if agent is not None and now - ended >= RETRY_S:
                    self._call(host)
            return
        for name in self.missing:
            self._treat_as_new(name, now)
        if self._worlds.members:  # whoever trained with them has gone on without them
            self.missing.clear()
        self._failed.clear()

    def _treat_as_new(self, name: str, now: float) -> None:
        agent = self._station.roster.agents.get(name)
        if agent is None or agent.heard:
            return
        agent.since = now
        if name in self._failed:
            del self._station.roster.agents[name]

    def came(self, host: str) -> None:
        """An agent has joined. Whoever comes late is of the world that was taken over, if it stands."""
        self._failed.pop(host, None)
        self._handed_over.pop(host, None)
        if self.missing.pop(host, None) is not None and self._until is None:
            self._worlds.take_over()

    def failed(self, host: str, why: str) -> bool:
        """Take note that no agent could be started. False if that host is none of those looked for."""
        if host not in self.missing or (self._until is None and not self._worlds.inherited):
            return False
        log.warning("what may run on %s cannot be reached: %s", host, why)
        self._failed[host] = self._station.now()
        return True

    def handed_over(self, host: str) -> None:
        """The start of an agent found one that lives. It comes, unless it ends before it has."""
        if host in self.missing:
            self._handed_over[host] = self._station.now()

    def _call(self, host: Host) -> None:
        self._failed.pop(host.name, None)
        self._handed_over.pop(host.name, None)
        self._station.roster.agents[host.name] = Agent(host, self._station.now())
        self._station.hands.start_agent(host)

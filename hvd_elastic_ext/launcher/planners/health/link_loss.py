"""Whether it is the launcher that has lost its link. Then nobody is cut off for a while, and nothing is decided.

A silent host is cut off so that the others of its world can go on. Where
nothing is heard of any of them there is nobody to go on, and most likely all
of them train: what is broken then is this machine's own way to them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Agent
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

RETURN_S: Final = 7.0
"""How long agents may take to come back once they can: they try every 5 s."""


def alone(now: float, heard: Sequence[float], *, limit_s: float, grace_s: float) -> bool:
    """Whether hosts are silent and nobody is there for whose sake they would be cut off. Pure.

    ``heard``: when each host of the world last spoke. Hosts speak three times
    in ``limit_s`` at least: one that has not for half of it is about to be silent, too. When even the
    last word is older than ``grace_s``, those hosts are taken to be gone.
    """
    if not heard or now - min(heard) <= limit_s:
        return False
    return limit_s / 2 < now - max(heard) <= max(limit_s, grace_s)


class Isolation:
    """See the module's docstring. To be asked at every look."""

    def __init__(self, station: Station, worlds: Worlds) -> None:
        self._station = station
        self._worlds = worlds
        self._since: float | None = None
        self._back_by: float | None = None

    def look(self, now: float) -> bool:
        """Whether hosts may be silent for now, and all else has to wait."""
        rules = self._station.rules
        latest = now - rules.heartbeat_timeout_s
        if self._since is None and not any(0 < each.heard < latest for each in self._station.roster.agents.values()):
            return False
        agents = self._agents()
        if self._since is None:
            heard = [agent.heard for agent in agents]
            if not alone(now, heard, limit_s=rules.heartbeat_timeout_s, grace_s=rules.orphan_grace_s):
                return False
            self._begin(now, agents)
            return True
        if self._waits(now, agents):
            return True
        self._since = self._back_by = None
        return False

    def _agents(self) -> list[Agent]:
        roster = self._station.roster
        members = roster.present(self._worlds.members)
        # Newcomers have nothing to go on with.
        those = [worker for worker in members if worker.generation] or members
        hosts = [*(worker.seat.host for worker in those), *(life.seat.host for life in self._worlds.excused)]
        found = map(roster.agents.get, dict.fromkeys(hosts))
        return [agent for agent in found if agent is not None and agent.heard]

    def _begin(self, now: float, agents: Sequence[Agent]) -> None:
        self._since = now
        silent_s = now - max(agent.heard for agent in agents)
        names = [agent.host.name for agent in agents]
        reason = f"nothing was heard of any host of the world for {silent_s:.1f} s: is this machine's link down?"
        log.warning("%s Nobody is cut off for now", reason)
        self._station.record("isolated", hosts=names, reason=reason)

    def _waits(self, now: float, agents: Sequence[Agent]) -> bool:
        assert self._since is not None
        rules = self._station.rules
        back = sum(agent.heard > self._since for agent in agents)
        if not back:
            heard = [agent.heard for agent in agents]
            return alone(now, heard, limit_s=rules.heartbeat_timeout_s, grace_s=rules.orphan_grace_s)
        if self._back_by is None:
            log.warning("hosts are heard again")
            self._back_by = now + max(rules.heartbeat_timeout_s, RETURN_S)
        return back < len(agents) and now < self._back_by

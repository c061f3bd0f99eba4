"""The end of a job: what runs is told to end, also where no agent listens any more or does not listen yet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.planners.membership.adoption import TakingBack
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0
"""How long the end of everything is waited for."""
LAST_S: Final = 30.0
LAST_EACH_S: Final = 1.0
"""How long, after that, hosts without a connection may take to end what they run, and what each of them adds."""


class Farewell:
    """See the module's docstring. To be asked at every look from the moment that the job is to end."""

    def __init__(self, station: Station, fleet: Fleet, worlds: Worlds, back: TakingBack) -> None:
        self.untold: dict[str, Host] = {}
        """Hosts that could not be told to end: what runs there may do so for ever."""
        self._station = station
        self._fleet = fleet
        self._worlds = worlds
        self._back = back
        self._running: dict[str, Host] = {}
        """Hosts with processes that were not seen to end."""
        self._ends_by: float | None = None
        self._gone_by: float | None = None
        self._asked: set[str] = set()
        """Hosts that are told without a connection."""
        self._pending: set[str] = set()
        """Those of them that have not answered."""
        self._hurried = False

    def look(self, now: float, *, everything: bool, needs_agents: Callable[[float], bool]) -> bool:
        """End what runs: everything if the job was told to end, else all but the world whose training is done.

        Then ``needs_agents`` is asked whether agents have to stay for something when all processes have ended.
        True when it is over.
        """
        self._worlds.accounts.close()
        if not everything:
            self._worlds.finish()
        waited_for = self._end_processes(everything=everything)
        if everything or not waited_for:
            self._ends_by = self._ends_by or now + PATIENCE_S
        late = self._ends_by is not None and now >= self._ends_by
        if late or not self._station.roster.workers:
            if not everything and self._gone_by is None and needs_agents(now):
                self._ends_by = now + PATIENCE_S
                return False
            self._dismiss(late=late)
        if self._gone_by is None and (late or self._nobody_left(now)):
            if late:
                log.warning("not waited for any longer: %s", ", ".join(self._station.roster.agents) or "processes")
            self._tell_the_others(now)
        return self._gone_by is not None and self._is_over(now, self._gone_by)

    def hurry(self) -> None:
        """Wait for nobody who has not come; told again, for nobody at all."""
        self._hurried = True
        if self._gone_by is not None:
            self._gone_by = self._station.now()

    def answered(self, host: str, *, well: bool, why: str) -> None:
        """How it went to end what a host runs without a connection."""
        self._pending.discard(host)
        if well:
            self.untold.pop(host, None)
        elif host in self.untold:
            log.warning("%s could not be told to end: %s", host, why)

    def came(self, host: str) -> None:
        """An agent has joined after all."""
        self._pending.discard(host)
        self.untold.pop(host, None)

    def _end_processes(self, *, everything: bool) -> bool:
        """Whether there are some that may go on for as long as they like."""
        roster, members = self._station.roster, set(self._worlds.members)
        for worker in roster.workers.values():
            if everything or not (worker.done or worker.life in members):
                self._fleet.end(worker)
        busy = {worker.seat.host: worker.host for worker in roster.workers.values()}
        self._running = busy | {name: host for name, host in self._running.items() if name not in roster.agents}
        return any(worker.killed is None and worker.leaving is None for worker in roster.workers.values())

    def _dismiss(self, *, late: bool) -> None:
        for name, agent in list(self._station.roster.agents.items()):
            if late or name not in self._back.missing:
                self._fleet.dismiss(agent)

    def _nobody_left(self, now: float) -> bool:
        roster, missing = self._station.roster, self._back.missing
        if roster.workers or not roster.agents.keys() <= missing.keys():
            return False
        return self._hurried or not self._back.on_their_way(now)

    def _tell_the_others(self, now: float) -> None:
        """Have what runs on hosts without a connection ended in the way in which agents are started."""
        agents, hands = self._station.roster.agents, self._station.hands
        deaf = {name: host for name, host in self._running.items() if not self._hears(name, now)}
        self.untold = {**self._back.missing, **deaf}
        self._asked, self._pending = set(self.untold), set(self.untold)
        self._gone_by = now + LAST_S + LAST_EACH_S * len(self.untold)
        for name, host in list(self.untold.items()):
            agents.pop(name, None)
            hands.stop_launch(name)
            hands.end_agent(host)

    def _hears(self, host: str, now: float) -> bool:
        """Whether orders arrive. A connection may be lost without anybody knowing."""
        agent = self._station.roster.agents.get(host)
        silent_s = self._station.rules.heartbeat_timeout_s
        return agent is not None and agent.joined and now - agent.heard <= silent_s

    def _is_over(self, now: float, gone_by: float) -> bool:
        if now < gone_by and (self._pending or self._asked & self._station.roster.agents.keys()):
            return False
        if self.untold:
            names = ", ".join(self.untold)
            log.error("not told to end, and may train on: %s; when reachable, start this job again and stop it", names)
        return True

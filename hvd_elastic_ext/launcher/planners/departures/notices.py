"""Who is about to go, by the list of hosts or by its agent's own word; and what else agents say of themselves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.launcher.rules.health.causes import announced
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.roster import Agent, seconds

log = logging.getLogger(__name__)


class Notices:
    """Takes in what agents say of themselves.

    An agent that was sent a signal starts nothing any more, and ends when its
    processes have, or its grace is over. One whose notice file or cloud says that
    the host is about to go stays, and is given no work until that is taken back.
    Both are departures, and nobody's fault.
    """

    def __init__(self, station: Station, fleet: Fleet) -> None:
        self._station, self._fleet = station, fleet
        self._listed: frozenset[str] = frozenset()
        self._deaf_to: set[str] = set()
        """Clouds of which was said that a host cannot ask them."""

    def published(self, departing: Mapping[str, tuple[str, float | None]]) -> None:
        """What the newest list says: by host, why it goes, and when (mono) if that is known."""
        for name, (reason, deadline) in departing.items():
            if name not in self._listed:
                self._station.record("notice", host=name, reason=reason, deadline=deadline)
        for name in self._listed.difference(departing).intersection(self._fleet.hosts.names):
            self._station.record("notice_over", host=name, reason="it is listed as a host again")
        self._listed = frozenset(departing)
        # What was said of a host that is listed no more holds, though the list does not repeat it.
        station, hosts = self._station, self._fleet.hosts
        kept = {n: by for n, by in station.departing.items() if n in station.roster.agents and n not in hosts}
        station.departing = kept | {name: math.inf if by is None else by for name, (_, by) in departing.items()}
        self._station.announced = {name: announced(reason) for name, (reason, _) in departing.items()}

    def joined(self, host: str, hello: Mapping[str, Any]) -> None:
        """An agent that comes back says once more what it was sent."""
        agent = self._station.roster.agents.get(host)
        for word, take in (("going", Notices._going), ("notice", Notices._give_notice)):
            said = hello.get(word)
            if agent is not None and isinstance(said, dict):
                take(self, agent, said)

    def take(self, agent: Agent, news: Mapping[str, Any]) -> bool:
        """Take in news of an agent; False if they are of a process, or of nobody."""
        handler = _OF_AGENTS.get(str(news.get("event")))
        if handler is not None:
            handler(self, agent, news)
        return handler is not None

    def staying(self, usable: Iterable[tuple[str, Sequence[int]]]) -> list[tuple[str, Sequence[int]]]:
        """Hosts, each with its slots that may work, without those whose agent starts nothing any more."""
        going = self._station.roster.going()
        return [(name, slots) for name, slots in usable if name not in going]

    def _give_notice(self, agent: Agent, notice: Mapping[str, Any]) -> None:
        if agent.finishing and agent.leaves_by is not None:
            return  # news may come twice
        station, host, grace_s = self._station, agent.host, _seconds(notice.get("grace_s"))
        reason = f"its agent was sent {notice.get('reason')}"
        agent.finishing, agent.leaves_by = True, station.now() + grace_s
        station.record("notice", host=host.name, reason=reason, deadline=agent.leaves_by)
        log.warning("%s: %s, and ends within %g s; it is given no work meanwhile", host.name, reason, grace_s)
        for slot in range(host.slots):  # whoever sent it away may well do so with the next one
            self._fleet.rest(Seat(host.name, slot))

    def _going(self, agent: Agent, news: Mapping[str, Any]) -> None:
        station, host, in_s = self._station, agent.host.name, news.get("in_s")
        if agent.finishing:
            return  # it leaves at once
        reason, known = str(news.get("reason")), agent.going
        agent.going, agent.leaves_by = reason, math.inf if in_s is None else station.now() + _seconds(in_s)
        if reason != known:  # news may come twice
            deadline = None if in_s is None else agent.leaves_by
            station.record("notice", host=host, reason=reason, deadline=deadline)
            ends = "" if in_s is None else f", within {_seconds(in_s):.0f} s"
            log.warning("%s is about to go%s: %s; it is given no work meanwhile", host, ends, reason)

    def _staying(self, agent: Agent, _: Mapping[str, Any]) -> None:
        if agent.going is not None and not agent.finishing:
            agent.going = agent.leaves_by = None
            self._station.record("notice_over", host=agent.host.name, reason="what said so says it no more")
            log.info("%s is not about to go any more", agent.host.name)

    def _advised(self, agent: Agent, news: Mapping[str, Any]) -> None:
        """It may go, or not soon: nothing follows from that."""
        self._station.record("advised", host=agent.host.name, reason=news.get("reason"))

    def _deaf(self, agent: Agent, news: Mapping[str, Any]) -> None:
        source, problem = str(news.get("source")), news.get("reason")
        self._station.record("deaf", host=agent.host.name, source=source, reason=problem)
        if problem is not None and source not in self._deaf_to:  # or else each of a thousand hosts says so
            self._deaf_to.add(source)
            said = "its cloud does not tell whether it is taken back (--notices-from)"
            log.warning("%s: %s: %s; it is asked again. Of others the journal tells", agent.host.name, said, problem)

    def _refused(self, agent: Agent, news: Mapping[str, Any]) -> None:
        self._fleet.refused(agent.host.name, news.get("slot"), str(news.get("reason")))

    def _left(self, agent: Agent, news: Mapping[str, Any]) -> None:
        where, pids = f"{agent.host.name}[{news.get('slot')}]", news.get("pids")
        named = ", ".join(map(str, pids)) if isinstance(pids, list) else pids
        log.warning("%s: processes %s cannot be killed: another user's, or stuck in the kernel", where, named)

    def _dropped(self, agent: Agent, news: Mapping[str, Any]) -> None:
        if isinstance(slot := news.get("slot"), int):
            said = f"{news.get('records')} journal entries and {news.get('messages')} other messages of slot {slot}"
            why = "it says more than is passed on"
        else:
            said = f"{news.get('output')} bytes of output and {news.get('news')} other news"
            why = "there was no room for them without a launcher"
        log.warning("%s has dropped %s: %s", agent.host.name, said, why)


def _seconds(value: Any) -> float:
    """What an agent gave as a time, or 0."""
    return max(0.0, seconds(value) or 0.0)


_OF_AGENTS: Final[Mapping[str, Callable[[Notices, Agent, Mapping[str, Any]], None]]] = {
    "notice": Notices._give_notice,
    "going": Notices._going,
    "staying": Notices._staying,
    "advised": Notices._advised,
    "deaf": Notices._deaf,
    "refused": Notices._refused,
    "left": Notices._left,
    "dropped": Notices._dropped,
}

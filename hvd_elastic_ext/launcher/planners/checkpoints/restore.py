"""A job begins where its newest checkpoint ends: before the first world each host gets it into its commit memory.

Its processes then find what they take for the commit of the process before them,
and all that follows (who holds the newest, who sends it to whom) is as after any restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.planners.checkpoints.coordinator import Sealing
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import last_words
from hvd_elastic_ext.launcher.rules.checkpoints.finished import Finished
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Durability
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.commit_holders import read
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.roster import Agent
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""Pause after a host could not read its storage."""
EMPTY_S: Final = 0.5
"""How often a host is looked at whose processes are to end before it loads."""


@dataclass(slots=True)
class Loading:
    """Of one host, into the memory that ``agent`` owns: another agent's is empty.

    ``number``: of the errand it is on, for ``slots``; ``again_at``: when it is sent on another (mono); ``seats``: those
    whose memory has the checkpoint.
    """

    agent: str
    number: int | None = None
    ready: bool = False
    again_at: float | None = None
    for_good: bool = False
    slots: list[int] = field(default_factory=list)
    seats: frozenset[Seat] = frozenset()

    @property
    def under_way(self) -> bool:
        """Whether somebody may be writing to the memory."""
        return self.number is not None and not self.ready


class Resuming:
    """See the module's docstring. Without ``how`` every host is ready at once."""

    def __init__(
        self,
        station: Station,
        worlds: Worlds,
        sealing: Sealing,
        how: Durability | None,
        *,
        fleet: Fleet,
        expects: str | None = None,
    ) -> None:
        self._station = station
        self._worlds = worlds
        self._sealing = sealing
        self._how = how
        self._fleet = fleet
        self._hosts: dict[str, Loading] = {}
        self._why: str | None = None
        """Why the last host that tried could not read its storage."""
        self._expects = expects if how is not None else None
        """A checkpoint that is known to have been made: somebody has it, or will."""
        self._path: str | None = None
        """The checkpoint that a host has loaded."""
        self.done: Finished | None = None
        """The newest checkpoint that a host has is the end of this very job: nothing is to be trained."""
        self.failure: JobFailed | None = None
        """Checkpoints are there, or may be, and none can be read: training does not begin anew over them."""

    def ready(self, host: str) -> bool:
        """Whether processes may be started on a host: those of a job that has begun get their state from others."""
        loading = self._of(host)
        if self._how is None or (self._worlds.begun and loading is None):
            return True
        return loading is not None and (loading.ready or (self._worlds.begun and not loading.under_way))

    def look(self, now: float, wanted: tuple[Seat, ...]) -> None:
        """Have the newest checkpoint loaded wherever processes are about to be started for the first world."""
        if self._how is None:
            return
        if self._worlds.begun:
            self._abandon()
            return
        ranks: dict[str, dict[str, int]] = {}
        for rank, seat in enumerate(wanted):
            ranks.setdefault(seat.host, {})[str(seat.slot)] = rank
        self._see_lost(wanted)
        for host, slots in ranks.items():
            agent, loading = self._station.roster.agents.get(host), self._of(host)
            if agent is None or not agent.joined or agent.finishing or host in self._station.transferring:
                continue
            if loading is None and (found := self._station.roster.on(host)):
                if all(worker.stage is not Stage.LIVE for worker in found):
                    self._hosts[host] = Loading(agent.itself, ready=True)  # found at work: it has what it needs
                # Else they are of a world that is gone: they are sent away, and what they leave may be old.
            elif loading is None or (loading.again_at is not None and now >= loading.again_at):
                self._load(agent, slots, now)
        self._see_failure(set(ranks))

    def held_back(self, decision: Decision, wanted: tuple[Seat, ...]) -> Decision:
        """Have a first world wait for somebody who holds the checkpoint, if there is one, or may be."""
        members = decision.members
        if members is None or self._how is None or self._worlds.begun:
            return decision
        holding = self._holding()
        if not holding.isdisjoint(life.seat for life in members):
            return decision
        if self._path is not None:
            return Decision(None, "", f"nobody who is ready holds {self._path}")
        hosts = {seat.host: self._of(seat.host) for seat in wanted}
        if self._expects is not None:
            return Decision(None, "", f"none of the hosts that are ready has {self._expects}, or any checkpoint")
        late = sorted(host for host, loading in hosts.items() if loading is not None and not loading.ready)
        return Decision(None, "", f"{', '.join(late)} may hold a checkpoint, and is not ready") if late else decision

    def next_look(self) -> float | None:
        """When a host is to try again (mono)."""
        now = self._station.now()  # who cannot try when it could does not hurry anybody
        times = [at for each in self._hosts.values() if (at := each.again_at) is not None and at > now]
        return None if self._worlds.begun else min(times, default=None)

    def explained(self, lost: JobFailed | None) -> JobFailed | None:
        """Say of a job that waited in vain for its first world what it waited for."""
        why = self._why
        if why is None and self._expects is not None and self._path is None:
            remedy = "bring one back that has, or name another --checkpoint-dir to begin anew"
            why = f"{self._expects} was made, and no host that came has it; {remedy}"
        if lost is None or why is None or self._worlds.begun:
            return lost
        return JobFailed(f"{why} (for --elastic-timeout {self._station.rules.elastic_timeout_s:g} s)")

    def _of(self, host: str) -> Loading | None:
        """How far a host is, by the agent that is there."""
        loading, agent = self._hosts.get(host), self._station.roster.agents.get(host)
        return loading if loading is not None and agent is not None and agent.itself == loading.agent else None

    def _holding(self) -> frozenset[Seat]:
        """Seats whose process finds the checkpoint."""
        found = [self._of(host) for host in self._hosts]
        return frozenset(seat for loading in found if loading is not None for seat in loading.seats)

    def _see_lost(self, wanted: tuple[Seat, ...]) -> None:
        """All that had loaded the checkpoint is gone, or not used: others load it, when their processes have ended."""
        hosts = {seat.host: self._of(seat.host) for seat in wanted}
        under_way = any(loading is not None and loading.under_way for loading in hosts.values())
        if self._path is None or under_way or not self._holding().isdisjoint(wanted):
            return
        for host, loading in hosts.items():
            if loading is None or not loading.ready:
                continue
            loading.ready, loading.again_at = False, self._station.now()
            for worker in self._station.roster.on(host):
                if worker.leaving is None:
                    self._fleet.send_away(worker, "its host is to load the checkpoint first")

    def _see_failure(self, hosts: set[str]) -> None:
        """End the job if nobody has the checkpoint, or may still get it."""
        known = [self._of(host) for host in hosts]
        told = [loading for loading in known if loading is not None and not loading.under_way]
        if len(told) == len(known) and any(loading.for_good for loading in told) and not self._holding():
            self.failure = JobFailed(self._why or "no checkpoint can be loaded")

    def _abandon(self) -> None:
        """Training has begun: who still loads gets its state from others, in memory that nobody else writes to."""
        for host in list(self._hosts):
            loading = self._of(host)
            if loading is not None and loading.under_way:
                if not self._station.hands.send(host, {"do": "drop", "slots": loading.slots}):
                    continue  # nothing is started there before it has heard that
                commits = self._station.roster.commits
                for slot in loading.slots:
                    if commits.commit_of(Seat(host, slot)) is None:  # what it holds, a load that was ended has left
                        self._station.hands.send(host, {"do": "forget", "slot": slot})
            del self._hosts[host]

    def _load(self, agent: Agent, slots: Mapping[str, int], now: float) -> None:
        assert self._how is not None
        number, host = self._station.new_errand(), agent.host.name
        if self._station.roster.on(host):
            self._hosts[host].again_at = now + EMPTY_S
            return
        done = None if self._how.train_on else self._how.mark
        request = {"do": "load", "place": self._how.place, "ranks": slots, "done": done}
        numbers = [int(slot) for slot in slots]
        order = {"do": "errand", "id": number, "slots": numbers, "request": request}
        if self._station.hands.send(host, order):
            self._hosts[host] = Loading(agent.itself, number, slots=numbers)

    def lost(self, host: str) -> None:
        """A connection was lost, and with it perhaps an answer."""
        loading = self._hosts.get(host)
        if loading is not None and not loading.ready:
            loading.again_at = self._station.now()

    def is_busy(self, host: str) -> bool:
        """Whether a host's agent loads the checkpoint."""
        loading = self._of(host)
        return loading is not None and loading.under_way

    def take(self, agent: Agent, news: Mapping[str, Any]) -> bool:
        """Take in what an agent says of its errand; False if it is about something else."""
        host, event = agent.host.name, news.get("event")
        loading = self._hosts.get(host)
        if event not in ("errand", "errand_ended") or loading is None or loading.number != news.get("id"):
            return False
        if loading.ready or loading.again_at is not None:
            return True
        answer = news.get("answer")
        if event == "errand_ended":
            self._failed(host, loading, last_words(news))
        elif isinstance(answer, dict) and isinstance(why := answer.get("failed"), str):
            self._failed(host, loading, why, for_good=answer.get("for_good") is True)
        elif isinstance(answer, dict):
            loading.ready = True
            self._loaded(agent, loading, answer)
        return True

    def _loaded(self, agent: Agent, loading: Loading, answer: Mapping[str, Any]) -> None:
        host, held = agent.host.name, read(answer.get("held"))
        step, path, generation = answer.get("step"), answer.get("path"), answer.get("generation")
        for passed in answer.get("passed_over") or ():
            log.warning("%s: a checkpoint is passed over: %s", host, passed)
            self._station.record("passed_over", host=host, reason=str(passed))
        if not isinstance(path, str) or not isinstance(step, int):
            return  # there is none here: training begins at the beginning, unless another host has one
        if answer.get("done") is True:
            self.done = self.done or Finished(path, step)
            return
        filled = answer.get("slots")
        loading.seats = frozenset(Seat(host, slot) for slot in (filled if isinstance(filled, list) else loading.slots))
        self._why = None
        loaded = read([*(answer.get("commit") or ()), step])
        commits = self._station.roster.commits
        first_slot = Seat(host, filled[0]) if isinstance(filled, list) and filled else None
        for seat in loading.seats:
            has = held if seat == first_slot and held is not None else loaded
            if has is not None and ((known := commits.commit_of(seat)) is None or known < has[0]):
                commits.told(seat, *has, agent=agent.itself)
        if isinstance(generation, int):
            self._station.generation = max(self._station.generation, generation)
        self._sealing.is_read_by(host)
        first, self._path = self._path is None, path
        if first:
            facts = answer.get("facts")
            self._sealing.began_with(path, step, facts if isinstance(facts, dict) else {}, loaded and loaded[0])
            log.warning("training goes on after step %d, with the checkpoint %s", step, path)
            self._station.record("resumed", path=path, step=step, host=host, reason=f"the newest checkpoint is {path}")

    def _failed(self, host: str, loading: Loading, why: str, *, for_good: bool = False) -> None:
        now = self._station.now()
        loading.number, loading.again_at, loading.for_good = None, now + AGAIN_S, for_good
        log.warning("%s cannot load a checkpoint: %s", host, why)
        self._station.record("not_resumed", host=host, reason=why)
        if self._holding():
            loading.ready, loading.again_at = True, None  # it gets it from those that could
        else:
            self._why = f"{host} cannot load a checkpoint: {why}"

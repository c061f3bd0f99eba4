"""Watches over the processes of a world that beat: who stands still, and who is slower than the others for long."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.stalls import Member, Stall, absence, left_waiting, stall
from hvd_elastic_ext.launcher.rules.health.stragglers import SUSTAINED, Straggler, Watch, stragglers
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.state.blame import Faults
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.roster import Worker
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
GO_S: Final = 60.0
"""How long a newcomer that was told to go live may take to ask for its place: nothing lies between the two."""
MISSED_S: Final = 30.0
"""After how long it is said for whom the next world waits, where there is no ``--progress-timeout``."""
STILL_S: Final = 60.0
"""After how long it is said that a world stands still, where there is no ``--progress-timeout``."""
STEPS: Final = 3.0
"""That, or so many times the longest step that any rank has told of, if that is longer."""
FINISHED_S: Final = 15.0
"""After how long it is said that ranks wait for one whose training is over: nothing else can free them."""
COMPARE_S: Final = 5.0
"""How often step times are compared: that takes a while where there are thousands."""


class Laggards:
    """See the module's docstring. To be asked at every look; it has its own pace."""

    def __init__(self, station: Station, faults: Faults, fleet: Fleet, worlds: Worlds) -> None:
        self._station = station
        self._faults = faults
        self._fleet = fleet
        self._worlds = worlds
        self._looked_at = self._compared_at = station.now()
        self._moved: dict[Life, tuple[int, float]] = {}
        """What each process had counted, and when that was new."""
        self._times: dict[Life, deque[float]] = {}
        self._watch: Watch[Seat] = Watch()
        self._told: frozenset[Life] | None = None
        """Who holds the world up, as far as that was said; None while it gets on."""
        self._finished: dict[Life, Member] = {}
        """Members of the newest world whose training is over, whether they live or not."""
        self._of = station.generation

    def pause(self) -> None:
        """Nothing can be seen of anybody for now: what was seen before says nothing later."""
        self._moved.clear()

    def look(self, now: float) -> None:
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if not self._worlds.formed:
            self._see_who_is_missing(now)
            return
        if self._see_left_waiting(now):
            return
        if not self._worlds.settled:  # what newcomers need may take long to send
            self._moved.clear()
            self._told = None
            return
        if not self._all_are_heard(now):
            self.pause()
            return
        members = self._members(now)
        limit = self._station.rules.progress_timeout_s
        if limit is not None:
            self._see_stall(stall(now, members, limit))
        else:
            self._see_stall(stall(now, members, self._still_s(), idle=False), restart=False)
        if now - self._compared_at >= COMPARE_S:
            self._compared_at = now
            self._compare()

    def look_at_the_end(self, now: float) -> None:
        """The same once training is over for some: of the others it counts only whether they wait for those."""
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._see_left_waiting(now)

    def ended(self, worker: Worker, *, well: bool) -> None:
        """A process has ended. One that did ``well`` may be waited for by others for ever."""
        place = self._station.rendezvous.place(worker.life)
        if well and place is not None and worker.life in self._worlds.members:
            self._renew()
            self._finished[worker.life] = Member(worker.life, place.rank, self._station.now())

    def _renew(self) -> None:
        if self._of != self._station.generation:
            self._of = self._station.generation
            self._finished.clear()

    def _still_s(self) -> float:
        """How long a world may stand still before that is said, by how long its steps take."""
        steps = [worker.step_s for worker in self._station.roster.present(self._worlds.members) if worker.step_s]
        return max(STILL_S, STEPS * max(steps, default=0.0))

    def _all_are_heard(self, now: float) -> bool:
        """Whether every host of the world has spoken lately: of one that is silent nothing can be said, for now."""
        lately = now - self._station.rules.heartbeat_timeout_s / 2
        agents = map(self._station.roster.agents.get, {life.seat.host for life in self._worlds.members})
        return all(agent is not None and agent.heard >= lately for agent in agents)

    def _members(self, now: float) -> list[Member]:
        found, moved, times = [], self._moved, self._times
        self._moved, self._times = {}, {}
        for life in self._worlds.members:
            worker, place = self._station.roster.alive(life), self._station.rendezvous.place(life)
            if worker is None or place is None or worker.killed is not None or worker.done:
                continue
            counted, since = moved.get(life, (worker.progress, now))
            entry = self._moved[life] = (worker.progress, since if counted == worker.progress else now)
            recent = self._times[life] = times.get(life, deque(maxlen=SUSTAINED))
            if worker.step_s is not None and (not recent or recent[-1] != worker.step_s):
                recent.append(worker.step_s)
            if worker.progress or worker.waiting:  # else nothing in it counts, and there is no telling
                found.append(Member(life, place.rank, entry[1], worker.waiting))
        return found

    # --- standing still

    def _see_left_waiting(self, now: float) -> bool:
        """Whether some members of the world are done while others are not; said if these only wait for them."""
        self._renew()
        for worker in self._station.roster.present(self._worlds.members):
            place = self._station.rendezvous.place(worker.life)
            if worker.done and place is not None:
                self._finished.setdefault(worker.life, Member(worker.life, place.rank, now))
            elif worker.life in self._finished:
                del self._finished[worker.life]  # a script may train more than once
        if not self._finished or not self._all_are_heard(now):
            return False
        limit = min(FINISHED_S, self._station.rules.progress_timeout_s or FINISHED_S)
        members, finished = self._members(now), sorted(self._finished.values(), key=lambda member: member.rank)
        self._see_stall(left_waiting(now, members, finished, limit), restart=False)
        return True

    def _see_who_is_missing(self, now: float) -> None:
        """Of those whom the next world waits for: a newcomer is not waited for long; others as for each other."""
        roster, waiting = self._station.roster, self._station.rendezvous.waiting
        moved, self._moved = self._moved, {}
        absent = []
        for life in self._worlds.members:
            worker = roster.alive(life)
            if worker is None or worker.killed is not None or life in waiting:
                continue
            counted, since = moved.get(life, (worker.progress, now))
            entry = self._moved[life] = (worker.progress, since if counted == worker.progress else now)
            absent.append(Member(life, -1, entry[1], worker.waiting))
            if not worker.generation and worker.live_at is not None and now - worker.live_at > GO_S:
                detail = f"{worker.seat} was told to go live and did not come"
                self._faults.strike(Cause.NEVER_READY, worker.host, worker.seat.slot, detail=detail)
                self._fleet.kill(worker, Cause.NEVER_READY)
        limit = self._station.rules.progress_timeout_s
        came = sum(life in waiting for life in self._worlds.members)
        found = absence(now, absent, MISSED_S if limit is None else limit, waiting=came)
        if found is not None:
            self._see_stall(found, restart=limit is not None)

    def _see_stall(self, found: Stall | None, *, restart: bool = True) -> None:
        if found is None:
            if self._told is not None:
                log.warning("training gets on again")
            self._told = None
            return
        lives = frozenset(member.life for member in found.lag)
        if lives == self._told:
            return
        self._told = lives
        log.warning("the world is stalled: %s", found.reason)
        self._station.record(
            "stalled",
            ranks=[member.rank for member in found.lag],
            hosts=[str(member.life.seat) for member in found.lag],
            waiting=found.waiting,
            since_s=round(found.since_s, 3),
            finished=[member.rank for member in found.finished],
            reason=found.reason,
        )
        for life in lives if restart and self._station.rules.restart_stalled else ():
            worker = self._station.roster.alive(life)
            if worker is not None:
                self._fleet.kill(worker, Cause.STALLED)

    # --- being slow

    def _compare(self) -> None:
        found = stragglers({life.seat: tuple(times) for life, times in self._times.items()})
        drain = self._station.rules.drain_stragglers and self._can_spare_one()
        self._watch, report, leave = self._watch.look(found, drain=drain)
        for straggler in found:
            if straggler in report or straggler.seat in leave:
                self._tell(straggler, drained=straggler.seat in leave)

    def _tell(self, straggler: Straggler[Seat], *, drained: bool) -> None:
        seat, worker = straggler.seat, self._station.roster.workers[straggler.seat]
        place = self._station.rendezvous.place(worker.life)
        rank = -1 if place is None else place.rank
        log.warning("straggler: rank %d, %s%s", rank, straggler.text, "; it is drained" if drained else "")
        self._station.record(
            "straggler",
            host=seat.host,
            slot=seat.slot,
            rank=rank,
            step_s=straggler.seconds,
            median_s=straggler.median,
            drained=drained,
            reason=straggler.text,
        )
        if drained:
            self._faults.drain(worker.host, seat.slot, reason=straggler.text)

    def _can_spare_one(self) -> bool:
        """Whether the world would lose no more than the straggler, or nothing, by its leaving."""
        limits = self._station.rules.limits
        there = sum(len(slots) for _, slots in self._faults.usable(self._fleet.hosts, forgive=False))
        after = limits.size(there - 1, begun=True)
        return after > 0 and after >= limits.size(there, begun=True) - 1

"""An engine whose processes keep their places: another world is other processes, which go on from the last commit.

Commits lie in the agents' memory, so they outlive the processes that made them. A change is: those that train leave at
one and the same step (or, where one of them was lost, are ended), the programs that stand by in all slots are called,
and the newest commit that any of them finds is what all go on with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.slot_protocol import START_AGAIN, TERMINATED
from hvd_elastic_ext.launcher.engines.world_change import Move, decide, members_in
from hvd_elastic_ext.launcher.rules.health.causes import SIGNALLED, SSH_FAILED, Cause, Ending
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Limits, Situation
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.state.blame import BUDGET_WINDOW_S
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.roster import Worker
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

TELL_AGAIN_S: Final = 5.0
"""Members that are to leave are told so again after this time: messages get lost."""
BEHIND_S: Final = 15.0
"""How long a member may take to leave once another has; then it is ended."""
STARTS_S: Final = 120.0
"""How long a process may take until it trains; one that has no elastic loop cannot say that it does."""
NOTICE_S: Final = 5.0
"""How long members with an elastic loop may take to notice that a peer is lost, and to say what they roll back."""


@dataclass(slots=True)
class Change:
    """One change on its way. ``since``, ``told_at`` and ``first_gone_at`` are times (mono)."""

    move: Move
    cause: str
    reason: str
    since: float
    told_at: float | None = None
    first_gone_at: float | None = None


class Restarting:
    """See the module's docstring."""

    def __init__(self, station: Station, fleet: Fleet, worlds: Worlds) -> None:
        self.failure: JobFailed | None = None
        self.formed: Callable[[int, list[str]], None] = lambda generation, hosts: None
        """Called with the number of each world whose ranks were dealt, and with the host of each rank."""
        self._station = station
        self._fleet = fleet
        self._worlds = worlds
        self._change: Change | None = None
        self._done: set[Life] = set()
        """Members that have ended well by themselves."""
        self._ended: dict[Seat, float] = {}
        """When members of the world that is to change have ended for that (mono)."""
        self._blamed = False
        """Of the newest world somebody has failed of whom that is known."""
        self._errors: set[str] = set()
        """What members of the newest world have failed with, by digest."""
        self._unexplained: list[float] = []
        """When worlds have ended, within an hour, of which nobody has failed."""
        self._announced = station.generation

    # --- the look

    def decide(self, now: float, situation: Situation, limits: Limits) -> Decision:
        """Form the next world once nobody is in one; until then end the one that is to change."""
        move, decision = decide(
            now, situation, limits, done=self._done, ended=self._ended, starting_until=self._starting_until
        )
        change = self._change
        if move is Move.FORM:
            if change is None:
                return decision
            return replace(decision, cause=change.cause, reason=f"{change.reason}; {decision.reason}")
        if change is not None and change.move is Move.DRAIN and self._blamed:
            change.move, change.cause, change.reason = Move.END, "worker failed", decision.reason
            change.first_gone_at = now
        if move is Move.DRAIN and change is None:
            self._change = Change(move, self._cause_of(decision, situation), decision.reason, now)
            log.info("%s: %s; all leave at their next commit, and the next world begins there", *self._why)
        elif move is Move.END and change is None:
            self._change = Change(move, decision.cause, decision.reason, now, first_gone_at=now)
            log.info("%s: %s; the others are ended, and the next world begins with the last commit", *self._why)
        self._end_members(now, situation)
        return Decision(None, decision.cause if self._change else "", decision.reason, decision.again_at)

    def look(self, now: float) -> None:
        """Tell of a world whose ranks are known now."""
        meeting = self._station.rendezvous
        if self._worlds.inherited:
            self._announced = meeting.generation  # its processes were begun by another launcher
        if self._worlds.members and meeting.formed and self._announced < meeting.generation:
            self._announced = meeting.generation
            ranks = {place.rank: life for life in self._worlds.members if (place := meeting.place(life)) is not None}
            self.formed(meeting.generation, [ranks[rank].seat.host for rank in sorted(ranks)])

    def next_look(self) -> float | None:
        """When somebody is to be told again, or to be ended (mono)."""
        change, now = self._change, self._station.now()
        if change is None:
            return None
        told_at, gone_at = change.told_at, change.first_gone_at
        again = [] if told_at is None else [told_at + TELL_AGAIN_S]
        late = [] if gone_at is None else [self._ended_at(change)]
        return min((at for at in (*again, *late) if at > now), default=None)

    @property
    def _starting_until(self) -> float:
        members = self._station.roster.present(self._worlds.members)
        return max((each.since + STARTS_S for each in members if not (each.loops or each.done)), default=-math.inf)

    @property
    def _why(self) -> tuple[str, str]:
        change = self._change
        return ("", "") if change is None else (change.cause, change.reason)

    def _cause_of(self, decision: Decision, situation: Situation) -> str:
        """As in any job, hosts that failed and are back are not new ones."""
        inside = {life.seat for life in situation.members}
        ready = {seat.host for seat in situation.processes if seat not in inside}
        back = bool(ready) and ready <= self._fleet.recovering
        return "cooldown over" if decision.cause == "hosts added" and back else decision.cause

    def begun(self, now: float) -> None:
        """What has ended the last world is over."""
        change, self._change = self._change, None
        self._done.clear()
        self._ended.clear()
        cut_off = not self._fleet.cut_off_live.isdisjoint(self._worlds.members)
        if change is not None and change.move is Move.END and not (self._blamed or cut_off):
            self._count_unexplained(now, change)
        self._blamed = False
        self._errors.clear()

    def _count_unexplained(self, now: float, change: Change) -> None:
        budget = self._station.rules.failure_budget
        self._unexplained = [at for at in self._unexplained if now - at < BUDGET_WINDOW_S] + [now]
        if len(self._unexplained) > budget:
            times = f"the world has ended {len(self._unexplained)} times within an hour"
            self.failure = JobFailed(
                f"{times} without a process that says why, more than --failure-budget allows; last: {change.reason}"
            )

    # --- the end of a world

    def _end_members(self, now: float, situation: Situation) -> None:
        change = self._change
        if change is None:
            return
        members = self._station.roster.present(members_in(situation))
        if change.first_gone_at is None and len(members) < len(situation.members):
            change.first_gone_at = now
        if change.move is Move.DRAIN and (change.told_at is None or now >= change.told_at + TELL_AGAIN_S):
            change.told_at = now
            self._tell_to_leave(members, {seat.host for seat in situation.wanted}, change.reason)
        late = change.first_gone_at is not None and now >= self._ended_at(change)
        # Before anybody trains an error is most likely everybody's: who is about to fail alike shows that.
        alike = bool(self._errors) and not any(worker.loops or worker.step for worker in members)
        for worker in members:
            if worker.leaving is None and not worker.done and (late or not (worker.loops or alike)):
                self._fleet.end(worker, why=change.reason)

    def _ended_at(self, change: Change) -> float:
        """When those that have not gone by then are ended (mono). Only asked once somebody has gone."""
        assert change.first_gone_at is not None
        return change.first_gone_at + (BEHIND_S if change.move is Move.DRAIN else NOTICE_S)

    def _tell_to_leave(self, members: list[Worker], staying: set[str], reason: str) -> None:
        """All commit at one step and end; ``check_alive()`` is False on hosts that are not to be in the next world."""
        station, generation = self._station, self._station.generation + 1
        looping = [worker for worker in members if worker.loops and not worker.done]
        ends = [by - station.now() for host, by in station.leaves_by.items() if station.roster.on(host)]
        in_s = max(0.0, min(ends)) if ends and min(ends) < float("inf") else None
        for leave in (False, True):
            told = [worker for worker in looping if (worker.seat.host not in staying) is leave]
            station.tell_all(told, "update", generation=generation, leave=leave, in_s=in_s, reason=reason)

    # --- ends of processes

    def judged(self, worker: Worker, ending: Ending, code: int) -> Ending:
        """Tell who has failed from those that ended because of it, or because they were to."""
        if worker.life not in self._worlds.members or ending.cause is Cause.DONE:
            return ending
        found = self._judged(worker, ending, code)
        if found.cause in (Cause.PEER_LOST, Cause.TOLD):
            self._worlds.excused.add(worker.life)
            self._ended[worker.seat] = self._station.now()
        if code == 0 and found.cause is Cause.LEFT and not worker.loops:
            self._done.add(worker.life)
        self._blamed = self._blamed or found.cause.fault or found.cause is Cause.LEFT or worker.killed is not None
        self._worlds.accounts.stopped(self._station.now())
        return found

    def _judged(self, worker: Worker, ending: Ending, code: int) -> Ending:
        draining = self._change is not None and self._change.move is Move.DRAIN
        if worker.leaving is not None or (draining and code in (0, START_AGAIN)):
            return Ending(Cause.TOLD, "ended for the next world")
        if worker.failure is not None and code in (TERMINATED, START_AGAIN):
            return Ending(Cause.CRASHED, f"crashed: {worker.failure[1]}")
        if code in (TERMINATED, START_AGAIN):
            return Ending(Cause.PEER_LOST, "ended because a peer was lost")
        signalled = SIGNALLED < code < SSH_FAILED
        if worker.failure is not None and ending.cause is Cause.CRASHED:
            same = worker.failure[0] in self._errors
            self._errors.add(worker.failure[0])
            if same:
                return ending
        if ending.cause is Cause.CRASHED and self._blamed and not (signalled or self._done):
            return Ending(Cause.PEER_LOST, f"ended after another one had failed: {ending.text}")
        return ending

    def not_begun(self, generation: int, why: str) -> None:
        """What starts the processes of a world has ended without having done so, or before they were done.

        Its slots are given back; that nobody has failed counts.
        """
        members = [worker for worker in self._station.roster.present(self._worlds.members) if not worker.done]
        if generation != self._station.generation or self._change is not None or not members:
            return
        if all(worker.generation >= generation for worker in members):
            return  # all have begun: they have ended, or are about to, and say themselves how
        log.warning("world %d was not begun: %s", generation, why)
        now = self._station.now()
        self._change = Change(Move.END, "worker failed", why, now, first_gone_at=now)
        for worker in members:
            self._fleet.end(worker, why=why)

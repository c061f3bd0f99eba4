"""Watches over jobs whose script has no elastic loop, and over those of which nothing would be left.

A process says when it begins an elastic loop. As long as none of a job ever has, a change of the world is of no use:
nobody would come to another one. And where all that has trained is lost, and no commit was ever told of, another world
would begin the training anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set
from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.endings import Ended, Fate, Left, Verdict, alone, begins_anew, fate
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Worker
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

OPEN: Final = Verdict(Fate.LOST)
"""The world changes as in any job."""


class Loopless:
    """See the module's docstring. To be asked at every look, and told of every end of a process.

    ``in_place``: processes live through changes of their world. Where each world is other processes, a script without
    a loop is begun again for each, as torchrun does it. ``stored``: whether a checkpoint is known.
    """

    def __init__(self, station: Station, worlds: Worlds, *, in_place: bool, stored: Callable[[], bool]) -> None:
        self.loops = False
        """A process has begun an elastic loop."""
        self.anew = 0
        """How often training has begun anew."""
        self._station = station
        self._worlds = worlds
        self._in_place = in_place
        self._stored = stored
        self._of = station.generation
        self._ended: dict[Life, Ended] = {}
        """Of the newest world."""
        self._alone: dict[Seat, Ended] = {}
        """The last end in each seat of a process that never asked for a world."""
        self._trained = self._kept = False
        self._step = 0
        self._last = ""
        self._said: set[str] = set()
        self._unknown = -1
        """The world of which all were lost, and it is not known what they had done."""
        self._fenced = -1
        """The world whose processes were cut off from one another."""

    # --- the look

    def look(self) -> JobFailed | None:
        """Note what is to be known later of those who live now; why the job is over, if nothing is left of it."""
        self._kept = self._kept or self._station.roster.commits.newest is not None or self._stored()
        survivors = 0
        for worker in self._station.roster.workers.values():
            self._note(worker)
            survivors += worker.has_state
        if self._kept or survivors or not (self._in_place and self._worlds.begun):
            return None  # the usual case
        if not self._trained:
            self._warn_of_the_unknown()
            return None
        why = begins_anew(Left(self._trained, self._kept, survivors, self.loops, self._step, self._last))
        if why is None or self.verdict.fate is not Fate.LOST:
            return None
        if not self._station.rules.restart_from_scratch:
            return JobFailed(f"{why}; --restart-from-scratch would start the script again")
        self.anew += 1
        log.warning("training begins anew (time %d): %s", self.anew, why)
        self._station.record("begun_anew", number=self.anew, steps_lost=self._step or None, reason=why)
        self._trained, self._step = False, 0
        return None

    def _warn_of_the_unknown(self) -> None:
        """Nobody of a world is left, and nobody has told of a step. It may have trained all the same."""
        members, generation = self._worlds.members, self._station.generation
        lost = members and self._worlds.formed and not self._station.roster.present(members)
        if lost and not self.loops and self._unknown != generation and self.verdict.fate is Fate.LOST:
            self._unknown = generation
            log.warning(
                "no process of the world is left (%s), and none has told of a step or of a commit: the script is "
                "started again from its beginning, and what it had trained, if anything, is lost",
                self._last,
            )

    @property
    def has_trained(self) -> bool:
        """Whether some process of the job has come as far as training."""
        return self._trained or self._kept or self.loops

    @property
    def verdict(self) -> Verdict:
        """What becomes of the newest world; :data:`OPEN` where it may be followed by another."""
        worlds, roster, meeting = self._worlds, self._station.roster, self._station.rendezvous
        members = worlds.members
        if self.loops or not members or not worlds.formed:
            return OPEN
        present = roster.present(members)
        on_their_way = any(worker.generation < self._station.generation for worker in present)
        if on_their_way or not meeting.waiting.isdisjoint(members):
            return OPEN
        return fate(len(members), len(present), self._ends)

    def held_back(self, decision: Decision) -> Decision:
        """The decision, or that the world is left as it is: nobody would come to another one."""
        found = self.verdict.fate
        if decision.members is None or not (found is Fate.ENDING or (found is Fate.STANDS and self._in_place)):
            return decision
        self._cut_off_those_who_wait()
        if found is Fate.STANDS and decision.cause not in self._said:
            self._said.add(decision.cause)
            why = (
                f"{decision.cause}: {decision.reason}; the world stays as it is: no process has begun an elastic loop "
                "(elastic.run or hvd.elastic.run), and without one hosts can neither be added nor replaced"
            )
            log.warning("%s", why)
            self._station.record("not_resized", cause=decision.cause, reason=why)
        return Decision(None, "", "no process has begun an elastic loop")

    def _cut_off_those_who_wait(self) -> None:
        """A member was lost without a word, with its host: whoever waits for it is to hear of that now."""
        members, generation = self._worlds.members, self._station.generation
        present = self._station.roster.present(members)
        silent = len(members) - len(present) - len(self._ends)
        if silent > 0 and self._fenced != generation:
            self._fenced = generation
            for worker in present:
                self._station.tell(worker, "fence", addresses=None)

    @property
    def lasts(self) -> bool:
        """Whether processes of a script without a loop are left to come to its end, however long they take."""
        return self._in_place and self.verdict.fate in (Fate.ENDING, Fate.STANDS)

    # --- ends of processes

    def ended(self, worker: Worker, cause: Cause, how: str, code: int) -> None:
        """A process has ended, and is not in the roster any more."""
        self._note(worker)
        self._kept = self._kept or worker.warned
        place = self._station.rendezvous.place(worker.life)
        rank = worker.planned if place is None else place.rank
        # Also on a host that is about to go, which is the cause of all that ends there then.
        by_itself = worker.killed is None and worker.leaving is None and not worker.warned
        well = worker.done or (code == 0 and by_itself)
        told = "" if worker.failure is None or well else f": {worker.failure[1]}"
        self._last = f"{worker.seat} {how}"
        entry = Ended(f"rank {rank} on {worker.seat}", f"{how}{told}", well)
        if worker.life in self._worlds.members:
            if self._of != self._station.generation:
                self._ended.clear()
            self._of = self._station.generation
            self._ended[worker.life] = entry
        elif worker.stage is Stage.BOOTING and (well or cause.fault):
            self._alone[worker.seat] = entry

    @property
    def done_alone(self) -> Set[Seat]:
        """Seats whose process has ended well without ever asking for a world."""
        return {seat for seat, end in self._alone.items() if end.well}

    def failed_alone(self, listed: Iterable[str], *, wanted: int) -> JobFailed | None:
        """Why a program that needs no world has failed on the hosts that are ``listed``, ``wanted`` of which were to
        end well; None if it has not.
        """
        hosts = set(listed)
        why = alone([end for seat, end in self._alone.items() if seat.host in hosts], wanted=wanted)
        return None if why is None else JobFailed(why)

    @property
    def _ends(self) -> list[Ended]:
        return list(self._ended.values()) if self._of == self._station.generation else []

    def _note(self, worker: Worker) -> None:
        self.loops = self.loops or worker.loops
        self._kept = self._kept or worker.every is not None
        if worker.keeps_nothing:
            self._trained = True
            self._step = max(self._step, worker.step)

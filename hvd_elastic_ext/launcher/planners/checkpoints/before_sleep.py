"""Before a job goes to sleep for want of hosts, all that was trained is on storage, sealed and read back.

Nobody trains any more, so no commit is named: what the survivors' memory holds is looked at, and written from there
if storage has nothing as new. Only what a look has found to be there, and a second one whole, counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.errors import Asleep
from hvd_elastic_ext.launcher.planners.checkpoints.before_preemption import before_s
from hvd_elastic_ext.launcher.planners.checkpoints.coordinator import Sealing
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Kept, last_words
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Durability
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Agent

log = logging.getLogger(__name__)

ANSWER_S: Final = 900.0
"""How long a host may take for a look: it may have to read all of a checkpoint."""
AGAIN_S: Final = 5.0
"""Pause after a look that came to nothing."""

Identity = tuple[int, int, int, int]


class Stored(NamedTuple):
    """A checkpoint, by its name, where it is, of which commit and step it is, and a host that has it."""

    name: str
    path: str
    identity: Identity
    step: int
    host: str = ""


class Step(Enum):
    """What comes next."""

    LOOK = "see what memory and storage hold"
    SEAL = "write what memory holds"
    VERIFY = "read the checkpoint back"
    SLEEP = "nothing is left to save"
    WAIT = "it cannot be saved"


@dataclass(frozen=True, slots=True)
class Known:
    """``held``: the commit in the memory of each seat; ``stored``: the newest checkpoint; ``whole``: read back.

    ``looked`` is False as long as neither is known; ``stateless``: processes have trained that keep no commit.
    """

    looked: bool = False
    held: Mapping[Seat, Kept] = field(default_factory=dict)
    stored: Stored | None = None
    whole: bool = False
    stateless: bool = False


def next_step(known: Known, *, read_back: bool = True) -> Step:
    """Say what is to be done before anything ends. Pure. ``read_back``: what is stored is only believed when read."""
    if not known.looked:
        return Step.LOOK
    newest = max((kept.commit[1:] for kept in known.held.values()), default=None)
    if newest is not None and (known.stored is None or known.stored.identity[1:] < newest):
        return Step.SEAL
    if known.stored is None:
        return Step.WAIT if known.stateless else Step.SLEEP
    return Step.SLEEP if known.whole or not read_back else Step.VERIFY


class Bedtime:
    """See the module's docstring. To be asked at every look; without ``after_s`` nobody sleeps."""

    def __init__(self, station: Station, sealing: Sealing, how: Durability | None, *, after_s: float | None) -> None:
        self._station = station
        self._sealing = sealing
        self._how = how
        self._after_s = after_s
        self._since: float | None = None
        self._known = Known()
        self._skip: list[str] = []
        """Checkpoints that look whole and are not."""
        self._asked: dict[str, int] = {}
        """Number of the errand of each host whose answer is waited for."""
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._asked_at = self._again_at = -math.inf
        self._hopeless = self._hurry = False
        self._read_back = True
        self._said = ""

    @property
    def going(self) -> bool:
        """Whether waiting ends in sleep, as far as is known, however long that takes."""
        return self._since is not None and not self._hopeless

    def look(self, now: float, *, short: str | None, hurry: bool = False, read_back: bool = True) -> Asleep | None:
        """Do what comes next. ``short``: why there is nobody to train, and will not be; None if there is.

        What the job ends with for now, once nothing can be lost by it. In a ``hurry`` it is not waited for that
        somebody may train after all, whether the job may sleep or not. ``read_back``: what is stored is read back.
        """
        if self._how is None or (self._after_s is None and not hurry):
            return None
        self._hurry, self._read_back = hurry, read_back
        if short is None:
            self.rise()
            return None
        self._since = now if self._since is None else self._since
        if now < self._not_before or self._sealing.busy or self._station.transferring:
            return None
        if self._asked:
            if now >= self._asked_at + ANSWER_S:
                self._later(f"no answer from {', '.join(sorted(self._asked))} after {ANSWER_S:g} s")
            return None
        return self._go_on(now, short)

    @property
    def waits_for_an_answer(self) -> bool:
        """Whether an agent is at work for this, or on a checkpoint."""
        return bool(self._asked) or self._sealing.busy

    def next_look(self) -> float | None:
        """When there may be something to do (mono)."""
        waits = self._since is None or self._asked or self._sealing.busy
        return None if waits else self._not_before

    @property
    def _not_before(self) -> float:
        if self._since is None:
            return math.inf
        return max(self._ready_at(self._since), self._again_at, self._sealing.again_at)

    def _ready_at(self, since: float) -> float:
        """It has been too few for long enough then, or all that holds the newest commit is about to go."""
        at = since + (0.0 if self._hurry else self._after_s or 0.0)
        holders, going = self._station.roster.holders(), self._station.leaves_by
        if not holders or not holders <= going.keys():
            return at
        ends = min(going[host] for host in holders)
        return since if ends == math.inf else max(since, min(at, ends - before_s(self._sealing.durable_s)))

    def lost(self, host: str) -> None:
        """A connection was lost, and with it perhaps an answer: what is known is known no more."""
        if host in self._asked or any(seat.host == host for seat in self._known.held):
            self._forget()

    def is_busy(self, host: str) -> bool:
        """Whether a host's agent is on an errand for this."""
        return host in self._asked

    def take(self, agent: Agent, news: Mapping[str, Any]) -> bool:
        """Take in what an agent says of its errand; False if it is about something else."""
        host, event = agent.host.name, news.get("event")
        if event not in ("errand", "errand_ended") or host not in self._asked or self._asked[host] != news.get("id"):
            return False
        answer = news.get("answer")
        if not isinstance(answer, dict):
            self._later(f"{host}: {last_words(news)}")
        elif isinstance(why := answer.get("failed"), str):
            self._later(f"{host}: {why}")
        else:
            del self._asked[host]
            self._answers[host] = answer
            if not self._asked:
                self._take_answers()
        return True

    def _go_on(self, now: float, short: str) -> Asleep | None:
        match next_step(self._known, read_back=self._read_back):
            case Step.LOOK:
                return self._ask_all(now, short)
            case Step.SEAL:
                self._seal()
            case Step.VERIFY:
                assert self._known.stored is not None
                self._answers = {}
                self._ask(now, [self._known.stored.host], do="verify", name=self._known.stored.name)
            case Step.WAIT if self._hurry:
                return Asleep(short)
            case Step.WAIT:
                self._hopeless = True
                self._later("it trains without a State of hvd_elastic_ext; use one, or --adopt")
            case Step.SLEEP:
                stored = self._known.stored
                return Asleep(short, path=stored and stored.path, step=stored and stored.step)
        return None

    def _ask_all(self, now: float, short: str) -> Asleep | None:
        # One that was sent a signal is to end, and yet has its grace, and its memory, as long as it lasts.
        agents = [
            agent
            for agent in self._station.roster.agents.values()
            if agent.heard and (agent.leaves_by is not None or not agent.finishing)
        ]
        if any(not agent.joined for agent in agents):
            self._again_at = now + AGAIN_S
            return None  # it comes again, or is cut off; what it holds may be the newest
        if not agents:
            path, step = self._sealing.newest
            return Asleep(short, path=path, step=step)
        self._answers = {}
        self._ask(now, [agent.host.name for agent in agents], do="held", skip=self._skip)
        return None

    def _ask(self, now: float, hosts: Sequence[str], **request: Any) -> None:
        assert self._how is not None
        self._asked_at = now
        for host in hosts:
            number = self._station.new_errand()
            whole = {"place": self._how.place, **request}
            if not self._station.hands.send(host, self._order(host, number, whole)):
                self._later(f"{host} is not connected")
                return
            self._asked[host] = number

    def _order(self, host: str, number: int, request: Mapping[str, Any]) -> dict[str, Any]:
        slots = sorted(seat.slot for seat in self._station.roster.lives if seat.host == host)
        return {"do": "errand", "id": number, "slots": slots, "request": request}

    def _take_answers(self) -> None:
        if "whole" in next(iter(self._answers.values())):
            self._take_verdict(next(iter(self._answers.values())))
            return
        held: dict[Seat, Kept] = {}
        stored: Stored | None = None
        try:
            for host, answer in self._answers.items():
                for slot, (identity, step, side) in answer["held"].items():
                    held[Seat(host, int(slot))] = Kept(_identity(identity), int(step), int(side))
                if (newest := answer["newest"]) is not None:
                    identity, step = _identity(newest["identity"]), int(newest["step"])
                    found = Stored(newest["name"], newest["path"], identity, step, host)
                    stored = found if stored is None or found.identity[1:] > stored.identity[1:] else stored
        except (KeyError, TypeError, ValueError) as error:
            self._later(f"an answer that is none: {type(error).__name__} {error}")
            return
        stateless = not held and any(worker.live_at is not None for worker in self._station.roster.workers.values())
        self._known = Known(True, held, stored, stateless=stateless)

    def _take_verdict(self, answer: Mapping[str, Any]) -> None:
        stored = self._known.stored
        assert stored is not None
        if answer.get("whole") is True:
            self._known = Known(True, self._known.held, stored, whole=True)
            return
        self._station.record("passed_over", host=stored.host, reason=f"{stored.name}: {answer.get('why')}")
        self._skip.append(stored.name)
        self._forget()
        self._again_at = self._station.now() + AGAIN_S

    def _seal(self) -> None:
        newest = max(kept.commit[1:] for kept in self._known.held.values())
        having = {seat: kept for seat, kept in self._known.held.items() if kept.commit[1:] == newest}
        self._skip.clear()  # what is made anew has its name
        lives = {Life(seat, self._station.roster.lives.get(seat, 0)): kept for seat, kept in having.items()}
        self._forget()
        self._sealing.at_rest(dict(sorted(lives.items(), key=lambda each: self._place(each[0]))))

    def _place(self, life: Life) -> tuple[float, Life]:
        """Ranks are dealt in the order of those in the last world: each gets its own random generators back."""
        place = self._station.rendezvous.place(life)
        return (math.inf if place is None else place.rank), life

    def rise(self) -> None:
        """Somebody trains, or is about to."""
        if self._since is not None:
            self._since, self._hopeless = None, False
            self._forget()
            self._sealing.no_more_rest()

    def _forget(self) -> None:
        self._known, self._again_at = Known(), -math.inf
        self._asked.clear()

    def _later(self, why: str) -> None:
        self._forget()
        self._again_at = self._station.now() + AGAIN_S
        self._say(f"the job does not {'end' if self._hurry else 'go to sleep'} yet: {why}")

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            log.warning("%s", what)
            self._station.record("not_sealed" if self._hurry else "not_slept", reason=what)


def _identity(numbers: Any) -> Identity:
    lineage, incarnation, generation, number = map(int, numbers)
    return lineage, incarnation, generation, number

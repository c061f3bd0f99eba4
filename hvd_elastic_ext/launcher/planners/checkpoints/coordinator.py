"""Durable checkpoints of a running job: which commit becomes one, when, and who does what for it.

The launcher names a commit that is still to come, so that every rank keeps the
same one; the agents write it beside training, each rank its share; when all
shares are there, one agent makes the checkpoint exist. Whatever goes wrong on
the way costs nothing but this attempt: the checkpoint before is still the newest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hvd_elastic_ext.launcher.planners.checkpoints.cost import Estimate
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Attempt, Kept, Last, Name, ahead, due, last_words
from hvd_elastic_ext.launcher.rules.checkpoints.commit_rate import Pace
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Durability
from hvd_elastic_ext.launcher.rules.membership.custody import Stored
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Agent, Worker, seconds
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

WRITE_S: Final = 900.0
"""How long a host may take for its share."""
AGAIN_S: Final = 5.0
"""Pause after an attempt that failed; it doubles with each one more, up to :data:`AGAIN_MOST_S`."""
AGAIN_MOST_S: Final = 300.0
TELLS_S: Final = 5.0
"""How long after it has entered a world a process tells of its first commit at the latest."""
TRAINS_S: Final = 30.0
"""How long after that it trains without a State of ours, if it does and has not."""
WAITED_S: Final = 2.0
"""How long a commit that was named is thought to be waited for before any was."""
MISSES: Final = 8
"""Times that a commit is named further and further ahead before an attempt has failed."""


class Sealing:
    """See the module's docstring. Told of events, and looked at by the driver; without ``how`` it does nothing."""

    def __init__(self, station: Station, worlds: Worlds, how: Durability | None) -> None:
        self._station = station
        self._worlds = worlds
        self._how = how
        self._attempt: Attempt | None = None
        self._last = Last(station.now(), 0)
        self._estimate = Estimate(station, auto=how is not None and how.every.auto)
        self._slowing = self._estimate.slowing
        self._not_before = -math.inf
        self._failed_in_a_row = 0
        self._asked = self._stay = False
        self._staying: Attempt | None = None
        """Its members wait where they made it: they were to go no further."""
        self._apart = False
        """Hosts share no storage: each has a whole checkpoint of its own."""
        self.only_here: str | None = None
        """The newest checkpoint, if only those hosts have it that made it."""
        self.stored: Stored | None = None
        """The newest checkpoint, and of which commit it is."""
        self._words: dict[str, str] = {}
        """By host, what it calls the storage that it has."""
        self._readers: frozenset[str] = frozenset()
        self._done = False
        """Training is done: what is sealed now is its end."""
        self._files: dict[Life, Kept] = {}
        """What processes keep in the place of their last commit."""
        self._said_stateless = False
        self._path: str | None = None
        self._pace = Pace()
        self._waited_s = WAITED_S

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is on its way."""
        return self._attempt is not None

    def is_busy(self, host: str) -> bool:
        """Whether a host's agent may be on an errand for a checkpoint."""
        return self._attempt is not None and host in self._attempt.hosts

    def began_with(self, path: str, step: int, facts: Mapping[str, Any], commit: Name | None = None) -> None:
        """Training goes on from a checkpoint of so many steps, at whose seal ``facts`` were noted."""
        self._path, self._last = path, Last(self._station.now(), step)
        self.stored = Stored(commit, step, path)
        self._estimate.began_with(facts)

    def now_please(self, *, stay: bool = True) -> bool:
        """Make a checkpoint as soon as possible; False if there is nothing to save.

        With ``stay`` nobody trains beyond it, until :meth:`go_on`.
        """
        if stay and self._staying is not None:
            return False  # nothing was trained since
        self._stay = stay
        self._asked, self._not_before = self._how is not None and self._may_commit(), -math.inf
        return self._asked

    def _may_commit(self) -> bool:
        """Whether every member has a State of ours, or may not have had the time to say so."""
        now, members = self._station.now(), self._members()
        return bool(members) and all(each.holds is not None or now - each.since < TELLS_S for each in members)

    def done(self) -> None:
        """Training is done: no commit that was named will come, and what is sealed from now on is the end of it."""
        self._done = True
        self.rests("training is done")
        self._failed_in_a_row, self._not_before = 0, -math.inf

    def rests(self, why: str) -> None:
        """Nobody trains any more: no commit that was named will come, and what lies in memory is there to be sealed."""
        self._asked = False
        if self._attempt is not None and len(self._attempt.kept) < len(self._attempt.ranks):
            self._give_up(why, blame=False)
            self._not_before = -math.inf

    def last(self, worker: Worker, message: Mapping[str, Any]) -> None:
        """A process whose training is done keeps something else in the place of its last commit."""
        kept = _kept(message)
        if kept is not None:
            self._files[worker.life] = kept

    def at_rest(self, held: Mapping[Life, Kept]) -> None:
        """Make a checkpoint of a commit that lies in memory while nobody trains: of the same one everywhere."""
        files = {life: kept for life, kept in self._files.items() if life in held and kept.commit == held[life].commit}
        held = {**held, **files}
        now, name = self._station.now(), next(iter(held.values())).commit[1:]
        ranks = {life: rank for rank, life in enumerate(held)}
        self._attempt = Attempt(0, self._station.generation, ranks, now, name, at_rest=True, kept=dict(held))
        self._write(self._attempt)

    def no_more_rest(self) -> None:
        """Somebody trains again: what was in memory will not stay there."""
        if self._attempt is not None and self._attempt.at_rest:
            self._give_up("training goes on", blame=False)

    def go_on(self) -> None:
        """Nobody has to stay, and nothing is asked for, any more."""
        self._asked = False
        if self._attempt is not None and self._attempt.stay:
            self._give_up("it is not needed any more", blame=False)
        if self._staying is not None:
            self._tell_to_go_on(self._staying)

    def _tell_to_go_on(self, attempt: Attempt) -> None:
        self._staying = None
        self._station.tell_all(self._station.roster.present(attempt.ranks), "keep", commit=None)

    @property
    def again_at(self) -> float:
        """Before then nothing is tried again (mono)."""
        return self._not_before

    @property
    def newest(self) -> tuple[str | None, int | None]:
        """Where the newest checkpoint is that was made, or loaded, and its step."""
        return self._path, None if self._path is None else self._last.step

    @property
    def readers(self) -> frozenset[str] | None:
        """Hosts that are known to have the newest checkpoint on their storage; None: all have that storage."""
        return None if self._how is not None and "://" in self._how.place else self._readers

    def is_read_by(self, host: str) -> None:
        """A host has loaded the newest checkpoint."""
        self._readers |= {host}

    @property
    def durable_s(self) -> float:
        """How long a commit took to become durable, the last time; a guess at first."""
        return self._estimate.durable_s

    @property
    def waited_s(self) -> float:
        """How long all took to keep the commit that was named for the last checkpoint; a guess at first."""
        return self._waited_s

    @property
    def asked(self) -> bool:
        """Whether a checkpoint that was asked for is still to come."""
        return self._asked

    @property
    def nobody_goes_on(self) -> bool:
        """Whether a checkpoint is asked for, on its way, or made, beyond which nobody trains."""
        on_its_way = self._asked or self._attempt is not None
        return self._staying is not None or (self._stay and on_its_way)

    @property
    def has_all(self) -> bool:
        """Whether the newest checkpoint is as new as all commits that are known of."""
        newest, stored = self._station.roster.commits.newest, None if self.stored is None else self.stored.commit
        return stored is not None and (newest is None or stored >= newest)

    def lost(self, host: str) -> None:
        """A connection was lost, and with it perhaps what was asked, or answered."""
        if self._attempt is not None and host in self._attempt.hosts:
            self._give_up(f"the connection to {host} was lost", blame=False)

    def came(self, host: str) -> None:
        """An agent is there, or there again: what another launcher had kept, or what was lost on the way to it, ends.

        Its processes might stay for ever for a word that was never heard.
        """
        workers = self._station.roster.on(host)
        if self._how is None or not workers:
            return
        self.lost(host)
        if self._staying is not None and host in self._staying.hosts:
            return  # as they should
        self._station.tell_all(workers, "keep", commit=None)
        self._station.hands.send(host, {"do": "drop", "slots": [worker.seat.slot for worker in workers]})

    # --- the look

    def look(self, now: float) -> None:
        """Begin what is due, and give up what has lost its world or its patience."""
        if self._how is None:
            return
        if not self._pace.saw(now, self._newest()):
            self._slowing.breaks()
        elif self._attempt is None:
            self._slowing.trains(now, self._step())
        self._see_stateless(now)
        if self._staying is not None and self._staying.generation != self._station.generation:
            self._tell_to_go_on(self._staying)  # to the next world
        attempt = self._attempt
        if attempt is None:
            if now >= self._not_before and self._due(now):
                self._begin(now)
        elif attempt.generation != self._station.generation or not (attempt.at_rest or self._all_there(attempt)):
            self._give_up("the world has changed", blame=False)
        elif now >= attempt.deadline:
            self._give_up(f"no answer from {', '.join(sorted(attempt.waits_for))} after {WRITE_S:g} s")

    def _see_stateless(self, now: float) -> None:
        """Say once of a script that trains without a State of ours that there will be no checkpoints of it."""
        if self._said_stateless or not self._worlds.settled:
            return
        others = [each for each in self._members() if each.holds is None and each.step and now - each.since > TRAINS_S]
        if others:
            self._said_stateless = True
            reason = f"{others[0].seat} trains without a State of hvd_elastic_ext; use one, or --adopt"
            log.warning("no checkpoint is made: %s", reason)
            self._station.record("not_sealed", reason=reason)

    def next_look(self, now: float) -> float:
        """When something may be due (mono)."""
        if self._how is None or self._how.every.notice_only:
            return math.inf
        if self._attempt is not None:
            return self._attempt.deadline
        seconds = self._estimate.interval_s if self._how.every.seconds is None else self._how.every.seconds
        at = math.inf if self._how.every.steps else max(self._not_before, self._last.at + seconds)
        return at if at > now else math.inf  # what is due, and cannot be made yet, hurries nobody

    def _due(self, now: float) -> bool:
        assert self._how is not None
        newest = self._newest()
        if newest is None or not self._worlds.settled:
            return False
        return self._asked or due(now, self._step(), self._last, self._how.every, self._estimate.interval_s)

    def _step(self) -> int:
        """The newest one that any member has told of."""
        return max((worker.step for worker in self._members()), default=0)

    def _members(self) -> list[Worker]:
        return self._station.roster.present(self._worlds.members)

    def _newest(self) -> Name | None:
        """The newest commit that any member has told of, if all have told of one: others have no State of ours."""
        held = [worker.holds for worker in self._members()]
        known = [each for each in held if each is not None]
        return max(known) if known and len(known) == len(self._worlds.members) else None

    def _age_s(self, now: float, newest: Name) -> float:
        """How long ago that commit was seen to be the newest."""
        told = [
            each.silent_s + now - each.named_at for each in self._members() if each.holds == newest and each.named_at
        ]
        return max(0.0, min(told, default=0.0))

    @property
    def _pace_per_s(self) -> float:
        """How fast commits come until the one that is named: none is left out then."""
        return max([self._pace.per_s, *(worker.calls_per_s for worker in self._members())])

    def _all_there(self, attempt: Attempt) -> bool:
        return len(self._station.roster.present(attempt.ranks)) == len(attempt.ranks)

    def _reachable(self, lives: Iterable[Life]) -> bool:
        """Whether all will hear which commit is named: it is said once."""
        agents = [self._station.roster.agents.get(host) for host in {life.seat.host for life in lives}]
        return all(agent is not None and agent.joined for agent in agents)

    # --- one attempt

    def _begin(self, now: float) -> None:
        newest = self._newest()
        ranks = {life: place.rank for life in self._worlds.members if (place := self._station.rendezvous.place(life))}
        if newest is None or len(ranks) != len(self._worlds.members) or not self._reachable(ranks):
            return
        wanted = ahead(newest, self._pace_per_s, 0, age_s=self._age_s(now, newest))
        self._attempt = Attempt(
            self._station.new_errand(), self._station.generation, ranks, now, wanted, self._asked and self._stay
        )
        self._ask(self._attempt)

    def _ask(self, attempt: Attempt) -> None:
        attempt.kept.clear()
        members = self._station.roster.present(attempt.ranks)
        self._station.tell_all(members, "keep", commit=attempt.wanted, stay=attempt.stay)

    def kept(self, worker: Worker, message: Mapping[str, Any]) -> None:
        """A process keeps the commit that was named."""
        attempt, kept = self._attempt, _kept(message)
        if attempt is None or worker.life not in attempt.ranks or kept is None or kept.commit[1:] != attempt.wanted:
            return
        attempt.kept[worker.life] = kept
        if len(attempt.kept) == len(attempt.ranks):
            self._write(attempt)

    def not_kept(self, worker: Worker, message: Mapping[str, Any]) -> None:
        """A process has passed the commit that was named before it heard of it: one further ahead is named."""
        attempt, wanted, newest = self._attempt, message.get("wanted"), message.get("newest")
        if attempt is None or worker.life not in attempt.ranks or attempt.waits_for or wanted != [*attempt.wanted]:
            return
        if isinstance(failed := message.get("failed"), str):
            self._give_up(f"{worker.seat}: {failed}")
            return
        attempt.misses += 1
        if not isinstance(newest, list) or len(newest) != 3:
            self._give_up(f"{worker.seat} has not got its agent's memory; start it with the descriptors of its parent")
        elif attempt.misses > MISSES:
            self._give_up("commits come faster than processes can be told of them")
        else:
            further = ahead((newest[0], newest[1], newest[2]), self._pace_per_s, attempt.misses)
            attempt.wanted = max(further, attempt.wanted)
            self._ask(attempt)

    def _write(self, attempt: Attempt) -> None:
        if len({(kept.commit, kept.step) for kept in attempt.kept.values()}) > 1:
            self._give_up("ranks took commits of one number after different steps; commit on all ranks at the same")
            return
        assert self._how is not None
        attempt.number = self._station.new_errand()  # of the errand before its end may not be heard of yet
        attempt.kept_at = self._station.now()
        if attempt.measurable:
            self._slowing.begins(attempt.kept_at, self._step())
        attempt.deadline = attempt.kept_at + WRITE_S
        attempt.written.clear()
        for host, (parts, of) in attempt.work(apart=self._apart).items():
            shares = {
                str(life.seat.slot): [part, attempt.ranks[life], attempt.kept[life].side] for life, part in of.items()
            }
            if not self._send(attempt, host, list(of), do="write", parts=parts, shares=shares):
                return

    def _send(self, attempt: Attempt, host: str, lives: list[Life], **request: Any) -> bool:
        assert self._how is not None
        commit = next(iter(attempt.kept.values())).commit
        whole = {"place": self._how.place, "commit": commit, **request}
        slots = [life.seat.slot for life in lives]
        attempt.waits_for.add(host)
        if not self._station.hands.send(host, {"do": "errand", "id": attempt.number, "slots": slots, "request": whole}):
            self._give_up(f"{host} is not connected", blame=False)
            return False
        return True

    def take(self, agent: Agent, news: Mapping[str, Any]) -> bool:
        """Take in what an agent says of its errand; False if it is about something else."""
        event, attempt, host = news.get("event"), self._attempt, agent.host.name
        if event not in ("errand", "errand_ended") or attempt is None or news.get("id") != attempt.number:
            return False
        if host not in attempt.waits_for:
            return True
        answer = news.get("answer")
        if event == "errand" and isinstance(answer, dict):
            self._answered(attempt, host, answer)
        elif event == "errand_ended":
            self._give_up(f"{host}: {last_words(news)}")
        return True

    def _answered(self, attempt: Attempt, host: str, answer: Mapping[str, Any]) -> None:
        attempt.waits_for.discard(host)
        if isinstance(why := answer.get("failed"), str):
            self._give_up(f"{host}: {why}")
        elif attempt.sealing:
            attempt.answer = answer if host == attempt.root else attempt.answer
            if not attempt.waits_for:
                self._sealed(attempt, attempt.answer)
        else:
            attempt.written[host] = answer
            if not attempt.waits_for:
                self._seal(attempt)

    def _seal(self, attempt: Attempt) -> None:
        """All that was to be written is: have it exist."""
        assert self._how is not None
        if len({str(answer.get("store")) for answer in attempt.written.values()}) > 1 and not self._apart:
            self._apart = True
            log.warning("%s is not the same storage on all hosts: each makes a whole checkpoint", self._how.place)
            self._write(attempt)
            return
        attempt.sealing, attempt.number = True, self._station.new_errand()
        facts = self._estimate.facts(ended=attempt.stay or attempt.at_rest)
        newest = self._station.roster.commits.newest
        if self._done and attempt.at_rest and (newest is None or attempt.wanted >= newest):
            facts["finished"] = self._how.mark
        more = {"do": "seal", "world": len(attempt.ranks), "keep": self._how.keep, "facts": facts}
        work = attempt.work(apart=self._apart)
        if not self._apart:
            written, (parts, of) = list(attempt.written.values()), work[attempt.root]
            self._send(attempt, attempt.root, list(of), parts=parts, written=written, **more)
            return
        for host, (parts, of) in work.items():
            if not self._send(attempt, host, list(of), parts=parts, written=[attempt.written[host]], **more):
                return

    def _sealed(self, attempt: Attempt, answer: Mapping[str, Any]) -> None:
        now = self._station.now()
        step = next(iter(attempt.kept.values())).step
        took = now - attempt.kept_at + attempt.stall_s
        if not attempt.at_rest:
            self._waited_s = attempt.kept_at - attempt.began - attempt.stall_s
        self._path = str(answer.get("path", ""))
        self.only_here = self._path if self._apart else None
        self._station.record(
            "sealed",
            path=self._path,
            step=step,
            bytes=answer.get("bytes"),
            seconds=round(took, 3),
            since_asked_s=round(now - attempt.began, 3),
        )
        if isinstance(why := answer.get("not_removed"), str):
            log.warning("older checkpoints are not removed, and take up room: %s", why)
        self._last = Last(attempt.kept_at, step)
        self.stored = Stored(next(iter(attempt.kept.values())).commit[1:], step, str(self._path))
        self._words.update({host: str(written.get("store")) for host, written in attempt.written.items()})
        word = self._words.get(attempt.root)
        shared = frozenset(host for host, known in self._words.items() if known == word)
        self._readers = frozenset(attempt.written) if self._apart else shared
        slowed = self._slowing.ends(now, self._step()) if attempt.measurable else None
        self._estimate.sealed(took, slowed, stall_s=attempt.stall_s)
        self._failed_in_a_row, self._asked = 0, self._asked and self._stay and not attempt.stay
        self._staying = attempt if attempt.stay else None
        self._let_go(attempt)

    def _give_up(self, why: str, *, blame: bool = True) -> None:
        attempt = self._attempt
        assert attempt is not None
        self._slowing.breaks()
        self._let_go(attempt)
        if not attempt.at_rest:
            self._tell_to_go_on(attempt)
        if not blame:
            self._not_before = self._station.now() + AGAIN_S
            return
        self._failed_in_a_row += 1
        pause = min(AGAIN_MOST_S, AGAIN_S * 2 ** (self._failed_in_a_row - 1))
        self._not_before = self._station.now() + pause
        log.warning("no checkpoint: %s; the next attempt is in %g s", why, pause)
        self._station.record("not_sealed", reason=why, again_s=pause)

    def _let_go(self, attempt: Attempt) -> None:
        self._attempt = None
        for host, lives in attempt.hosts.items():
            self._station.hands.send(host, {"do": "drop", "slots": [life.seat.slot for life in lives]})


def _kept(message: Mapping[str, Any]) -> Kept | None:
    """What a process says that it keeps; None if that makes no sense."""
    commit, step, side = message.get("commit"), message.get("step"), message.get("side")
    if not isinstance(commit, list) or len(commit) != 4 or not all(type(each) is int for each in commit):
        return None
    if not isinstance(step, int) or not isinstance(side, int):
        return None
    stall_s = max(0.0, seconds(message.get("stall_s")) or 0.0)
    return Kept((commit[0], commit[1], commit[2], commit[3]), step, side, message.get("files") is True, stall_s)

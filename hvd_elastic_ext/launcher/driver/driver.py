"""The launcher's one loop: an event becomes a fact, facts become a decision, the decision is acted on.

No threads, no sockets, no waiting: :class:`Driver` is told of events, looks at
the clock it was given, and acts through :class:`Hands`. Whatever was lost on the way, a
message or a whole launcher, is made up for at the next look, because desired is compared with actual each time.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.engines.engine import Engine, InPlace
from hvd_elastic_ext.launcher.engines.restarting import Restarting
from hvd_elastic_ext.launcher.planners.checkpoints.before_exit import LastWords
from hvd_elastic_ext.launcher.planners.checkpoints.before_preemption import LastCall
from hvd_elastic_ext.launcher.planners.checkpoints.before_sleep import Bedtime
from hvd_elastic_ext.launcher.planners.checkpoints.commit_interval import Thinning
from hvd_elastic_ext.launcher.planners.checkpoints.coordinator import Sealing
from hvd_elastic_ext.launcher.planners.checkpoints.final_checkpoint import LastState
from hvd_elastic_ext.launcher.planners.checkpoints.restore import Resuming
from hvd_elastic_ext.launcher.planners.departures.notices import Notices
from hvd_elastic_ext.launcher.planners.departures.preemption import Reclaims
from hvd_elastic_ext.launcher.planners.departures.shutdown import Farewell
from hvd_elastic_ext.launcher.planners.health.link_loss import Isolation
from hvd_elastic_ext.launcher.planners.health.liveness import Laggards
from hvd_elastic_ext.launcher.planners.health.loopless import Loopless
from hvd_elastic_ext.launcher.planners.membership.adoption import TakingBack
from hvd_elastic_ext.launcher.planners.membership.custody import Custodian
from hvd_elastic_ext.launcher.planners.membership.shortage import Patience
from hvd_elastic_ext.launcher.rules.checkpoints import finished
from hvd_elastic_ext.launcher.rules.health.causes import NOT_STARTED, SSH_FAILED, Cause, ending
from hvd_elastic_ext.launcher.rules.health.endings import Fate
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.rules.membership import membership
from hvd_elastic_ext.launcher.rules.membership.custody import Stored
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Question, Seat, seat_of
from hvd_elastic_ext.launcher.state import commit_holders
from hvd_elastic_ext.launcher.state.blame import Faults
from hvd_elastic_ext.launcher.state.context import Hands, Rules, Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.roster import Agent, Worker, seconds, take_beat, take_word
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Longest time between two looks, but for large jobs in which nothing happens."""
CALM_EACH_S: Final = 0.004
"""What each process adds to that time, up to :data:`CALM_S`: a look at thousands takes a while."""
CALM_S: Final = 20.0


class Driver:
    """See the module's docstring.

    Whoever tells it of an event has it look soon after; of many events, once.
    ``expects`` is a checkpoint that is known to have been made; ``commits`` is what an earlier launcher noted of those
    in memory, see :meth:`Holders.to_json`, and ``stored`` of the newest one on storage.
    ``changed`` is called when something is new that should outlive the launcher.
    """

    def __init__(
        self,
        rules: Rules,
        hands: Hands,
        *,
        journal: Journal,
        clock: Clock,
        ledger: HealthLedger | None = None,
        generation: int = 0,
        expects: str | None = None,
        commits: Iterable[Any] = (),
        stored: Stored | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.station = Station(rules, hands, journal, clock, generation)
        self.faults = Faults(self.station, ledger or HealthLedger(), changed=changed)
        self.fleet = Fleet(self.station, self.faults)
        self.worlds = Worlds(self.station, self.fleet)
        self._notices = Notices(self.station, self.fleet)
        self._patience = Patience(self.station, self.fleet, self.worlds)
        in_place = rules.engine == "horovod"
        self.engine: Engine = InPlace() if in_place else Restarting(self.station, self.fleet, self.worlds)
        self.back = TakingBack(self.station, self.worlds, changed=changed)
        self.farewell = Farewell(self.station, self.fleet, self.worlds, self.back)
        self._isolation = Isolation(self.station, self.worlds)
        self._laggards = Laggards(self.station, self.faults, self.fleet, self.worlds)
        self._reclaims = Reclaims(self.station, self.worlds)
        self.sealing = Sealing(self.station, self.worlds, rules.durability)
        self.sealing.only_here, self.sealing.stored = expects, stored
        self._last_call = LastCall(self.sealing)
        self._thinning = Thinning(self.station, self.worlds, rules.commit_every)
        self._bedtime = Bedtime(self.station, self.sealing, rules.durability, after_s=rules.sleep_after_s)
        self._call_at: float | None = None
        self._resuming = Resuming(
            self.station, self.worlds, self.sealing, rules.durability, fleet=self.fleet, expects=expects
        )
        self.custodian = Custodian(
            self.station, self.fleet, self.worlds, self.sealing, busy=self._is_busy, changed=changed
        )
        self.worlds.gate = self.custodian
        self.station.roster.commits.expect(commits, now=clock.mono())
        self.fleet.may_start, self.fleet.may_end = self._resuming.ready, self._may_end
        self._loopless = Loopless(self.station, self.worlds, in_place=in_place, stored=self._has_checkpoint)
        self.faults.has_trained = lambda: self._loopless.has_trained
        self._has_trained = generation > 0
        """Under an earlier launcher, or before it slept."""
        self.over = False
        """The job has ended: with :attr:`outcome`, or well if that is None."""
        self.outcome: JobFailed | None = None
        self._changed = changed
        self._finishing = False
        self._failed = 0, ""
        """The world of the last process that has failed, and which one that was."""
        self._reason = ""
        self.calm = False
        """A world stands, and nothing has to be done about it."""
        self._emptied = False
        """The newest list has no host, and was not believed: somebody worked."""
        self._held = False
        """Nothing is decided for now."""
        self._last_state = LastState(self.station, self.sealing, self._bedtime)
        self._last_words = LastWords(self.station, self.worlds, self.sealing, self._bedtime)
        self._again_at: float | None = None

    # --- the look

    def look(self) -> float | None:
        """Compare desired with actual and act; when to look again at the latest (mono), None if all is over."""
        station, now = self.station, self.station.now()
        if self.over:
            return None
        station.answer(station.rendezvous.due(now))
        self.custodian.note(now)
        self._held = self._isolation.look(now)
        if not self._held:
            self.fleet.notice_silence(blame=not self._ending)
        if self.outcome is None:  # to tell it to end again would be to hurry it
            self._end_for(self._last_words.said(now))
        self._see_what_is_done()
        if self._ending:
            everything = self.outcome is not None
            if not everything:
                self._laggards.look_at_the_end(now)
            self.over = self.farewell.look(now, everything=everything, needs_agents=self._last_state.needs_agents)
            return None if self.over else now + LOOK_S
        self._held = self._held or self.back.waits(now)
        if self._held:
            self._laggards.pause()
            self.custodian.pause()
        elif self._last_words.at_rest:
            self._end_for(self._last_words.save(now))
        else:
            self.back.tend(now)
            self._believe_the_list()
            if self._sees_the_end():
                return self.look()
            wanted = self._wanted()
            self._see_what_never_begins(wanted)
            self.fleet.tend_agents(wanted)
            self._resuming.look(now, wanted)
            self._end_for(self._resuming.failure)
            self.fleet.tend_processes(self._startable(wanted), self.worlds.members)
            decision = self.engine.decide(now, self.worlds.situation(wanted), station.rules.limits)
            self._end_for(self.engine.failure)
            decision = self._loopless.held_back(decision)
            decision = self._resuming.held_back(decision, wanted)
            decision = self._last_call.held_back(decision)
            decision = self.custodian.look(now, decision, wanted)
            self._act(decision, wanted)
            self.worlds.deal(wanted)
            self.engine.look(now)
            self.worlds.tell_again()
            self._reclaims.look(now, wanted)
            self._call_at = self._last_call.look(now, self._reclaims.all_by)
            self.sealing.look(now)
            self._thinning.look(now)
            if decision.members is None:  # who was called just now is not late yet
                self._laggards.look(now)
        return self._next_look(now)

    @property
    def _ending(self) -> bool:
        return self.outcome is not None or self._finishing

    def _wanted(self) -> tuple[Seat, ...]:
        usable = self._notices.staying(self.faults.usable(self.fleet.hosts, forgive=self.worlds.begun))
        roster = self.station.roster
        return membership.seats(usable, self.station.rules.limits, roster.taken(), roster.holders())

    def _believe_the_list(self) -> None:
        """No host is listed, and no agent and no process is left that would speak against that: they are gone."""
        roster = self.station.roster
        if self._emptied and not roster.workers and not any(agent.joined for agent in roster.agents.values()):
            self._emptied = False
            log.warning("no host is published, and none of those that were answers any more: they are gone")
            self.fleet.publish(HostSet())

    def _may_end(self, host: str) -> bool:
        """Unless nobody trains, and a job that sleeps has yet to save what the agent of this host holds; or only that
        agent holds the newest commit."""
        sleeps = self.station.rules.sleep_after_s is not None
        if sleeps and not self.worlds.standing and host in self.station.roster.holders():
            return False
        return not self.custodian.needs(host)

    def _is_busy(self, host: str) -> bool:
        """Whether an agent is on an errand for somebody else."""
        return any(part.is_busy(host) for part in (self.sealing, self._resuming, self._bedtime))

    def _see_what_never_begins(self, wanted: tuple[Seat, ...]) -> None:
        """Before there was a world: programs that need none may be done, and if nobody is left there will be none."""
        if self.worlds.begun or self.worlds.members:
            return
        if wanted and self._loopless.done_alone >= set(wanted):
            every = self.station.rules.limits.size(self.fleet.hosts.slots, begun=True)
            self._end_for(self._loopless.failed_alone(self.fleet.hosts.names, wanted=every))
            self._finishing = self.outcome is None
        elif not wanted and not self.station.roster.going() and self.faults.first is not None and self.fleet.hosts:
            if self.station.rules.woken or self._has_trained:
                return  # it sleeps on, or waits for hosts
            self.end(JobFailed(f"no process has come as far as training: {self.faults.first}"))

    def _see_what_is_done(self) -> None:
        """The job's own checkpoint says that it is done: nothing is begun."""
        done, how = self._resuming.done, self.station.rules.durability
        if done is not None and how is not None and not (self._ending or self.worlds.begun):
            log.warning("%s", finished.said(done, how.place))
            self._last_state.over = self._finishing = True

    def _sees_the_end(self) -> bool:
        """Whether the job is over, by what is left of it.

        Scripts without an elastic loop cannot say that they are done: they are when all processes have ended well.
        """
        self._hear_of_unheard_ends()
        self._end_for(self._loopless.look())
        found, why = self._loopless.verdict
        if found is Fate.FAILED:
            self.end(JobFailed(why))
        elif found is Fate.DONE:
            self._finishing = True
        return self._ending

    def _hear_of_unheard_ends(self) -> None:
        """Processes of the world that was taken over may have ended while there was no launcher."""
        for life in [each for each in self.worlds.members if each in self.fleet.unheard]:
            worker, code = self.fleet.unheard.pop(life)
            if self.station.roster.workers.setdefault(life.seat, worker) is worker:
                self._exited(worker, {"code": code})

    def _startable(self, wanted: tuple[Seat, ...]) -> tuple[Seat, ...]:
        """Of the wanted seats those in which a process may be started: a program that needs no world runs once, and
        where the script has come to its end nobody follows.
        """
        if self._loopless.verdict.fate is Fate.ENDING:
            return tuple(seat for seat in wanted if seat in self.station.roster.workers)
        needed = self.worlds.members or any(w.stage is not Stage.BOOTING for w in self.station.roster.workers.values())
        done = frozenset[Seat]() if needed else self._loopless.done_alone
        return tuple(seat for seat in wanted if seat not in done) if done else wanted

    def _has_checkpoint(self) -> bool:
        """Whether one is known, of this job or of the one before it."""
        sealing = self.sealing
        return any(each is not None for each in (sealing.stored, sealing.only_here, sealing.newest[0]))

    def _act(self, decision: Decision, wanted: tuple[Seat, ...]) -> None:
        self._again_at = decision.again_at
        if decision.reason != self._reason:
            self._reason = decision.reason
            log.info("%s%s", f"{decision.cause}: " if decision.cause else "", decision.reason)
        if decision.members is None:
            if self._loopless.lasts:
                return
            if self.custodian.holds_back:  # a wait of its own, which has an end
                self._patience.enough()
            now, short = self.station.now(), self._patience.short(decision, wanted)
            if short is None or not self.custodian.awaits(now):  # what is saved is to be the newest
                self._end_for(self._bedtime.look(now, short=short))
            if not self._bedtime.going:
                self._end_for(self._resuming.explained(self._patience.lost(decision, wanted)))
            return
        limit = self.station.rules.reset_limit
        if limit is not None and self.worlds.begun and self.worlds.changes >= limit:
            self.end(JobFailed(f"the world would change for the {limit + 1}th time; --reset-limit is {limit}"))
            return
        self._patience.enough()
        self._bedtime.rise()
        self.engine.begun(self.station.now())
        self.worlds.change(decision)
        self._changed()

    def _next_look(self, now: float) -> float:
        station = self.station
        self.calm = not self._held and self.worlds.formed and self.worlds.standing
        if self._held:
            return now + LOOK_S
        pause = min(CALM_S, CALM_EACH_S * len(station.roster.workers)) if self.calm else 0.0
        times = [now + max(LOOK_S, pause), self._again_at, self.worlds.next_look()]
        times += [
            self.sealing.next_look(now),
            self._resuming.next_look(),
            self._bedtime.next_look(),
            self._last_words.until,
            self.engine.next_look(),
            self.custodian.next_look(),
            self._call_at,
        ]
        times += [station.rendezvous.next_due(), self.faults.ledger.next_release(now)]
        times += [at for worker in station.roster.workers.values() if (at := worker.stopping_at) is not None]
        # What was due has been seen to just now, or cannot be: to look again at once would be to look all the time.
        return min(time for time in times if time is not None and time > now)

    # --- events: hosts and agents

    def hosts_changed(self, hosts: HostSet, departing: Mapping[str, tuple[str, float | None]] | None = None) -> None:
        """A new list of hosts was accepted. ``departing``: by host, why it goes, and when (mono) if that is known."""
        departing = departing or {}
        self._emptied = not hosts and not departing and bool(self.station.roster.workers)
        if self._emptied:
            log.warning("a list without any host was published; the hosts known so far are kept while they work")
            return
        self.fleet.publish(hosts)
        self._notices.published(departing)

    def agent_joined(self, host: str, hello: Mapping[str, Any]) -> None:
        """An agent has come, or come back; it says what it has."""
        ended = self.fleet.joined(host, hello)
        self._notices.joined(host, hello)
        for worker, code in ended:
            self._exited(worker, {"code": code})  # its end was not told
        self.sealing.came(host)
        self.custodian.came(host)
        self.back.came(host)
        self.farewell.came(host)

    def agent_lost(self, host: str, reason: str) -> None:
        """There is no connection to an agent any more. It may come back; its silence is what counts."""
        for part in (self._resuming, self.sealing, self._bedtime, self.custodian):
            part.lost(host)  # also of one that was cut off: nobody waits for its answers
        agent = self.station.roster.agents.get(host)
        if agent is None:
            return
        log.info("connection to %s lost: %s", host, reason)
        agent.joined = False
        self.station.roster.commits.lost(host, heard=agent.heard, why=reason)
        if agent.finishing and not self.station.roster.on(host):
            self.station.roster.commits.ended(host, "its agent has ended")
            del self.station.roster.agents[host]

    def launch_ended(self, host: str, code: int, remark: str) -> None:
        """The command that started an agent has ended. That is a fault if the agent never came."""
        agent = self.station.roster.agents.get(host)
        if agent is None:
            return
        if code == 0:  # one that hands over to an agent that lives ends well
            self.back.handed_over(host)
            return
        if agent.heard:
            if not agent.joined and code != SSH_FAILED:  # a connection that broke says nothing about the agent
                self.faults.first = self.faults.first or f"the agent on {host} ended: {remark or f'exit code {code}'}"
                why = f"its agent ended with exit code {code}"
                self.station.roster.commits.ended(host, why)
                self.fleet.cut_off(agent, why, blame=self.outcome is None)
            return
        detail = remark or f"exit code {code}"
        if self.back.failed(host, detail):
            return
        del self.station.roster.agents[host]
        log.warning("no agent could be started on %s: %s", host, detail)
        self.faults.first = self.faults.first or f"no agent could be started on {host}: {detail}"
        if not self._held:
            tried_s = self.station.now() - agent.since
            self.faults.strike(Cause.UNREACHABLE, agent.host, detail=detail, tried_s=tried_s)

    def agent_ended(self, host: str, code: int, remark: str) -> None:
        """What ends a host's agent without a connection has ended; with 0 there is no agent any more."""
        self.farewell.answered(host, well=code == 0, why=remark or f"exit code {code}")

    def overslept(self, seconds: float) -> None:
        """The launcher itself stood still for so long: stopped, paused with its machine, or held up by a disk."""
        log.warning("the launcher itself stood still for %.1f s", seconds)
        self.fleet.overslept(seconds)
        self.custodian.overslept(seconds)
        self._laggards.pause()

    def ways_changed(self, host: str | None = None) -> None:
        """Processes, of one host or all, may have to find their peers in another way from the next world on."""
        self.worlds.tell_ways(host)

    def expect(self, hosts: Iterable[Host], *, until: float) -> None:
        """Another launcher had agents on these hosts: they are waited for, until ``until`` (mono) at most."""
        self.back.expect(hosts, until=until)

    # --- events: processes

    def news(self, host: str, news: Mapping[str, Any]) -> None:
        """An agent says something."""
        agent = self.station.roster.agents.get(host)
        if agent is None:
            return
        agent.heard = self.station.now()
        if news.get("event") == "beats":
            self._beats(agent, news.get("slots"), part=news.get("part") is True)
            return
        parts = (self._notices, self.sealing, self._resuming, self._bedtime, self.custodian)
        if any(part.take(agent, news) for part in parts):
            return
        self._note_held(agent, news)
        handler = _NEWS.get(str(news.get("event")))
        worker = self.station.roster.of(host, news.get("slot"), news.get("life"))
        if handler is not None and worker is not None:
            handler(self, worker, news)

    def _note_held(self, agent: Agent, news: Mapping[str, Any]) -> None:
        """What a slot's memory holds once its process, or an errand's, has ended, or it was given back."""
        slot, event, slots, known = news.get("slot"), news.get("event"), news.get("slots"), self.station.roster.commits
        if not agent.joined:
            return
        host = agent.host.name
        if event == "forgotten" and isinstance(slot, int):
            known.emptied(Seat(host, slot))
        elif event == "held" and isinstance(slots, dict):
            for number, held in slots.items():
                if (seat := seat_of(host, number)) is not None:
                    known.newer(seat, commit_holders.read(held), agent=agent.itself)
        elif "held" in news and isinstance(slot, int):
            known.newer(Seat(host, slot), commit_holders.read(news["held"]), agent=agent.itself)

    def _beats(self, agent: Agent, slots: Any, *, part: bool) -> None:
        # There may be a thousand a second of these. Those that tell of some only say nothing about who is not named.
        host, workers = agent.host.name, self.station.roster.workers
        agent.beats_at = agent.beats_at if part else agent.heard
        for number, entry in slots.items() if isinstance(slots, dict) else ():
            seat = seat_of(host, number)
            worker = None if seat is None else workers.get(seat)
            if worker is None or not isinstance(entry, dict) or entry.get("life") != worker.life.number:
                continue
            worker.named_at = agent.heard
            age, beat = entry.get("age"), entry.get("beat")
            if isinstance(beat, dict):
                worker.silent_s = seconds(age) or 0.0
                take_beat(worker, beat)
                worker.agreed_when_beating = worker.agreed
                self.station.roster.remember(worker)

    def _said(self, worker: Worker, news: Mapping[str, Any]) -> None:
        message = news.get("message")
        if isinstance(message, dict):
            _SAID.get(message.get("say"), _noted)(self, worker, message)

    def _parked(self, worker: Worker, _: Mapping[str, Any]) -> None:
        if worker.stage is not Stage.BOOTING:
            return
        worker.stage, worker.since = Stage.PARKED, self.station.now()
        self.station.record("parked", host=worker.seat.host, slot=worker.seat.slot)

    def _entered(self, worker: Worker, message: Mapping[str, Any]) -> None:
        # Said of one world, this may come when the next one forms already. (A process that knows no number is in it.)
        generation = message.get("generation") or self.station.generation
        worker.failure = None  # of a program that ran before
        if isinstance(generation, int) and worker.generation < generation <= self.station.generation:
            worker.generation, worker.since = generation, self.station.now()
            self.worlds.begun = True

    def _worker_record(self, worker: Worker, message: Mapping[str, Any]) -> None:
        fields, event = message.get("fields"), message.get("event")
        if not isinstance(fields, dict) or not isinstance(event, str):
            return
        own = {key: value for key, value in fields.items() if key not in _NOT_THEIRS}
        try:
            self.station.journal.record(event, generation=worker.generation, **{"host": worker.seat.host, **own})
        except ValueError as error:
            log.warning("%s said something that is no event: %s", worker.seat, error)
        if event == "synced":
            worker.agreed = worker.generation
        elif event == "rolled_back":
            self.worlds.accounts.rolled_back(own.get("steps_lost"))

    def _asked(self, worker: Worker, news: Mapping[str, Any]) -> None:
        try:
            body = base64.b64decode(news.get("body") or "", validate=True)
            question = Question(worker.life, int(news["id"]), str(news["method"]), str(news["path"]), body)
        except (binascii.Error, KeyError, TypeError, ValueError):
            log.warning("%s asked something that is no question", worker.seat)
            return
        if self.station.rendezvous.repeats(question):
            self.worlds.name_world_again(worker)
        self.station.answer(self.station.rendezvous.ask(question, self.station.now()))
        if worker.leaving is not None and worker.life in self.station.rendezvous.waiting:
            worker.stopping_at = self.station.now()  # it is out, and no answer says so without aborting it

    def _unasked(self, worker: Worker, news: Mapping[str, Any]) -> None:
        if isinstance(number := news.get("id"), int):
            self.station.rendezvous.withdraw(worker.life, number)

    def _exited(self, worker: Worker, news: Mapping[str, Any]) -> None:
        code = code if isinstance(code := news.get("code"), int) else 1
        station, members = self.station, self.worlds.members
        del station.roster.workers[worker.seat]
        station.roster.ended[worker.seat] = worker.life.number
        station.rendezvous.ended(worker.life)
        member = worker.life in members
        if member and worker.generation < station.generation:
            station.answer(station.rendezvous.give_up())  # whoever waits for its addresses waits in vain
        found = ending(
            code,
            done=worker.done,
            told_to_leave=worker.leaving is not None,
            going=station.going(worker.seat.host),
            peer_lost=member and len(station.roster.present(members)) < len(members) - 1,
            oom=bool(news.get("oom")),
            warned=worker.warned,
        )
        found = self.engine.judged(worker, found, code)
        cause = worker.killed or found.cause
        how = f"{found.text}: {said}" if isinstance(said := news.get("reason"), str) else found.text
        why = how if worker.killed is None else f"{worker.killed}: killed by the launcher"
        place = {"host": worker.seat.host, "slot": worker.seat.slot}
        station.record("exited", **place, code=code, cause=str(cause), reason=why)
        self._loopless.ended(worker, cause, how, code)
        self._laggards.ended(worker, well=worker.done or (cause is Cause.LEFT and code == 0))
        if worker.done:
            self._finishing = True
            if code and worker.killed is None:
                self.end(JobFailed(f"{worker.seat} ended with exit code {code} after training was done"))
            elif 0 < worker.generation == self._failed[0] and not self._others_finish(worker):  # the last world's
                self.end(JobFailed(f"{self._failed[1]}, before its training was done; that of others is"))
        elif self._loopless.verdict.fate in (Fate.ENDING, Fate.DONE, Fate.FAILED):
            return  # the last one of them tells
        elif cause is Cause.LEFT:
            self.fleet.rest(worker.seat)
            self._end_for(self.faults.left(worker, found.text, members=members))
        elif self._finishing:
            if member and (cause.fault or cause is Cause.PEER_LOST) and not self._others_finish(worker):
                self.end(JobFailed(f"{worker.seat} {how}, before its training was done; that of others is"))
        elif cause.fault:
            # Where some are done, others that are not do the last steps without it.
            if not (any(each.done for each in station.roster.present(members)) and self._others_finish(worker)):
                told = "" if worker.failure is None else f": {worker.failure[1]}"
                self._failed = worker.generation, f"{worker.seat} {how}{told}"
            self.fleet.recovering.add(worker.seat.host)
            self._end_for(self.faults.failed(worker, cause, how, members=members))

    def _others_finish(self, worker: Worker) -> bool:
        """Whether other members that are not done yet do the last steps without this one."""
        return any(not each.done and each is not worker for each in self.station.roster.present(self.worlds.members))

    # --- the end

    def end(self, why: JobFailed) -> None:
        """End everything, with this outcome; the first one holds. Told again: at once.

        Somebody who ends it from outside means to lose nothing: what was trained is made durable first.
        """
        if not self._ending and self._last_words.hold(why):
            return
        if self.outcome is None:
            self.outcome = why
        else:
            for worker in self.station.roster.workers.values():
                self.fleet.kill(worker, Cause.TOLD)
            self.farewell.hurry()

    def _end_for(self, why: JobFailed | None) -> None:
        if why is not None:
            self.end(why)


_NOT_THEIRS: Final = frozenset({"t", "mono", "at_mono", "generation", "event", "dropped"})
"""Fields of a journal line that no process writes, and what else the journal is told by name."""

_NEWS: Final[Mapping[str, Callable[[Driver, Worker, Mapping[str, Any]], None]]] = {
    "started": lambda driver, worker, news: driver.fleet.started(worker, news.get("pid")),
    "said": Driver._said,
    "asked": Driver._asked,
    "unasked": Driver._unasked,
    "exited": Driver._exited,
    "not_started": lambda driver, worker, news: driver._exited(worker, {**news, "code": NOT_STARTED}),
}


def _noted(driver: Driver, worker: Worker, message: Mapping[str, Any]) -> None:
    take_word(worker, message)
    driver.station.roster.remember(worker)


_SAID: Final[Mapping[Any, Callable[[Driver, Worker, Mapping[str, Any]], None]]] = {
    "parked": Driver._parked,
    "entered": Driver._entered,
    "record": Driver._worker_record,
    "kept": lambda driver, worker, message: driver.sealing.kept(worker, message),
    "last": lambda driver, worker, message: driver.sealing.last(worker, message),
    "not_kept": lambda driver, worker, message: driver.sealing.not_kept(worker, message),
    "going_on": lambda driver, worker, message: driver.worlds.accounts.going_on(
        worker.life, worker.generation, message
    ),
}
"""What they say beyond this is only noted."""

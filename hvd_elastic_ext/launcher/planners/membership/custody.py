"""Sees to the newest commit: asks the rules of the same name what may be done, and has it done."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from hvd_elastic_ext.launcher.planners.checkpoints.coordinator import Sealing
from hvd_elastic_ext.launcher.planners.membership.transfers import Transfers
from hvd_elastic_ext.launcher.rules.membership import custody
from hvd_elastic_ext.launcher.rules.membership.custody import FORMS, Act, Facts, Limits, Loss, Stored, Verdict
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.roster import Agent
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

ENDS_S: Final = 5.0
"""How long the end of a process that was killed is waited for; as a rule it is told at once."""
NOTE_S: Final = 1.0
"""How often the newest commit is noted for the next launcher: a loss is told by what was noted last."""
NOTE_EACH_S: Final = 0.002
"""What each slot that holds one adds to that: a note of thousands takes a while."""


class Custodian:
    """See the module's docstring. To be asked at every look.

    ``busy``: whether a host's agent sees to something else (an agent does one errand at a time). ``changed`` is called
    when the next launcher should know of a newer commit.
    """

    def __init__(
        self,
        station: Station,
        fleet: Fleet,
        worlds: Worlds,
        sealing: Sealing,
        *,
        busy: Callable[[str], bool],
        changed: Callable[[], None],
    ) -> None:
        how = station.rules.durability
        self.transfers = Transfers(station, place=None if how is None else how.place)
        self._station = station
        self._fleet = fleet
        self._worlds = worlds
        self._sealing = sealing
        self._busy = busy
        self._changed = changed
        self._noted_at = station.now()
        self._noted: tuple[bool, frozenset[Seat], int, Stored | None, int | None] = (False, frozenset(), 0, None, None)
        self._limits = Limits(station.rules.commit_wait_s)
        self._may_end_since: dict[str, float] = {}
        """Since when an agent would have ended if nobody needed its commit (mono), by host."""
        self._asked_for: set[str] = set()
        """Hosts whose agents would have ended since the last look."""
        self._verdict = FORMS
        self._held_back = False
        self._said = ""

    # --- the look

    def look(self, now: float, decision: Decision, wanted: tuple[Seat, ...]) -> Decision:
        """Have the newest commit brought to those who need it; the decision, or that it has to wait for that."""
        self.transfers.look(now)
        self._held_back = False
        self._may_end_since = {host: at for host, at in self._may_end_since.items() if host in self._asked_for}
        self._asked_for.clear()
        if self._calm:
            self.transfers.cancel()
            self._verdict = FORMS
            return decision
        seats, ready = self._candidates(decision, wanted)
        if not seats and not self._leaves_by():
            self._verdict = FORMS
            return decision
        self._verdict = self._act(now, custody.judge(now, self._facts(seats, ready=ready), self._limits))
        begins = decision.members is not None and not self._anybody_is_in_a_world(decision)
        if begins and self._verdict.act is Act.FORM:
            self.transfers.cancel()  # nobody may write to the memory of who is about to train
        if not begins or self._verdict.act is Act.FORM:
            return decision
        self._held_back = True
        return Decision(None, "", self._verdict.reason, self._verdict.until)

    def note(self, now: float) -> None:
        """Have the next launcher know of newer commits in a while; at once of the first one, of one that is gone, of
        what a holder says that the last launcher had noted, and of what a new world has cost."""
        commits = self._station.roster.commits
        stale = sum(held.stale for held in commits.held.values())
        known = bool(commits.held), frozenset(commits.gone), stale, self._sealing.stored, self._worlds.accounts.untold
        if known != self._noted or (commits.held and now - self._noted_at >= NOTE_S + NOTE_EACH_S * len(commits.held)):
            self._noted_at, self._noted = now, known
            self._changed()

    def may_form(self) -> tuple[bool, Loss | None]:
        """Whether the members of the newest world, all of whom wait for their ranks, may be told them.

        The loss, if the world forms behind a commit that was told once.
        """
        now = self._station.now()
        seats = tuple(life.seat for life in self._worlds.members)
        plain = self._station.roster.commits.plain(seats) and not self._storage_may_be_newer(seats)
        if plain and all(now >= until for until in self._ending().values()):
            self.transfers.cancel()
            self._verdict = FORMS
            return True, None
        verdict = self._act(now, custody.judge(now, self._facts(seats, ready=True), self._limits))
        self._verdict = verdict
        if verdict.act is Act.FORM:
            self.transfers.cancel()
        return verdict.act is Act.FORM, verdict.loss

    def formed(self, loss: Loss | None) -> int | None:
        """A world has formed; how many steps it has to do again, None if no step is known of."""
        progress = self._station.roster.commits.formed([life.seat for life in self._worlds.members])
        self.transfers.formed()
        if loss is None:
            return None if progress is None else progress.lost
        stored = self._sealing.stored
        if stored is not None and stored.commit is not None and (loss.left is None or stored.commit > loss.left[0]):
            self._sealing.stored = None  # it is not there any more, or not whole
        lost = max(loss.steps, 0 if progress is None else progress.lost)
        names, at = ", ".join(loss.holders) or "storage", 0 if loss.left is None else loss.left[1]
        log.warning("%d steps are lost: the newest commit, of step %d, was held by %s; %s. Training goes on after step "
                    "%d", lost, loss.newest[1], names, loss.why, at)  # fmt: skip
        return lost

    def next_look(self) -> float | None:
        """When something may be due (mono)."""
        times = [self._verdict.until, self.transfers.next_look()]
        return min((at for at in times if at is not None), default=None)

    def needs(self, host: str) -> bool:
        """Whether the agent of a host has to stay for what only it holds."""
        now = self._station.now()
        self._asked_for.add(host)
        since = self._may_end_since.setdefault(host, now)
        if self._calm and not self._is_ahead(host) and self._some_stay():
            return not self._heard_since(since)
        heard = {name for name, agent in self._station.roster.agents.items() if agent.heard > since}
        facts = self._facts((), ready=False)
        needed, _ = custody.is_needed(now, host, facts, self._limits, told_at=since, heard=heard)
        return needed

    @property
    def holds_back(self) -> bool:
        """Whether a world would form now but for a commit that is waited for, or on its way."""
        return self._held_back

    def pause(self) -> None:
        """Nothing is decided for now: who may end has had no time to send what it holds."""
        self._may_end_since.clear()

    def overslept(self, seconds: float) -> None:
        """The launcher itself stood still for so long: what it waits for has had no time."""
        self._station.roster.commits.overslept(seconds)
        self.transfers.overslept(seconds)
        self._may_end_since = {host: since + seconds for host, since in self._may_end_since.items()}
        for worker in self._station.roster.workers.values():
            worker.killed_at += seconds if worker.killed is not None else 0.0

    def awaits(self, now: float) -> bool:
        """Whether somebody is waited for who alone holds the newest commit: nothing older may take its place yet."""
        return not self._calm and custody.awaited(now, self._facts((), ready=False), self._limits) is not None

    def noted(self, *, over: bool, well: bool) -> list[dict[str, Any]]:
        """What the next launcher is to know of commits: of a job that is ``over``, and not ``well``, what is lost."""
        commits, durability = self._station.roster.commits, self._station.rules.durability
        if not over:
            return commits.to_json()
        if well or durability is None:
            return []
        stored = self._sealing.stored
        return commits.left_behind(None if stored is None else stored.commit)

    # --- facts

    @property
    def _calm(self) -> bool:
        """A world trains and has agreed on its state: its members hold the newest commit."""
        return self._worlds.standing and self._worlds.formed and self._worlds.settled

    def _is_ahead(self, host: str) -> bool:
        """Whether a host holds what the world that trains has formed behind, and has not made up for yet."""
        commits = self._station.roster.commits
        own = commits.of_host(host)
        theirs = (held for life in self._worlds.members if (held := commits.commit_of(life.seat)) is not None)
        return own is not None and own > max(theirs, default=own)

    def _some_stay(self) -> bool:
        """Whether one of those who train is not about to go, with what it holds."""
        leaves_by = self._leaves_by()
        return any(life.seat.host not in leaves_by for life in self._worlds.members)

    def _heard_since(self, since: float) -> bool:
        """Whether one of those who train has spoken since then: it may be gone with all that it holds."""
        agents = self._station.roster.agents
        members = {life.seat.host for life in self._worlds.members}
        return any((agent := agents.get(host)) is not None and agent.heard > since for host in members)

    def _candidates(self, decision: Decision, wanted: tuple[Seat, ...]) -> tuple[tuple[Seat, ...], bool]:
        """Who forms the next world, or may; and whether they are to form it now."""
        worlds, roster = self._worlds, self._station.roster
        if not worlds.formed:  # :meth:`may_form` is asked when all its members wait for their ranks
            return (), False
        if decision.members is not None:
            return tuple(life.seat for life in decision.members), True
        trains = any(worker.killed is None and worker.stage is Stage.LIVE for worker in roster.workers.values())
        enough = self._station.rules.limits.size(len(wanted), begun=worlds.begun) > 0
        if trains or not enough:
            return (), False
        return tuple(seat for seat in wanted if self._joined(seat.host)), False

    def _anybody_is_in_a_world(self, decision: Decision) -> bool:
        """What these hold is known only when they ask for their ranks; :meth:`may_form` is asked then."""
        workers = self._station.roster.present(decision.members or ())
        return any(worker.stage is Stage.LIVE for worker in workers)

    def _facts(self, seats: Iterable[Seat], *, ready: bool) -> Facts:
        roster = self._station.roster
        members, leaves_by = tuple(seats), self._leaves_by()
        keepers = () if members else self._keepers(leaves_by)
        return Facts(
            roster.commits.holdings(leaves_by),
            members,
            ready,
            frozenset(seat for seat in (*members, *keepers) if self._writable(seat)),
            keepers,
            self._stored(),
            self.transfers.failing,
            self.transfers.loading,
            self.transfers.looked,
            frozenset(seat for seat in roster.workers if not self._is_quiet(seat)),
            self._ending(),
            self.transfers.sending,
            self._sealing.readers,
        )

    def _ending(self) -> dict[Seat, float]:
        """Processes of worlds that were killed, and until when their end is waited for."""
        agents = self._station.roster.agents
        return {
            seat: worker.killed_at + ENDS_S
            for seat, worker in self._station.roster.workers.items()
            if worker.killed is not None and worker.generation and (agent := agents.get(seat.host)) and agent.joined
        }

    def _leaves_by(self) -> Mapping[str, float]:
        """Hosts that will be gone, and when: by a notice, or because they are listed no more."""
        told = dict(self._station.leaves_by)
        for name, agent in self._station.roster.agents.items():
            if name not in self._fleet.hosts or agent.finishing:
                told.setdefault(name, math.inf)
        return told

    def _storage_may_be_newer(self, seats: Iterable[Seat]) -> bool:
        stored, commits = self._stored(), self._station.roster.commits
        own = max((held for seat in seats if (held := commits.commit_of(seat)) is not None), default=None)
        return stored is not None and (own is None or (stored.commit is not None and stored.commit > own))

    def _keepers(self, leaves_by: Mapping[str, float]) -> tuple[Seat, ...]:
        stay = [host for host in self._fleet.hosts if host.name not in leaves_by and self._joined(host.name)]
        return tuple(Seat(host.name, slot) for host in stay for slot in range(host.slots))

    def _joined(self, host: str) -> bool:
        agent = self._station.roster.agents.get(host)
        return agent is not None and agent.joined and not agent.finishing

    def _writable(self, seat: Seat) -> bool:
        return self._is_quiet(seat) and self._joined(seat.host)

    def _is_quiet(self, seat: Seat) -> bool:
        """Whether no process commits into a seat's memory now."""
        worker = self._station.roster.workers.get(seat)
        return worker is None or worker.stage is not Stage.LIVE or worker.life in self._station.rendezvous.waiting

    def _stored(self) -> Stored | None:
        """The newest checkpoint; before the first world, in which hosts load what there is, one that is known of."""
        how = self._station.rules.durability
        if how is None:
            return None
        stored = self._sealing.stored
        if not self._worlds.begun:
            return stored if stored is not None and stored.commit is not None else None
        return stored or Stored(None, 0, how.place)

    # --- acting

    def _act(self, now: float, verdict: Verdict) -> Verdict:
        self._say(verdict)
        if verdict.act not in (Act.SEND, Act.LOAD):
            return verdict
        assert verdict.target is not None
        hosts = {verdict.target.host} | ({verdict.source.seat.host} if verdict.source is not None else set())
        if not self.transfers.may_begin(now) or any(map(self._busy, hosts)):
            return replace(verdict, act=Act.WAIT)
        if verdict.source is not None:
            self.transfers.send(verdict.source, verdict.target)
        else:
            self.transfers.load(verdict.target)
        return verdict

    def _say(self, verdict: Verdict) -> None:
        what = verdict.reason if verdict.until is not None else ""
        named = what.partition(";")[0]
        if named != self._said:
            self._said = named
            if what:
                log.warning("no world is formed yet: %s", what)

    # --- events

    def take(self, agent: Agent, news: Mapping[str, Any]) -> bool:
        """Take in what an agent says of an errand of ours; False if it is about something else."""
        return self.transfers.take(agent, news)

    def came(self, host: str) -> None:
        """An agent has come, or come back."""
        self.transfers.came(host)

    def lost(self, host: str) -> None:
        """The connection to a host was lost."""
        self.transfers.lost(host)

"""The whole state of a running job as one value, and how planners and reducers request actions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.engines import ENGINES
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.pace import Lines
from hvd_elastic_ext.launcher.checkpoints.attempt import Checkpoints, Last
from hvd_elastic_ext.launcher.checkpoints.commit_interval import CommitInterval
from hvd_elastic_ext.launcher.checkpoints.interval import Cost
from hvd_elastic_ext.launcher.checkpoints.restore import Restore
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import (
    BeforeExit,
    BeforePreemption,
    FinalCheckpoint,
    Saving,
)
from hvd_elastic_ext.launcher.custody.custody import Custody
from hvd_elastic_ext.launcher.custody.transfers import Transfers
from hvd_elastic_ext.launcher.departures.clean_exits import CleanExits
from hvd_elastic_ext.launcher.departures.notices import Notices, Preemption, leaves_by
from hvd_elastic_ext.launcher.departures.shutdown import Outcome, Shutdown
from hvd_elastic_ext.launcher.driver import actions
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.driver.roster import JOIN_S, SEND_S, Roster
from hvd_elastic_ext.launcher.health.launcher_pauses import LauncherPauses
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.health.link_loss import LinkLoss
from hvd_elastic_ext.launcher.health.liveness import Liveness
from hvd_elastic_ext.launcher.health.loopless import Loopless
from hvd_elastic_ext.launcher.health.pace import Pace
from hvd_elastic_ext.launcher.health.strikes import Faults
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.adoption import Adoption
from hvd_elastic_ext.launcher.membership.calls import Calls
from hvd_elastic_ext.launcher.membership.forming import World
from hvd_elastic_ext.launcher.membership.host_list import Fleet
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import Restarting
from hvd_elastic_ext.launcher.membership.rendezvous import NO_ROOM, TOO_LARGE, Rendezvous
from hvd_elastic_ext.launcher.membership.resizes import Resize
from hvd_elastic_ext.launcher.membership.world_change import Situation, WorldDecision
from hvd_elastic_ext.launcher.scaling.scaling import Scaling

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.checkpoints.restore import Loading
    from hvd_elastic_ext.launcher.custody.custody import Stored
    from hvd_elastic_ext.launcher.custody.holders import NotedCommit
    from hvd_elastic_ext.launcher.driver.options import JobOptions
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, RendezvousAnswer, Seat

log = logging.getLogger(__name__)


SYNC_S: Final = 10.0
"""Members without an elastic loop count as agreed on the state after this time in a world: they cannot say so."""


@dataclass
class JobState:
    """All that the driver knows and has decided. Times are monotonic seconds, as :attr:`now`.

    Reducers change it by events, planners by decisions. Both add their actions to :attr:`to_do`. Nothing else changes
    it, and nothing else is kept between two events.
    """

    options: JobOptions
    now: float
    """When the newest event happened, the look began, silence was judged, or the state was saved."""
    generation: int
    """Number of the newest world, whether it has formed or not."""
    helper_number: int
    """Number of the last helper. The first one is random, so that answers to another launcher do not match."""

    faults: Faults
    short_since: float | None
    """Since when there are too few processes (mono); None while there are enough."""
    adoption: Adoption
    custody: Custody
    liveness: Liveness
    pace: Pace
    loopless: Loopless
    checkpoints: Checkpoints
    cost: Cost
    commit_interval: CommitInterval
    restore: Restore
    final_checkpoint: FinalCheckpoint
    restarting: Restarting
    scaling: Scaling
    has_trained: bool
    """Under an earlier launcher, or before it slept."""

    roster: Roster = field(default_factory=Roster)
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    fleet: Fleet = field(default_factory=Fleet)
    world: World = field(default_factory=World)
    resize: Resize = field(default_factory=Resize)
    log_wait: Lines | None = None
    """The lines about what the job waits for; None if it waits for nothing."""
    log_beside: dict[str, Lines] = field(default_factory=dict)
    """By host, the lines about its start beside the training, which takes long."""
    log_needed: dict[str, Lines] = field(default_factory=dict)
    """By host that is not listed any more, and needed, the lines about it."""
    log_lacking: Lines | None = None
    """The lines about hosts blocked for a time, or about a newest list that is refused, while the job trains."""
    transfers: Transfers = field(default_factory=Transfers)
    calls: Calls = field(default_factory=Calls)
    notices: Notices = field(default_factory=Notices)
    preemption: Preemption = field(default_factory=Preemption)
    link_loss: LinkLoss = field(default_factory=LinkLoss)
    launcher_pauses: LauncherPauses = field(default_factory=LauncherPauses)
    saving: Saving = field(default_factory=Saving)
    before_preemption: BeforePreemption = field(default_factory=BeforePreemption)
    before_exit: BeforeExit = field(default_factory=BeforeExit)
    shutdown: Shutdown = field(default_factory=Shutdown)
    outcome: Outcome = field(default_factory=Outcome)
    clean_exits: CleanExits = field(default_factory=CleanExits)

    helpers: dict[Purpose, dict[str, int]] = field(default_factory=lambda: {purpose: {} for purpose in Purpose})
    """For each purpose, the hosts that have to answer, and the number of their helper. Its planner removes a host
    that is not awaited any more; an answer of any other helper is ignored.
    """
    wanted: tuple[Seat, ...] = ()
    """Seats that should have a process, by the newest look."""
    spares: tuple[Seat, ...] = ()
    """Other seats that should have a process, which no world needs now, by the newest look."""
    decision: WorldDecision = field(default_factory=lambda: WorldDecision(None, "", ""))
    """Which processes should form the next world now, by the newest look."""
    decisions_held: bool = False
    """The launcher has lost its link, or waits for processes that it takes over: planners decide nothing."""
    excessive: set[ProcessId] = field(default_factory=set)
    """Living processes with rendezvous values that were refused as too large, which was logged."""
    to_do: list[actions.Action] = field(default_factory=list, compare=False, repr=False)
    """Actions that the executor has not taken yet."""

    @classmethod
    def new(
        cls,
        options: JobOptions,
        now: float,
        *,
        helper_number: int,
        ledger: HealthLedger | None = None,
        generation: int = 0,
        expects: str | None = None,
        commits: Iterable[NotedCommit] = (),
        stored: Stored | None = None,
        scaling: Scaling | None = None,
        refused: Mapping[int, str] = MappingProxyType({}),
        recorded: tuple[Iterable[Seat], int] | None = None,
    ) -> JobState:
        """The state of a job at the start of its launcher.

        ``generation``: of the newest world that an earlier launcher had. ``expects``: a checkpoint that is known to
        have been made. ``commits``: what an earlier launcher noted of those in memory; ``stored``: of the newest one
        on storage. ``scaling``: what was asked for and learned. ``refused``: calls whose result was not kept, and why.
        ``recorded``: seats with what collectives returned at the newest start, and the generation of their world.
        """
        cadence = options.commit_every
        job = cls(
            options,
            now,
            generation,
            helper_number,
            faults=Faults(ledger or HealthLedger()),
            roster=Roster(join_s=SEND_S if options.send_code else JOIN_S),
            short_since=now,
            adoption=Adoption(now),
            custody=Custody(now),
            liveness=Liveness(now, now, generation),
            pace=Pace(now),
            loopless=Loopless(generation),
            checkpoints=Checkpoints(Last(now, 0), only_here=expects, stored=stored),
            cost=Cost(now),
            commit_interval=CommitInterval(1 if cadence is None or cadence.steps is None else cadence.steps, now),
            restore=Restore(expects if options.durability is not None else None),
            final_checkpoint=FinalCheckpoint(options.durability is None),
            restarting=Restarting(generation),
            scaling=scaling or Scaling(now),
            has_trained=generation > 0,
            calls=Calls(refused=dict(refused)),
        )
        job.roster.commits.expect(commits, now=now)
        if recorded is not None:
            job.calls.recorded_in(*recorded)
        return job

    # --- derived
    # Conditions of the newest world, each stronger than the one before:
    # world.begun: some world of the job has formed; it never becomes false again.
    # formed: its members have their ranks, or there is no world.
    # standing: it has all its members, and none has asked for another world.
    # steady: formed and standing, and no decisions are held.
    # settled: formed, and all members are in it and have agreed on the state.
    # custody.is_in_sync: standing, formed and settled: its members hold the newest commit.

    @property
    def ending(self) -> bool:
        """Whether the job is stopping: training is done, or it was told to stop or has failed."""
        return self.outcome.failure is not None or self.outcome.finishing

    @property
    def in_place(self) -> bool:
        """Whether processes survive a change of their world."""
        return ENGINES[self.options.engine].in_place

    @property
    def formed(self) -> bool:
        """Whether the members of the newest world have their ranks."""
        return not self.world.members or self.rendezvous.formed

    @property
    def standing(self) -> bool:
        """Whether there is a world with all of its members, and none of them asks for another one."""
        members = self.world.members
        if not members or len(self.roster.present(members)) < len(members):
            return False
        asked_again = self.rendezvous.asked_again  # usually none
        return not asked_again or asked_again.isdisjoint(members)

    @property
    def settled(self) -> bool:
        """Whether all members of the newest world are in it and have agreed on the state."""
        generation, present = self.generation, self.roster.present(self.world.members)
        if not self.formed or len(present) < len(self.world.members):
            return False
        undecided = [worker for worker in present if worker.agreed < generation or worker.generation < generation]
        if any(worker.generation < generation for worker in undecided):
            return False
        if not undecided:
            return True
        # Members with an elastic loop report it themselves, however long the sync takes, and what comes before.
        latest = self.now - SYNC_S
        loops = self.loopless.loops or any(worker.loops for worker in present)
        return not loops and all(worker.since <= latest for worker in undecided)

    @property
    def situation(self) -> Situation:
        """The input of :func:`world_change.decide`."""
        return self.situation_for(self.wanted)

    def situation_for(self, wanted: tuple[Seat, ...]) -> Situation:
        """The same with other wanted seats."""
        processes = self.roster.processes(broken=self.rendezvous.asked_again, leaves_by=leaves_by(self))
        for seat in calls.between_calls(self) & processes.keys():
            processes[seat] = processes[seat]._replace(done=False)
        if (gate := calls.gate_of(self)) is not None:
            stages = {seat: gate.stage(seat, each.stage) for seat, each in processes.items()}
            wanted = tuple([seat for seat in wanted if seat not in stages or stages[seat] is not None])
            processes = {
                seat: each if stage is each.stage else each._replace(stage=stage)
                for seat, each in processes.items()
                if (stage := stages[seat]) is not None
            }
        return Situation(
            wanted,
            processes,
            members=self.world.members,
            formed=self.formed,
            settled=self.settled,
            begun=self.world.begun,
            waiting=self.rendezvous.waiting,
            finishing=self.outcome.finishing,
        )

    def rank(self, life: ProcessId) -> int | None:
        """The rank of a process; before the first world, its planned rank. None if it has none."""
        place = self.rendezvous.place(life)
        if place is not None or self.world.begun:
            return None if place is None else place.rank
        worker = self.roster.alive(life)
        return None if worker is None else worker.planned

    @property
    def steady(self) -> bool:
        """Whether a world stands, and nothing has to be done about it."""
        return not self.decisions_held and self.formed and self.standing

    @property
    def transferring(self) -> frozenset[str]:
        """Hosts of the transfer under way: an agent runs one helper at a time."""
        return frozenset(() if self.transfers.current is None else self.transfers.current.hosts)

    @property
    def busy(self) -> frozenset[str]:
        """Hosts with agents that may run a helper for a checkpoint."""
        attempt = self.checkpoints.attempt
        loading = (host for host in self.restore.hosts if (each := self.loading_of(host)) and each.under_way)
        return frozenset((*(() if attempt is None else attempt.hosts), *self.helpers[Purpose.SAVE], *loading))

    @property
    def helping(self) -> frozenset[str]:
        """Hosts that cannot take part in a transfer of results now."""
        return self.busy | self.transferring

    def loading_of(self, host: str) -> Loading | None:
        """How far the present agent of a host has loaded the newest checkpoint; None without an order to load."""
        loading, agent = self.restore.hosts.get(host), self.roster.agents.get(host)
        return loading if loading is not None and agent is not None and agent.identity == loading.agent else None

    # --- actions

    def fail(self, why: JobFailed | None) -> None:
        """Have the job end with ``why``, unless that is None or it ends already."""
        self.outcome.failure = self.outcome.failure or why

    def take_actions(self) -> list[actions.Action]:
        """The actions since they were taken last, in their order."""
        taken, self.to_do = self.to_do, []
        return taken

    def do(self, action: actions.Action) -> None:
        """Request an action."""
        self.to_do.append(action)

    def save(self) -> None:
        """Request to save the state for the next launcher."""
        self.do(actions.Save())

    def record(self, event: str, **fields: Any) -> None:
        """Request a line of the journal."""
        self.do(actions.Record(event, self.generation, fields))

    def is_connected(self, host: str) -> bool:
        """Whether a host's agent is connected, as far as is known."""
        agent = self.roster.agents.get(host)
        return agent is not None and agent.joined

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        """Give a host's agent an order; False if it is not connected."""
        self.do(actions.Send(host, order))
        return self.is_connected(host)

    def order(self, worker: Worker, do: str, **more: Any) -> bool:
        """Give an order about a process to its agent; False if that is not connected."""
        return self.send(worker.seat.host, {"do": do, "slot": worker.seat.slot, **more})

    def tell(self, worker: Worker, what: str, **more: Any) -> None:
        """Send a message to a process."""
        (host, slot), number = worker.life
        self.send(host, {"do": "tell", "to": {str(slot): number}, "message": {"tell": what, **more}})

    def tell_all(self, workers: Iterable[Worker], what: str, **more: Any) -> None:
        """Send one message to many processes: there may be thousands."""
        if processes := tuple([worker.life for worker in workers]):
            self.do(actions.Tell(processes, {"tell": what, **more}))

    def answer(self, answers: Iterable[RendezvousAnswer]) -> None:
        """Send the answers of the rendezvous."""
        for answer in answers:
            life = answer.life
            if answer.status in (TOO_LARGE, NO_ROOM) and life not in self.excessive:
                self.excessive = {each for each in self.excessive if self.roster.alive(each)} | {life}
                log.warning("%s puts more into the rendezvous than Horovod ever does: refused", life.seat)
            self.do(actions.Send(*actions.answer_order(answer)))

    def run_helper(self, purpose: Purpose, host: str, slots: Sequence[int], request: Mapping[str, Any]) -> bool:
        """Have a host's agent run a helper with the memory of ``slots``; False if it is not connected."""
        self.helper_number += 1
        if purpose is not Purpose.PAST:
            self.helpers[Purpose.PAST].pop(host, None)  # an agent runs one helper at a time
        self.helpers[purpose][host] = self.helper_number
        order = {"do": "helper", "id": self.helper_number, "slots": slots, "request": request}
        self.do(
            actions.SendCommit(host, order) if request["do"] in ("send", "send_past") else actions.Send(host, order)
        )
        return self.is_connected(host)

"""What the launcher knows of agents and processes. Facts only; the driver updates them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.pace import RECENT
from hvd_elastic_ext.launcher.rules.membership.next_world import Process, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import ProcessId, Seat
from hvd_elastic_ext.launcher.state.commit_holders import Holders, whole_number, whole_numbers

JOIN_S: Final = 60.0
"""How long an agent may take from its start to its first message."""
JOIN_EACH_S: Final = 1.0
"""What each agent that is starting adds to that: only some are started at a time."""
RETURN_S: Final = 7.0
"""Longest time for agents to connect again once they can: they try every 5 s."""
USAGE: Final = ("cpu", "gpu", "memory")
"""What agents tell of how busy their hosts are."""
MOST_SIGNALS: Final = 16
"""Signals that a message may hold."""
GO_S: Final = 60.0
"""Longest time from the order to go live to a newcomer's request for its rank."""


class LaunchEnd(NamedTuple):
    """The command that started an agent has ended ``at`` a time (mono); ``detail`` says how."""

    at: float
    code: int
    detail: str


@dataclass(slots=True)
class Agent:
    """The agent of a host. ``heard``: when its last message came (mono). ``facts``: what it reports of its machine."""

    host: Host
    since: float
    joined: bool = False
    heard: float = 0.0
    heartbeats_at: float = 0.0
    """When its last complete heartbeat message came (mono)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    identity: str = ""
    """Identifies the agent process; empty until it has joined."""
    inherited_at: float = -math.inf
    """When it was last taken for the agent of its pod's successor, or of its pod's next container (mono)."""
    unlisted_at: float = -math.inf
    """When the newest list without its host came (mono)."""
    finishing: bool = False
    """It starts no more processes: it got a signal, or was told to end."""
    dismissed: bool = False
    """It was told to end."""
    leaves_by: float | None = None
    """When it or its host will be gone, by its own report (mono; infinite if unknown); None without notice."""
    notice_reason: str | None = None
    """Why its host has notice, by a notice file there; the notice may be withdrawn."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """How busy its host is: :data:`USAGE`, shares from 0 to 1."""
    gpu_unknown: str = ""
    """Why it cannot tell that of its GPUs; "" if it can, or has none."""
    launch_ended: LaunchEnd | None = None
    """Its launch ended with an error while it was connected."""
    warm: bool = False
    """It has had a template, which was logged."""


@dataclass(slots=True)
class Worker:
    """One training process."""

    life: ProcessId
    host: Host
    stage: Stage
    since: float
    planned: int = 0
    """The rank that user code sees until there is a real one."""
    local_rank: int = 0
    """The local rank that it was started with, by which it has chosen its device."""
    created: float = field(init=False)
    """When it was started, or taken over."""
    live_at: float | None = None
    """When it first went live."""
    generation: int = 0
    """Of the newest world that it has entered."""
    agreed: int = 0
    """Of the newest world in which it has agreed on the state."""
    started: bool = False
    pid: int | None = None
    silent_s: float = 0.0
    """Seconds without a heartbeat, by its agent's last report."""
    in_heartbeat_at: float | None = None
    """When its agent's last heartbeat message named it (mono). None: not yet, or not since its agent joined again."""
    holds: tuple[int, int, int] | None = None
    step: int = 0
    step_s: float | None = None
    stepped_at: float | None = None
    """When its last step ended, by a clock of its own."""
    progress: int = 0
    """Grows with all that its main thread does."""
    moved_at: float = 0.0
    """When it sent the heartbeat in which its progress was new (mono); 0: not since it entered its world."""
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Seconds between its latest steps, waits included, as its heartbeats tell: of several steps between two heartbeats
    the mean."""
    waiting: bool = False
    """Its main thread waited for other ranks at its last heartbeat."""
    waits_since: float = math.inf
    """When it sent the first of the latest heartbeats that all say so (mono); infinite if the last one does not."""
    waits_until: float = 0.0
    """When it sent the last heartbeat that says so (mono)."""
    every: int | None = None
    """It commits at every N-th call of ``commit()``; None if unknown, or if its State is not ours."""
    commit_s: float | None = None
    """Seconds that its last commit took."""
    call_s: float | None = None
    """Seconds from one call of ``commit()`` to the next, without what the commit takes."""
    observed: Mapping[str, float] = field(default_factory=dict)
    """What its script has observed, by its last heartbeat."""
    loops: bool = False
    """It has begun an elastic training function."""
    agreed_at_heartbeat: int = 0
    """:attr:`agreed` at its last heartbeat, which would have named a commit of that world."""
    done: bool = False
    failure: tuple[str, str, str] | None = None
    """What its training function raised: a digest, the error, the traceback."""
    failed_at: float = 0.0
    """When that was heard (mono)."""
    leaving: str | None = None
    """Why it was told to leave; None if it was not."""
    leaving_since: float = 0.0
    """When it was told to (mono)."""
    reclaimed: bool = False
    """It was told that its host, or the whole job, will be preempted."""
    warned: bool = False
    """Its script has seen, by ``check_alive()``, that it has to leave, and may end by itself."""
    stopping_at: float | None = None
    """When it is killed if it has not left; infinite while no other process waits for it."""
    stop_again_at: float | None = None
    """When it is told again to end: orders get lost."""
    killed: Cause | None = None
    """Why it was killed."""
    killed_at: float = 0.0
    """When it was (mono)."""
    fence_at: float | None = None
    """When its connections are cut if it has not asked for the next world by itself."""
    fenced_at: float | None = None
    """When its connections were cut."""
    told_at: float | None = None
    """When it was last called to the newest world."""

    def __post_init__(self) -> None:
        self.created = self.since

    @property
    def seat(self) -> Seat:
        """The host and slot in which it runs."""
        return self.life.seat

    @property
    def keeps_nothing(self) -> bool:
        """Whether it has trained without a commit: its state ends with it."""
        trained = self.agreed_at_heartbeat > 0 or (self.generation > 0 and self.step > 0)
        return trained and self.holds is None and self.every is None

    @property
    def has_state(self) -> bool:
        """Whether it has a trained state: it has agreed on one with others, or has trained itself."""
        return self.killed is None and (self.agreed > 0 or (self.generation > 0 and self.step > 0))

    @property
    def commits_per_s(self) -> float:
        """Commits per second if every call of ``commit()`` commits; 0 if unknown."""
        return 0.0 if self.call_s is None else 1.0 / max(self.call_s + (self.commit_s or 0.0), 1e-6)

    def tried_s(self, now: float) -> float:
        """Seconds from its start until it went live, or until ``now``."""
        return (now if self.live_at is None else self.live_at) - self.created


@dataclass(slots=True)
class Roster:
    """All agents by host, all living processes by seat."""

    agents: dict[str, Agent] = field(default_factory=dict)
    _workers: dict[Seat, Worker] = field(default_factory=dict)
    lives: dict[Seat, int] = field(default_factory=dict)
    """The highest life of each seat so far, under all its agents. The next life is one more."""
    ended: dict[Seat, int] = field(default_factory=dict)
    """The newest life of each seat with an end that was reported to this launcher."""
    commits: Holders = field(default_factory=Holders)
    """Commits in the agents' memory."""
    _by_host: dict[str, dict[int, Worker]] = field(default_factory=dict, compare=False, repr=False)
    """The same processes: to ask for those of one host must not cost a look at thousands."""
    failed: dict[ProcessId, Worker] = field(default_factory=dict, compare=False, repr=False)
    """Living processes that have reported an error of their script."""
    _present: tuple[tuple[ProcessId, ...], tuple[Worker, ...]] | None = field(default=None, compare=False, repr=False)
    """The last answer of :meth:`present`, until a process is added or removed."""

    _oldest: float = field(default=-math.inf, compare=False, repr=False)
    """No agent that was heard was heard last before that."""
    beaten: dict[str, None] = field(default_factory=dict, compare=False, repr=False)
    """Hosts whose agents have told of all their processes since :mod:`silence` looked at it."""
    _saying: tuple[tuple[ProcessId, ...], tuple[Worker, ...]] | None = field(default=None, compare=False, repr=False)
    _ids: tuple[tuple[Worker, ...], int, frozenset[int]] | None = field(default=None, compare=False, repr=False)
    """The last answer of :meth:`present_ids`."""
    _filled: frozenset[Seat] | None = field(default=None, compare=False, repr=False)
    """The seats that :meth:`fills` was last asked about, if it was so, until a process is removed."""

    @property
    def workers(self) -> Mapping[Seat, Worker]:
        """All living processes. Only :meth:`add` and :meth:`remove` change it."""
        return self._workers

    def add(self, worker: Worker) -> None:
        """A process is started, or taken over from an earlier launcher."""
        self._workers[worker.seat] = self._by_host.setdefault(worker.seat.host, {})[worker.seat.slot] = worker
        self._present = self._saying = None

    def remove(self, worker: Worker) -> None:
        """A process has ended."""
        del self._workers[worker.seat], self._by_host[worker.seat.host][worker.seat.slot]
        self.failed.pop(worker.life, None)
        self._present = self._saying = self._filled = None

    def on(self, host: str) -> list[Worker]:
        """The processes on a host."""
        return list(self._by_host.get(host, {}).values())

    def facts_of(self, host: str) -> Mapping[str, Any]:
        """What a host's agent reports of its machine; empty if there is no agent."""
        agent = self.agents.get(host)
        return {} if agent is None else agent.facts

    def of(self, host: str, slot: Any, life: Any) -> Worker | None:
        """The process that an agent's message is about, if it is alive."""
        worker = self._by_host.get(host, {}).get(slot) if isinstance(slot, int) else None
        return worker if worker is not None and life in (None, worker.life.number) else None

    def alive(self, life: ProcessId) -> Worker | None:
        """The process of this life; None if it has ended, or if the seat has another life."""
        worker = self.workers.get(life.seat)
        return worker if worker is not None and worker.life == life else None

    def fills(self, seats: frozenset[Seat]) -> bool:
        """Whether each of these seats has a process. Each look asks that of the same seats."""
        if self._filled is not seats and self._workers.keys() >= seats:
            self._filled = seats
        return self._filled is seats

    def present_ids(self, lives: Iterable[ProcessId]) -> frozenset[int]:
        """What :func:`id` says of the processes that :meth:`present` names."""
        present = self.present(lives)
        if self._ids is None or self._ids[0] is not present or self._ids[1] != id(present):  # a copy has others
            self._ids = present, id(present), frozenset(map(id, present))
        return self._ids[2]

    def present(self, lives: Iterable[ProcessId]) -> tuple[Worker, ...]:
        """Those of ``lives`` that are alive. One look asks many times for the members of the world."""
        members = tuple(lives)
        if self._present is None or self._present[0] is not members:
            find = self._workers.get
            found = (worker for life in members if (worker := find(life.seat)) is not None and worker.life == life)
            self._present = members, tuple(found)
        return self._present[1]

    def those(self, lives: tuple[ProcessId, ...]) -> tuple[Worker, ...]:
        """The same of processes that say something together; they do so more than once."""
        if self._saying is None or self._saying[0] is not lives:
            self._saying = lives, tuple(worker for life in lives if (worker := self.alive(life)) is not None)
        return self._saying[1]

    @property
    def join_timeout_s(self) -> float:
        """Seconds from its start in which each of the agents that are starting now has to come."""
        return JOIN_S + JOIN_EACH_S * sum(not agent.heard for agent in self.agents.values())

    def next_life(self, seat: Seat) -> ProcessId:
        """A life that the seat has not had yet."""
        self.lives[seat] = self.lives.get(seat, 0) + 1
        return ProcessId(seat, self.lives[seat])

    def lived(self, life: ProcessId) -> None:
        """An agent reports a life of a seat."""
        self.lives[life.seat] = max(self.lives.get(life.seat, 0), life.number)

    def remember(self, workers: Iterable[Worker]) -> None:
        """Note the commit of each process as its agent's: it outlives the process. Note those that have failed, too."""
        agents, heartbeat = self.agents, self.commits.heartbeat
        for worker in workers:
            seat = worker.life.seat
            if worker.failure is not None:
                self.failed[worker.life] = worker
            agent = agents.get(seat.host)
            if agent is not None and agent.joined and worker.holds is not None:
                heartbeat(seat, worker.holds, worker.step, agent=agent.identity)

    def hosts_with_notice(self) -> dict[str, float]:
        """Hosts with an agent that has given notice, and when that, or the host, will be gone (mono)."""
        if not any(map(_LEAVES_BY, self.agents.values())):
            return {}  # nearly always, and there may be thousands
        return {name: agent.leaves_by for name, agent in self.agents.items() if agent.leaves_by is not None}

    def all_heard_after(self, at: float) -> bool:
        """Whether all agents that were ever heard were heard after a time (mono). What is known of that is kept:
        an agent is never heard earlier than it was, and one that comes is heard later."""
        if self._oldest <= at:
            self._oldest = min([agent.heard for agent in self.agents.values() if agent.heard], default=-math.inf)
        return self._oldest > at

    def most_silent_s(self) -> float:
        """The longest silence of a process that an agent has reported last."""
        return max(map(_SILENT_S, self._workers.values()), default=0.0)

    def taken(self) -> dict[Seat, Stage]:
        """Seats with a process that may stay, and how far that is."""
        workers = self.workers.items()
        return {seat: worker.stage for seat, worker in workers if worker.killed is None and worker.leaving is None}

    def processes(self, *, broken: frozenset[ProcessId], leaves_by: Mapping[str, float]) -> dict[Seat, Process]:
        """Processes that may be in the next world: not those that are ending. There may be thousands."""
        held = self.commits.held
        return {
            seat: Process(
                worker.life,
                worker.stage,
                worker.since,
                found.commit if (found := held.get(seat)) is not None else None,
                bool(broken) and worker.life in broken,
                leaves_by.get(seat.host) if leaves_by else None,
                worker.done,
                worker.agreed > 0,
                worker.created,
            )
            for seat, worker in self.workers.items()
            if worker.killed is None and (worker.leaving is None or worker.stage is Stage.LIVE)
        }


_SILENT_S: Final = attrgetter("silent_s")
_LEAVES_BY: Final = attrgetter("leaves_by")


def seconds(said: object) -> float | None:
    """A time in a message; None if it is not a finite number."""
    if said is None:
        return None  # a third of all, up to a thousand a second
    try:
        told = float(said) if isinstance(said, (int, float)) and not isinstance(said, bool) else math.nan
    except OverflowError:
        return None
    return told if math.isfinite(told) else None


def take_heartbeat(workers: Iterable[Worker], beat: Mapping[str, Any], at: float) -> None:
    """Apply a heartbeat that one process has sent ``at`` a time (mono), or each of many."""
    progress, waiting = whole_number(beat.get("progress")), beat.get("waiting") is True
    step_s, commit_s, call_s = seconds(beat.get("step_s")), seconds(beat.get("commit_s")), seconds(beat.get("call_s"))
    every, observed = whole_number(beat.get("every")), signals(beat["observed"]) if "observed" in beat else None
    held, done, stepped_at = _commit_of(beat), whole_number(beat.get("step")), seconds(beat.get("stepped_at"))
    for worker in workers:
        step, counted = worker.step, worker.progress
        _take_commit(worker, held, done)
        worker.step_s, worker.stepped_at = step_s, stepped_at
        worker.progress = worker.progress if progress is None else progress
        if worker.progress != counted:
            if worker.moved_at:
                worker.steps_s.append((at - worker.moved_at) / max(1, worker.step - step))
            worker.moved_at = at
        worker.waiting = waiting
        if waiting:
            worker.waits_since, worker.waits_until = min(worker.waits_since, at), at
        else:
            worker.waits_since = math.inf
        if observed is not None:
            worker.observed = observed
        worker.every, worker.commit_s, worker.call_s = every, commit_s, call_s


def signals(said: object) -> dict[str, float]:
    """Signals in a message; what is no name and finite number is left out."""
    found = {name: seconds(value) for name, value in said.items()} if isinstance(said, dict) else {}
    return {str(name)[:64]: value for name, value in list(found.items())[:MOST_SIGNALS] if value is not None}


def _commit_of(message: Mapping[str, Any]) -> tuple[int, int, int] | None:
    commit = whole_numbers(message.get("commit"), 3)
    return None if commit is None else (commit[0], commit[1], commit[2])


def _take_commit(worker: Worker, commit: tuple[int, int, int] | None, step: int | None) -> None:
    if commit is not None:
        worker.holds = commit
    elif worker.holds is not None:
        return  # sent before the first commit: a heartbeat may be late
    worker.step = worker.step if step is None else step


def take_message(workers: Sequence[Worker], message: Mapping[str, Any], now: float) -> None:
    """Apply a message of one process, or the same of many, that needs no immediate action."""
    match message.get("say"):
        case "looping":
            for worker in workers:
                worker.loops, worker.done = True, False  # a script may train more than once
                worker.failure = None  # of a program that ran before
        case "synced":
            commit, step = _commit_of(message), whole_number(message.get("step"))
            for worker in workers:
                worker.loops, worker.agreed = True, worker.generation
                _take_commit(worker, commit, step)
        case "done":
            for worker in workers:
                worker.done = True
        case "failed":
            digest, error, traceback = (str(message.get(key, "")) for key in ("digest", "error", "traceback"))
            for worker in workers:
                worker.failure, worker.failed_at = (digest, error, traceback), now
        case "warned":
            for worker in workers:
                worker.warned = message.get("leaving") is True
        case "beat":
            take_heartbeat(workers, message, now)
            for worker in workers:
                worker.agreed_at_heartbeat = worker.agreed

"""What the launcher knows of agents and processes. Facts only; the driver updates them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.custody.holders import Held, Holders
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId
from hvd_elastic_ext.launcher.membership.world_change import Process, Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.health.causes import Cause
    from hvd_elastic_ext.launcher.membership.rendezvous import Seat


JOIN_S: Final = 60.0
"""How long an agent may take from its start to its first message."""
SEND_S: Final = 600.0
"""The same if code may be sent to a host before its agent starts: the largest code at 4 Mbit/s."""
JOIN_EACH_S: Final = 1.0
"""What each starting agent adds to that: only some start at a time."""
RECONNECT_S: Final = 7.0
"""Longest time for agents to connect again once they can: they try every 5 s."""
USAGE: Final = ("cpu", "gpu", "gpu_memory", "memory")
"""What agents report about the load of their hosts."""
GO_LIVE_S: Final = 60.0
"""Longest time from the order to go live to a newcomer's request for its rank."""


class LaunchEnd(NamedTuple):
    """The command that started an agent has ended: ``at`` (mono), with this code; ``detail`` says how."""

    at: float
    code: int
    detail: str


@dataclass(slots=True)
class Agent:
    """The agent of a host."""

    host: Host
    since: float
    joined: bool = False
    last_message_at: float = 0.0
    """When its last message came (mono); 0 before the first one."""
    heartbeats_at: float = 0.0
    """When its last complete heartbeat message came (mono)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it reports of its machine."""
    identity: str = ""
    """Identifies the agent process; empty until it has joined."""
    inherited_at: float = -math.inf
    """When it was last taken as the agent of its pod's successor, or of its pod's next container (mono)."""
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
    """The load of its host: :data:`USAGE`, shares from 0 to 1."""
    gpu_unknown: str = ""
    """Why it cannot report the load of its GPUs; "" if it can, or has none."""
    launch_ended: LaunchEnd | None = None
    """Its launch ended with an error while it was connected."""


@dataclass(slots=True)
class Worker:
    """One training process."""

    life: ProcessId
    host: Host
    stage: Stage
    since: float
    call: int = 1
    """The training call that it is in, or was in last."""
    told_in: int | None = None
    """The call in which it was last told to read the results in its slot; None: it was not told."""
    useless: bool = False
    """It was told of results once, and did not find them in its slot."""
    blind: bool = False
    """The same more than once."""
    planned: int = 0
    """The rank that user code sees until there is a real one."""
    rank: int | None = None
    """Its rank in the newest world in which it has got one; None: in none yet, or under an earlier launcher."""
    local_rank: int = 0
    """The local rank that it was started with, by which it has chosen its device."""
    created: float = field(init=False)
    """When it was started, or taken over."""
    live_at: float | None = None
    """When it first went live."""
    generation: int = 0
    """The newest world that it has entered."""
    agreed: int = 0
    """The newest world in which it has agreed on the state."""
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
    stepped: tuple[int, float] | None = None
    """The number of steps that it has done, and when the last of them ended, by a clock of its own; None if it reports
    none. Heartbeats come late, and between a step and its commit: only these two tell how long steps take.
    """
    measured_from: tuple[int, float] | None = None
    """:attr:`stepped` at the last step that was measured in its world; None before the first one."""
    iteration_s: float | None = None
    """Seconds of its latest step, waits included; the mean of several steps between two heartbeats."""
    progress: int = 0
    """Grows with all actions of its main thread."""
    moved_at: float = 0.0
    """When it sent the heartbeat in which its progress was new (mono); 0: not since it entered its world."""
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Seconds between its latest steps or other progress, waits included, by its heartbeats. For several steps between
    two heartbeats it is the mean. Only as exact as heartbeats are punctual.
    """
    waiting: bool = False
    """Its main thread waited for other ranks at its last heartbeat."""
    waits_since: float = math.inf
    """When it sent the first of its latest heartbeats that all report waiting (mono); infinite if the last one does
    not.
    """
    waits_until: float = 0.0
    """When it sent the last heartbeat that reports waiting (mono)."""
    every: int | None = None
    """One in this many calls of ``commit()`` commits; None if unknown, or if its State is not ours."""
    commit_s: float | None = None
    """Seconds that its last commit took."""
    call_s: float | None = None
    """Seconds from one call of ``commit()`` to the next, without the time of the commit."""
    observed: Mapping[str, float] = field(default_factory=dict)
    """What its script has observed, by its last heartbeat."""
    share: tuple[int, int] | None = None
    """Its samples of a global batch, and all of them, where shares follow the ranks' speed; by its last heartbeat."""
    averages: bool = False
    """Whether it trains alone between averages; by its last heartbeat."""
    at_init: bool = False
    """It has parked in ``hvd.init()``, and can park at its training loop, too: until it is sent there alone."""
    waits_alone_since: float | None = None
    """When it would have been sent there first (mono), but for what collectives have returned to the others."""
    record_idle_since: float = 0.0
    """Since when nothing hinders that its slot gets that (mono)."""
    alone: bool = False
    """It was sent from ``hvd.init()`` to its training loop alone."""
    loops: bool = False
    """It has begun an elastic training function."""
    spare: bool = False
    """It is a spare, or is called in as one; not once it goes live."""
    stands_for: int | None = None
    """The slot whose device it was started with: its own, or that for which a spare stands. None: it was taken over
    from a launcher that did not note it, and counts as started by the present list.
    """
    agreed_at_heartbeat: int = 0
    """:attr:`agreed` at its last heartbeat, which would have named a commit of that world."""
    done: bool = False
    failure: tuple[str, str, str] | None = None
    """What its training function raised: a digest, the error, the traceback."""
    lost_peer: str | None = None
    """The error by which it says that an operation with its peers has failed, and that ends it unless its script
    handles it. None: it has reported none since it entered its world.
    """
    step_came: float = 0.0
    """When a step of it was reported last (mono); 0: none."""
    failed_at: float = 0.0
    """When that report came (mono)."""
    leaving: str | None = None
    """Why it has the order to leave; None if it has not."""
    leaving_since: float = 0.0
    """When it got that order (mono)."""
    reclaimed: bool = False
    """It was told that its host, or the whole job, will be preempted."""
    left: bool = False
    """Its script ends within the training function, with exit code 0."""
    unseen: bool = False
    """It has ended while there was no launcher: nobody knows what it was told."""
    terminated: bool = False
    """It got a SIGTERM that its script handles."""
    warned: bool = False
    """Its script has seen, by ``check_alive()``, that it has to leave, and may end by itself."""
    stopping_at: float | None = None
    """When it is killed if it has not left; infinite while no other process waits for it."""
    stop_again_at: float | None = None
    """When it gets the order to end again: orders get lost."""
    killed: Cause | None = None
    """Why it was killed."""
    behind: str = ""
    """The same, for a process that was in an earlier training call than others."""
    killed_at: float = 0.0
    """When it was (mono)."""
    silent_then_s: float = 0.0
    """:attr:`silent_s` when it was."""
    fence_at: float | None = None
    """When its connections are cut if it has not asked for the next world by itself."""
    fenced_at: float | None = None
    """When its connections were cut."""
    called_at: float | None = None
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
        trained = self.agreed_at_heartbeat > 0 or (self.generation > 0 and self.step > 0 and not self.in_prologue)
        return trained and self.holds is None and self.every is None

    @property
    def is_newcomer(self) -> bool:
        """Whether it has never agreed on the state: it would train from the start."""
        return self.agreed == 0

    @property
    def in_prologue(self) -> bool:
        """Whether it is in a world and has not begun its training loop. Its script imports ours, so one should come."""
        return self.at_init and self.generation > 0 and not self.loops

    @property
    def has_state(self) -> bool:
        """Whether it has a trained state: it has agreed on one with others, or has trained alone."""
        alone = self.generation > 0 and self.step > 0 and not self.in_prologue
        return self.killed is None and (self.agreed > 0 or alone)

    @property
    def commits_per_s(self) -> float:
        """Commits per second if every call of ``commit()`` commits; 0 if unknown."""
        return 0.0 if self.call_s is None else 1.0 / max(self.call_s + (self.commit_s or 0.0), 1e-6)

    def went_live(self, now: float) -> None:
        """It is called to a world, or is in one."""
        self.stage, self.since, self.live_at, self.spare = Stage.LIVE, now, now, False

    def tried_s(self, now: float) -> float:
        """Seconds from its start until it went live, or until ``now``."""
        return (now if self.live_at is None else self.live_at) - self.created


@dataclass(slots=True)
class Roster:
    """All agents by host, all living processes by seat."""

    agents: dict[str, Agent] = field(default_factory=dict)
    """:meth:`start_agent` adds one."""
    _workers: dict[Seat, Worker] = field(default_factory=dict)
    lives: dict[Seat, int] = field(default_factory=dict)
    """The highest life of each seat so far, under all its agents. The next life is one more."""
    ended: dict[Seat, int] = field(default_factory=dict)
    """By seat, the newest life whose end was reported to this launcher."""
    commits: Holders = field(default_factory=Holders)
    """Commits in the agents' memory."""
    join_s: float = JOIN_S
    _by_host: dict[str, dict[int, Worker]] = field(default_factory=dict, compare=False, repr=False)
    """The same processes by host, so that a question about one host does not read thousands."""
    _present: tuple[tuple[ProcessId, ...], tuple[Worker, ...]] | None = field(default=None, compare=False, repr=False)
    """The last question to :meth:`present` and its answer, until a process is added or removed."""

    @property
    def workers(self) -> Mapping[Seat, Worker]:
        """All living processes. Only :meth:`add` and :meth:`remove` change it."""
        return self._workers

    def add(self, worker: Worker) -> None:
        """A process is started, or taken over from an earlier launcher."""
        self._present = None
        self._workers[worker.seat] = self._by_host.setdefault(worker.seat.host, {})[worker.seat.slot] = worker

    def remove(self, worker: Worker) -> None:
        """A process has ended."""
        self._present = None
        del self._workers[worker.seat], self._by_host[worker.seat.host][worker.seat.slot]

    def start_agent(self, host: Host, now: float) -> Agent:
        """The agent of a host is being started, or has connected by itself."""
        agent = self.agents[host.name] = Agent(host, now)
        return agent

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

    def present(self, lives: Iterable[ProcessId]) -> tuple[Worker, ...]:
        """The living processes among ``lives``. One look asks a dozen times for the members of the world."""
        asked, workers = tuple(lives), self._workers
        if self._present is None or self._present[0] is not asked:
            there = [each for life in asked if (each := workers.get(life.seat)) is not None and each.life == life]
            self._present = asked, tuple(there)
        return self._present[1]

    def absent(self, lives: Iterable[ProcessId]) -> tuple[ProcessId, ...]:
        """The others."""
        return tuple([life for life in lives if self.alive(life) is None])

    @property
    def join_timeout_s(self) -> float:
        """Seconds from its start in which each starting agent has to join."""
        return self.join_s + JOIN_EACH_S * sum(not agent.last_message_at for agent in self.agents.values())

    def next_life(self, seat: Seat) -> ProcessId:
        """A life that the seat has not had yet."""
        self.lives[seat] = self.lives.get(seat, 0) + 1
        return ProcessId(seat, self.lives[seat])

    def note_life(self, life: ProcessId) -> None:
        """Note a life of a seat that an agent has reported."""
        self.lives[life.seat] = max(self.lives.get(life.seat, 0), life.number)

    def remember(self, worker: Worker) -> None:
        """Note a process's commit as its agent's, since it outlives the process."""
        seat, commit, held = worker.life.seat, worker.holds, self.commits.held
        agent = self.agents.get(seat.host)
        if commit is None or agent is None or not agent.joined:
            return
        known = held.get(seat)
        if known is None or known.agent != agent.identity or known.away_since is not None:
            known = held[seat] = Held(commit, worker.step, agent.identity)
        if commit >= known.commit:  # its agent may have reported a newer one
            known.commit, known.step, known.reached = commit, worker.step, worker.step

    def all_sent_after(self, at: float) -> bool:
        """Whether agents have sent messages, and each of these has sent one after ``at`` (mono)."""
        heard = [agent.last_message_at for agent in self.agents.values() if agent.last_message_at]
        return bool(heard) and min(heard) > at

    def taken(self) -> dict[Seat, Stage]:
        """Seats with a process that may stay, and its stage."""
        workers = self.workers.items()
        return {seat: worker.stage for seat, worker in workers if worker.killed is None and worker.leaving is None}

    def processes(self, *, broken: frozenset[ProcessId], leaves_by: Mapping[str, float]) -> dict[Seat, Process]:
        """Processes that may be in the next world: not those that are ending."""
        found = (self.process(seat, broken=broken, leaves_by=leaves_by) for seat in self._workers)
        return {process.seat: process for process in found if process is not None}

    def process(
        self, seat: Seat, *, leaves_by: Mapping[str, float], broken: frozenset[ProcessId] = frozenset()
    ) -> Process | None:
        """The one in this seat; None if there is none, or if it is ending."""
        worker, held = self._workers.get(seat), self.commits.held.get(seat)
        if (
            worker is None
            or worker.killed is not None
            or (worker.leaving is not None and worker.stage is not Stage.LIVE)
        ):
            return None
        return Process(
            worker.life,
            worker.stage,
            worker.since,
            None if held is None else held.commit,
            worker.life in broken,
            leaves_by.get(seat.host),
            worker.done,
            worker.agreed > 0,
            worker.created,
            worker.spare,
        )


STARTS_S: Final = 120.0
"""Longest time until a process trains; one without an elastic loop cannot report that it does."""
RECENT: Final = 20
"""The number of last steps that decide what is usual."""

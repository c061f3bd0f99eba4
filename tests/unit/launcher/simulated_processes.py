"""Processes of a simulated cluster of which a test can stop, hang or lose each by itself.

In the simulator's own :class:`~hvd_elastic_ext.simulate.cluster.training.Training`, all processes of a world move
together: it is fast, and knows the real state. Here each one does what it is told, and what a test says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_elastic_ext.core.messages.slot_protocol import START_AGAIN
from hvd_elastic_ext.simulate.cluster import processes, training
from hvd_elastic_ext.simulate.cluster.processes import Commit

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from tests.unit.launcher.simulated_cluster import Cluster

LINEAGE = 77


@dataclass(eq=False, slots=True)
class Process(processes.Process):
    """``state``: booting, parked, asking (for a rank), training, gone. ``batch``: the steps that it has done."""

    call: int = 1
    interrupted: bool = False
    lost: bool = False
    stuck: bool = False
    """Its main thread stands still, and the others wait for it."""
    beats: bool = False
    """Its script calls heartbeat() meanwhile."""
    wedged: bool = False
    """It waits for a peer even if the peer is lost, as Gloo does in the middle of a send."""
    warned: bool = False
    progress: int = 0
    step_s: float | None = None
    averages: bool = False
    """Whether it trains alone between averages."""
    share: list[int] | None = None
    """Its samples of a global batch, and all of them."""


class Training(training.Training):
    """All processes. One step and one commit a second, with a heartbeat."""

    process_kind = Process
    cluster: Cluster
    calls = False
    """Whether they name their training calls."""
    commits = True
    """Whether they have a State of ours."""
    loops = True
    """Whether their script has an elastic loop."""
    leaves_with = START_AGAIN
    """Their exit code if another process takes their place in the next world."""
    pace: Callable[[int], float] | None = None
    """Seconds of a step by size of the world, for steps that do not end with a heartbeat; None: one step each
    heartbeat."""
    call_s: float | None = 1.0
    """Seconds from one call of ``commit()`` to the next, as they report them."""
    step_s = 0.02
    """Seconds until ranks that have to leave reach their next step."""
    steps_a_beat = 1
    busy_s = 0.0
    """Seconds until ranks keep a named commit."""
    late = 0
    """How many messages with a named commit arrive too late."""
    saves: str | None = None
    """Rank 0 has a function that saves files; why it fails, empty if it does not."""
    sealed: list[int] | None = None
    """The commit that all processes report when they ask for a rank."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.clock, self.later = self._sim.time, self._sim.later
        self.tells: Counter[str] = Counter()
        """How many messages of each kind have arrived; of them, the first ``lose`` are lost."""
        self.lose: Counter[str] = Counter()
        self.stays: list[bool | None] = []
        """For each message about a commit to keep: whether no process may train beyond it; None: all may train on."""
        self._done: Counter[int] = Counter()
        """By generation, the number of steps of its processes, which is the same for all."""

    @property
    def job(self) -> JobState:
        return self.cluster.driver.job

    @property
    def all(self) -> list[Process]:
        """All living processes."""
        return [process for agent in self.cluster.agents.values() for process in agent.processes.values()]

    @property
    def members(self) -> list[Process]:
        """The processes in the world, by rank."""
        found = [process for process in self.all if process.state == "training" and not process.lost]
        return sorted(found, key=lambda process: process.rank)

    def has_loop(self, process: Process) -> bool:
        """Whether it has said that its script has an elastic loop."""
        return self.loops

    # --- what they are told

    def told(self, process: Process, message: Mapping[str, Any]) -> None:
        what = message["tell"]
        self.tells[what] += 1
        if self.tells[what] > self.lose[what]:
            self.hears(process, message)

    def hears(self, process: Process, message: Mapping[str, Any]) -> None:
        match message["tell"]:
            case "go" if process.state == "parked":
                self.ask(process)
            case "update" if process.state == "training":
                process.leave = process.leave or message["leave"]
                self._interrupt_all(process.generation)
            case "results" if process.state == "parked":
                self.later(0.5, self.goes_on, process)
            case "fence" if process.state == "training":
                self.loses(process)
            case "keep":
                self.stays.append(message.get("stay"))
                if message["commit"] is not None:
                    self._keep(process, list(message["commit"]))

    def _keep(self, process: Process, wanted: list[int]) -> None:
        newest = [1, process.generation, process.batch]
        if self.late or newest > wanted:
            self.late = max(0, self.late - 1)
            newest = max(newest, [*wanted[:2], wanted[2] + 1])
            process.agent.report(process, "commit_not_kept", wanted=wanted, newest=newest)
        elif newest == wanted:
            commit = Commit(*newest, process.batch, LINEAGE)
            busy_s = 0.0 if self.saves is not None and process.rank == 0 else self.busy_s
            self.later(busy_s, self._kept, process, commit)
        elif process.state == "training":
            self.later(0.1, self._keep, process, wanted)

    def _kept(self, process: Process, commit: Commit) -> None:
        more: dict[str, Any] = {"side": 1}
        if self.saves is not None and process.rank == 0:
            more = {"side": 2, "files": True, "stall_s": 9.0}
        if self.saves and process.rank == 0:
            wanted = commit.name
            process.agent.report(process, "commit_not_kept", wanted=wanted, newest=wanted, failed=self.saves)
        else:
            process.agent.report(process, "commit_kept", commit=[LINEAGE, *commit.name], step=commit.batch, **more)

    # --- into a world

    def parks(self, process: Process) -> None:
        self.moves(process, "parked")
        self.goes_on(process)

    def goes_on(self, process: Process) -> None:
        """A process passes over the calls whose results are in its slot, and parks in the next one."""
        process.call = max(process.call, len(process.past))
        process.agent.report(process, "parked", **({"call": process.call} if process.call > 1 or self.calls else {}))

    def ask(self, process: Process) -> None:
        """A process asks for its rank. With an engine that starts other processes for each world, a former member ends
        instead."""
        if process.state == "gone" or process.stopped:
            return
        if process.generation and not self.job.in_place:
            process.interrupted = True
            self.ends(process, self.leaves_with)
            return
        self.moves(process, "asking")
        if self.sealed is not None:
            process.commit = Commit(*self.sealed, process.batch, LINEAGE)
        elif process.generation:
            self.commit(process)
            process.commit = process.held
        process.agent.asks(process, next(self._questions))

    def answered(self, process: Process, *, incarnation: int, size: int) -> None:
        self.moves(process, "training")
        process.interrupted = process.lost = False
        process.generation = self.job.generation
        self.later(0.05, self.enters, process)

    def enters(self, process: Process) -> None:
        """A process joins a world, and agrees with the others at once."""
        if process.state == "training":
            process.agent.report(process, "entered", generation=process.generation)
            process.agent.report(process, "looping", **({"call": process.call} if self.calls else {}))
            process.agreed = process.generation
            process.agent.report(process, "synced")

    # --- within it

    def trains(self, process: Process) -> None:
        """The steps of a process since its last heartbeat."""
        gets_on = process.state == "training" and not self.held_up(process)
        if self.pace is not None and gets_on:
            step_s, now = self.pace(len(self.job.world.members)), self.clock.mono()
            begun = now - 1.0 if process.stepped_at is None else process.stepped_at
            done = int((now - begun) / step_s)
            process.batch, process.stepped_at = process.batch + done, begun + done * step_s
        else:
            process.batch += gets_on * self.steps_a_beat
        if process.state == "training":
            self._done[process.generation] = max(process.batch, self._done[process.generation])
        process.progress += gets_on or process.beats
        if process.step_s is not None:
            process.step_s *= 1.0 + 1e-6  # no two steps take the same time

    def held_up(self, process: Process) -> bool:
        """Whether a process waits for another one of its world that is stuck."""
        return any(each.stuck and each.generation == process.generation for each in self.all)

    def beat_of(self, process: Process) -> dict[str, Any]:
        """What a process reports in its heartbeat."""
        return {
            "step": process.batch,
            "commit": self.commit_of(process),
            "progress": process.progress,
            "waiting": (process.wedged or self.held_up(process)) and not process.stuck,
            "step_s": process.step_s,
            "call_s": self.call_s,
            **({} if process.share is None else {"share": process.share}),
            **({} if process.stepped_at is None else {"stepped_at": process.stepped_at}),
            **({"averages": True} if process.averages else {}),
        }

    def commit_of(self, process: Process) -> list[int] | None:
        """The commit that a process reports in its heartbeats."""
        return [1, process.generation, process.batch] if process.generation and self.commits else None

    def commit(self, process: Process) -> None:
        """Commit for a process. All that have agreed on their state do the same steps, with a commit after each."""
        if process.agreed != process.generation:
            return
        process.batch = self._done[process.generation] = max(process.batch, self._done[process.generation])
        process.agent.seal(process.slot, Commit(1, process.generation, process.batch, process.batch, LINEAGE))

    def follow(self, process: Process) -> None:
        if process.state == "training":
            self.commit(process)

    def next_call(self, *, kept: bool = True, reason: str = "too large") -> None:
        """All processes of the world end their call, and begin the next one."""
        self.calls = True
        for process in self.members:
            if kept:
                process.past.extend([None] * (process.call + 1 - len(process.past)))
            why = {} if kept else {"reason": reason}
            process.call += 1
            process.agent.report(process, "done", call=process.call - 1)
            process.agent.report(process, "looping", call=process.call)
            process.agent.report(process, "result", call=process.call - 1, bytes=9, kept=kept, **why)

    def warn(self, host: str, *, leaving: bool = True) -> None:
        """The scripts on a host have seen by ``check_alive()`` whether they have to leave."""
        for process in self.members:
            if process.host == host:
                process.warned = leaving
                process.agent.report(process, "warned", leaving=leaving)

    def says(self, host: str, what: str) -> None:
        """The processes of a host that are in a world send a message about their training."""
        for process in self.members:
            if process.host == host:
                process.agent.report(process, what)

    # --- out of it

    def _interrupt_all(self, generation: int) -> None:
        """One interrupted rank takes all ranks out of the world, at their next step."""
        for each in self.all:
            if each.generation == generation and each.state == "training" and not each.interrupted:
                each.interrupted = True
                self.later(self.step_s, self.leaves_world, each)

    def leaves_world(self, process: Process) -> None:
        stays = process.stopped or process.wedged or process.lost or not process.interrupted
        if process.state != "training" or stays:
            return
        peers = [peer for peer in self.all if peer.generation == process.generation]
        if process.host not in self._cut and any(peer.host in self._cut for peer in peers):
            return  # there is no next step: it waits for a rank that is cut off, and cannot learn that
        if process.leave:
            self.ends(process, 0)
        else:
            self.ask(process)

    def loses(self, process: Process, generation: int | None = None) -> None:
        """A process loses its world, and asks for the next one."""
        stays = process.lost or process.wedged or process.state != "training"
        if not stays and generation in (None, process.generation):
            process.lost = True
            self.later(0.005, self.ask, process)

    def ends(self, process: Process, code: int) -> None:
        process.agent.ended(process, code)

    def ends_unnoticed(self, host: str, code: int) -> None:
        """The processes of a host that are in a world end, and the others do not notice it."""
        for process in self.members:
            if process.host == host:
                process.interrupted = True
                self.ends(process, code)

    def gone(self, process: Process) -> None:
        was_in = process.state == "training"
        if was_in:
            self.commit(process)
        self.moves(process, "gone")
        for peer in self.all if was_in and not process.interrupted else ():
            if peer.generation == process.generation and peer.host not in self._cut:
                self.later(0.01, self.loses, peer, process.generation)

    def finish(self, *, hanging: str | None = None) -> None:
        """Training is done on all ranks. Processes of the host ``hanging`` never end."""
        members = self.members
        for process in members:
            process.done = True
            process.agent.report(process, "done")
        for process in members:
            process.interrupted = True
            if process.host == hanging:
                process.stopped = True
            else:
                self.ends(process, 0)

"""Simulated agents, as described in docs/agent.md: their commits, orders, messages and end."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.simulate.cluster.processes import WITHIN, Commit, Message, Process
from hvd_elastic_ext.simulate.cluster.times import AGAIN_MOST_S, AGAIN_S, RESEND_S

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.cluster import Cluster
    from hvd_elastic_ext.simulate.cluster.launcher import Launcher

MANY: Final = 64
RANK_AND_SIZE: Final = "/rank_and_size/x:0"


@dataclass(eq=False, slots=True)
class Line:
    """A connection. ``up`` and ``down``: messages held back while the network is cut."""

    agent: Agent
    launcher: Launcher
    open: bool = True
    up: list[Message] = field(default_factory=list)
    down: list[Mapping[str, Any]] = field(default_factory=list)
    up_at: float = 0.0
    down_at: float = 0.0


class Agent:
    """One run of a host's agent. ``memory``: the newest commit of each slot, which is lost when the agent ends."""

    def __init__(self, cluster: Cluster, host: str, itself: str) -> None:
        self.host, self.identity = host, itself
        self.kind = cluster.kinds.get(host, "")
        """The kind of its host: see :class:`~hvd_elastic_ext.simulate.cluster.times.Times`."""
        self.memory: dict[int, Commit] = {}
        self.before: dict[int, Commit] = {}
        """The commit before the newest of each slot: it stays in memory until the next commit."""
        self.pasts: dict[int, list[Commit | None]] = {}
        """The results of finished training calls in each slot's memory: see :attr:`Process.past`."""
        self.processes: dict[int, Process] = {}
        self.line: Line | None = None
        self.alive = True
        self.finishing = False
        self.ends_by: float | None = None
        """Latest time of its end after a SIGTERM."""
        self.down_since: float | None = cluster.sim.now
        """Time since which its launcher cannot reach it."""
        self.back_at = cluster.sim.now
        """Time since which its launcher can reach it again."""
        self.going: dict[str, Any] | None = None
        self.going_since = 0.0
        self.going_by: float | None = None
        self.booted: tuple[float, float] | None = None
        """Time of its last start of processes, and their boot time."""
        self.helpers: dict[int, tuple[int, ...]] = {}
        """Slots of each running helper."""
        self._cluster = cluster
        self._sim, self._times = cluster.sim, cluster.times
        self._needed = False
        """Whether it has received SIGTERM, and stays until its launcher no longer needs its commits."""
        self._ended: dict[int, tuple[Process, int]] = {}
        """By slot, its last process that has ended, and the exit code."""
        self._kept: list[Message] = []
        self._recent: list[tuple[float, Message]] = []
        self._lost_at: float | None = None
        self.unsettled = False
        """Whether a process has ended or asked since the loss of the launcher, or had an open question at that time."""
        self._incarnation = 0
        if self._times.every_step:
            self._sim.later(self._times.beat_s, self._beat)

    # --- reports

    def report(self, process: Process, what: str, *, reported: Commit | None = None, **more: Any) -> None:
        """Send a message of a process, from its link. ``reported``: the commit that it reports."""
        commits = () if reported is None else ((process.slot, reported),)
        self._send(self._news("said", process, message={"say": what, **more}), commits)

    def asks(self, process: Process, number: int) -> None:
        """Report the commit of a process, and ask for its rank in the next world."""
        batch, commit = process.batch, process.commit
        if commit is not None:
            process.sample = (batch, commit)
            more = {"averages": True} if self._times.averages else {}
            self.report(process, "beat", reported=commit, step=batch, commit=commit.name, **more)
        process.asked, self.unsettled = number, True
        self._ask(process)
        if self.line is None:
            self.lease()

    def keeps(self, process: Process, commit: Commit) -> None:
        """Report that a process keeps a commit for a checkpoint."""
        whole = [commit.lineage, *commit.name]
        if process.rank == 0:
            self._note_contact()
        self._cluster.helpers.kept[tuple(whole)] = commit
        more: dict[str, Any] = {"stall_s": self._times.stall_s} if self._times.stall_s else {}
        self.report(process, "commit_kept", commit=whole, step=commit.batch, side=1, **more)

    def _ask(self, process: Process) -> None:
        if self.line is not None:
            assert process.asked is not None  # its callers have set it
            question = {"event": "asked", "id": process.asked, "method": "GET", "path": RANK_AND_SIZE, "body": ""}
            self._cluster.up(self.line, process.message(question, None))

    def _tell(self, event: str, process: Process, **more: Any) -> None:
        self._send(self._news(event, process, **more))

    def _news(self, event: str, process: Process, **more: Any) -> dict[str, Any]:
        return {"event": event, "slot": process.slot, "life": process.life, **more}

    def _send(
        self, news: dict[str, Any], reported: tuple[tuple[int, Commit], ...] = (), sealed: Commit | None = None
    ) -> None:
        message = Message(news, reported, sealed)
        if self.line is None:
            self._kept.append(message)
        else:
            self._note(message)
            self._cluster.up(self.line, message)

    def _note(self, message: Message) -> None:
        self._recent.append((self._sim.now, message))
        if len(self._recent) > MANY:
            since = self._sim.now - RESEND_S - AGAIN_S
            self._recent = [each for each in self._recent if each[0] >= since]

    def _recently_sent(self) -> list[Message]:
        since = self._sim.now - RESEND_S - AGAIN_S
        return [message for at, message in self._recent if at >= since]

    def _beat(self) -> None:
        if not self.alive:
            return
        if self.line is not None:
            self._cluster.up(self.line, self.beats())
        self._sim.later(self._times.beat_s, self._beat)

    def _note_contact(self) -> None:
        """Deliver a heartbeat at once, if heartbeats are not separate events: the driver needs the number of steps."""
        if self.line is not None:
            self.line.launcher.receive_heartbeat(self)

    def beats(self) -> Message:
        """Return the heartbeats of its processes."""
        now, slots, reported = self._sim.now, {}, []
        training, times = self._cluster.training, self._times
        for process in self.processes.values():
            training.settle(process.world)
            training.follow(process)
            if process.state != "booting":
                batch, commit = process.sample
                if not process.stopped:
                    process.sample, process.sampled_at = (process.batch, process.commit), now
                if not times.every_step:
                    batch, commit = process.sample  # heartbeats show the present state, not the last sample
                beat: dict[str, Any] = {"step": batch, "commit": commit.name if commit else None, "progress": batch}
                if times.averages:
                    beat["averages"] = True
                if self._cluster.options.scaling is not None and process.world is not None:
                    beat["stepped_at"] = process.world.stepped_at
                beat |= {
                    "every": training.commit_every,
                    "commit_s": times.commit_s,
                    "call_s": times.step_s * times.every,
                }
                slots[str(process.slot)] = {"life": process.life, "age": now - process.sampled_at, "beat": beat}
                if commit is not None:
                    reported.append((process.slot, commit))
        return Message({"event": "beats", "slots": slots}, tuple(reported))

    def _hello(self) -> Message:
        self.settle()
        more: dict[str, Any] = {}
        if self.ends_by is not None:
            more["notice"] = {"reason": "SIGTERM", "grace_s": max(0.0, self.ends_by - self._sim.now)}
        if self.going is not None:
            more["going"] = {**self.going, "in_s": self._left_s()}
        slots = sorted({*self._ended, *self.processes, *self.memory, *self.pasts})
        seats = {str(slot): self._status(slot) for slot in slots}
        return Message({"agent": self.identity, "facts": {}, "seats": seats, **more}, tuple(self.memory.items()))

    def settle(self) -> None:
        """Do the steps of its processes that are due."""
        for process in list(self.processes.values()):
            self._cluster.training.settle(process.world)
            self._cluster.training.follow(process)

    def _left_s(self) -> float | None:
        return None if self.going_by is None else max(0.0, self.going_by - self._sim.now)

    def _status(self, slot: int) -> dict[str, Any]:
        process, held, past = self.processes.get(slot), self.memory.get(slot), self.pasts.get(slot)
        more: dict[str, Any] = {} if held is None else {"held": held.held}
        more |= {"past": len(past)} if past else {}
        if process is None and slot not in self._ended:
            return {"life": 0, "state": "rest", "code": None, **more}
        process, code = self._ended[slot] if process is None else (process, None)
        return {
            "life": process.life,
            "state": "running" if code is None else "rest",
            "code": code,
            "pid": 1,
            "parked": process.state == "parked",
            "generation": process.generation,
            "agreed": process.agreed,
            "done": process.done,
            **({} if self._cluster.training.program.prologue_s is None else {"loops": process.looped}),
            **{name: True for name in ("at_init", "alone") if getattr(process, name)},
            **({} if process.state == "booting" and not process.call else {"call": process.call}),
            **more,
        }

    # --- its connection

    def connect(self, pause: float = AGAIN_S) -> None:
        """Connect to the launcher, or try again after a pause."""
        launcher = self._cluster.launcher
        if not self.alive or self.line is not None:
            return
        if self.host in self._cluster.cut or launcher is None or launcher.incarnation < self._incarnation:
            self._sim.later(pause, self.connect, min(AGAIN_MOST_S, 2 * pause))
            return
        self._incarnation = launcher.incarnation
        self.line = Line(self, launcher)
        self._cluster.up(self.line, self._hello())
        again = self._recently_sent()
        self._recent.clear()
        kept, self._kept = [*again, *self._kept], []
        for message in kept:
            self._note(message)
            self._cluster.up(self.line, message)
        for process in self.processes.values():
            if process.asked is not None:
                self._ask(process)
        self._lost_at = None

    def reached(self) -> None:
        """Note that the launcher can reach this agent again."""
        self.down_since, self.back_at = None, self._sim.now

    def line_lost(self, line: Line) -> None:
        """Notice that the connection is lost."""
        if not self.alive or self.line is not line:
            return
        self.line, self._lost_at = None, self._sim.now
        self.down_since = self._sim.now if self.down_since is None else self.down_since
        self.unsettled = any(process.asked is not None for process in self.processes.values())
        self._sim.later(AGAIN_S, self.connect)
        self._sim.later(self._cluster.options.orphan_grace_s, self.lease)

    def lease(self) -> None:
        """End everything after too long a time without a launcher, unless processes still train undisturbed."""
        if self._lost_at is None or self._sim.now - self._lost_at < self._cluster.options.orphan_grace_s:
            return
        trains = any(process.state in WITHIN for process in self.processes.values())
        if self.alive and (self.unsettled or not trains):
            self._cluster.agent_dies(self, code=0)

    # --- orders

    def obey(self, order: Mapping[str, Any]) -> None:
        """Execute an order (docs/agent.md)."""
        match order["do"]:
            case "all":
                for each in order["orders"]:
                    self.obey(each)
            case "start":
                self._start(order)
            case "tell":
                for number, life in order["to"].items():
                    process = self.processes.get(int(number))
                    if process is not None and process.life == life:
                        self._cluster.training.told(process, order["message"])
            case "kill" | "stop" if (process := self.processes.get(order["slot"])) is not None:
                ends_s = self._cluster.ends_s.get(self.host, self._times.ends_s)
                code, ends_s = (137, 0.0) if order["do"] == "kill" else (143, ends_s)
                self._sim.later(ends_s, self.ended, process, code)
            case "answer" if (process := self.processes.get(order["slot"])) is not None:
                self._answered(process, order)
            case "forget":
                self._forget(order["slot"])
            case "finish":
                self.finishing, self._needed = True, False
                self._sim.later(self._times.ends_s, self._see_out)
            case "helper":
                self._cluster.helpers.begin(self, order)
            case "drop":
                self._cluster.helpers.drop(self, order["slots"])

    def _start(self, order: Mapping[str, Any]) -> None:
        slot, life = order["slot"], order["life"]
        if self.line is None:
            return
        if self.finishing or slot in self.processes:
            reason = "about to end" if self.finishing else "in use"
            self._send({"event": "refused", "slot": slot, "life": None, "reason": reason})
            return
        new = self._cluster.training.process_kind
        process = new(self, slot, life, self.line.launcher.incarnation, sampled_at=self._sim.now)
        self.processes[slot] = process
        self._cluster.observer.moved(process, "")
        self._tell("started", process, pid=1)
        self._cluster.boots(process)

    def _forget(self, slot: int) -> None:
        if (process := self.processes.get(slot)) is not None:
            self.ended(process, 137)
        self.memory.pop(slot, None)
        self.before.pop(slot, None)
        self.pasts.pop(slot, None)
        self._send({"event": "forgotten", "slot": slot})

    def seal(self, slot: int, commit: Commit) -> None:
        """Store a commit in a slot's memory."""
        held = self.memory.get(slot)
        if held is not None and held != commit:
            self.before[slot] = held
        self.memory[slot] = commit

    def park(self, process: Process) -> None:
        """Note that a process is ready."""
        if process.state == "booting" and not process.stopped:
            self._cluster.training.parks(process)

    def _answered(self, process: Process, order: Mapping[str, Any]) -> None:
        if process.asked != order["id"] or self.line is None:
            return
        process.asked = None
        rank, size = map(int, base64.b64decode(order["body"]).decode().split(",")[:2])
        process.rank, incarnation = rank, self.line.launcher.incarnation
        self._cluster.observer.rank_given(process, incarnation=incarnation, rank=rank)
        self._cluster.training.answered(process, incarnation=incarnation, size=size)

    # --- ends

    def ended(self, process: Process, code: int) -> None:
        """End a process."""
        if process.state == "gone":
            return
        self._cluster.training.gone(process)
        del self.processes[process.slot]
        self._ended[process.slot] = (process, code)
        held = self.memory.get(process.slot)
        reported = ((process.slot, held),) if held else ()
        past = len(self.pasts.get(process.slot, ()))
        self._send(self._news("exited", process, code=code, held=held.held if held else None, past=past), reported)
        self.unsettled = True
        self.lease()
        if self.finishing:
            self._sim.later(self._times.ends_s, self._see_out)

    def terminate(self) -> None:
        """Handle a SIGTERM: start nothing more, and end when the processes have ended or the grace is over."""
        if self.finishing:
            return
        self._needed = bool(self.memory)
        busy = bool(self.processes) or self._needed
        self.finishing, self.ends_by = True, self._sim.now + (self._times.grace_s if busy and self.line else 0.0)
        self._send({"event": "notice", "reason": "SIGTERM", "grace_s": self.ends_by - self._sim.now})
        self._sim.later(max(self._times.ends_s, self.ends_by - self._sim.now), self._stop_all)

    def _stop_all(self) -> None:
        self._needed = False
        for process in list(self.processes.values()):
            self.ended(process, 143)
        self._see_out()

    def _see_out(self) -> None:
        if self.alive and not (self.processes or self._needed):
            self._cluster.agent_dies(self, code=max((code for _, code in self._ended.values()), default=0))

    def announce(self, in_s: float | None, reason: str = "preempted") -> None:
        """Announce the end of the host, as by the notice file."""
        self.going = {"reason": reason}
        self.going_by = None if in_s is None else self._sim.now + in_s
        self.going_since = self._sim.now
        self._send({"event": "going", **self.going, "in_s": in_s})

    def recall(self) -> None:
        """Withdraw the notice."""
        if self.going is not None:
            self.going = self.going_by = None
            self._send({"event": "staying"})

    def answer(
        self,
        number: int,
        answer: dict[str, Any],
        *,
        reported: tuple[tuple[int, Commit], ...] = (),
        sealed: Commit | None = None,
    ) -> None:
        """Send an answer of a helper. ``sealed``: the commit whose checkpoint is on storage now."""
        if sealed is not None:
            self._note_contact()
        self._send({"event": "helper", "id": number, "answer": answer}, reported, sealed)

    def tell_held(self, slots: Iterable[int]) -> None:
        """Report the commits in these slots' memory, after the process of a helper has ended."""
        self.settle()
        held = {slot: self.memory.get(slot) for slot in slots}
        reported = tuple((slot, commit) for slot, commit in held.items() if commit is not None)
        slots_held = {str(slot): commit.held if commit is not None else None for slot, commit in held.items()}
        pasts = {str(slot): len(past) for slot in held if (past := self.pasts.get(slot))}
        self._send({"event": "held", "slots": slots_held, "pasts": pasts}, reported)

    def helper_ended(self, number: int, words: str = "") -> None:
        self._send({"event": "helper_ended", "id": number, "code": 1 if words else 0, "words": words})

"""What binds the agent to a slot's training process beside its output: the door, the link, and what it said there."""

from __future__ import annotations

import binascii
from typing import Any, Final, NamedTuple, Protocol

from hvd_elastic_ext.agent.orders.orders import Answer
from hvd_elastic_ext.agent.slots.rendezvous_proxy import Question, RendezvousProxy
from hvd_elastic_ext.agent.slots.socket_link import SocketLink
from hvd_elastic_ext.agent.slots.worker_status import RateLimit, WorkerStatus
from hvd_elastic_ext.agent.system.cpu_activity import CpuActivity, used_s
from hvd_elastic_ext.agent.system.event_loop import EventLoop
from hvd_elastic_ext.agent.system.oom import OutOfMemory

RANK: Final = "rank_and_size"
"""In the path of Horovod's question for a rank."""


class AgentServices(EventLoop, Protocol):
    """What a slot needs of its agent."""

    memory: OutOfMemory

    def tell(self, event: str, **fields: object) -> None: ...
    def warn(self, problem: str) -> None: ...
    def lost_holder(self) -> None: ...


class Inheritance(NamedTuple):
    """What a training process gets of the agent's: descriptors of its commit memory and its link; its door's port."""

    commits: tuple[int, ...] = ()
    link: int | None = None
    proxy: int | None = None


class WorkerLink:
    """Of one slot. The door is the same in all its lives, the link another in each."""

    def __init__(self, slot: int, agent: AgentServices) -> None:
        self._slot = slot
        self._agent = agent
        self._link: SocketLink | None = None
        self._life = 0
        self._warnings: set[str] = set()
        self.worker = WorkerStatus(agent.now())
        self._cpu = CpuActivity()
        self._records, self._others = RateLimit(agent.now()), RateLimit(agent.now())
        self._proxy = RendezvousProxy(agent, asked=self._asked, unasked=self._unasked, warn=self._warn_once)

    def begin(self, life: int) -> tuple[int, int]:
        """Make the link of a new life: the descriptor to hand down, and the door's port."""
        self._life = self._proxy.life = life
        self.worker = WorkerStatus(self._agent.now())
        self._link = SocketLink(self._agent, heard=self._heard, warn=self._warn)
        return self._link.theirs.fileno(), self._proxy.port

    def handed_down(self) -> None:
        if self._link is not None:
            self._link.theirs.close()

    def listen(self) -> None:
        if self._link is not None:
            self._link.listen()

    def drain(self) -> None:
        """Hear the last words of a process."""
        if self._link is not None:
            self._link.drain()

    def end_of_life(self) -> None:
        self._proxy.end_of_life()
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        self.end_of_life()
        self._proxy.close()

    # --- orders and time ---------------------------------------------------------------------------

    def answer(self, order: Answer) -> None:
        """Pass on an answer to a question that is open, or drop it."""
        self._proxy.answer(order.number, order.status, order.body)

    def tell(self, life: int, message: dict[str, Any]) -> None:
        """Pass on a message to the life that is meant, or drop it."""
        if self._link is not None and life == self._life:
            self.worker.told(message)
            self._link.tell(message)

    def ask_again(self) -> None:
        """Say once more which questions are open, to a launcher that does not know them."""
        for question in self._proxy.open_questions:
            self._asked(question)

    @property
    def asking(self) -> bool:
        return bool(self._proxy.open_questions)

    def heartbeat(self) -> dict[str, Any] | None:
        """The newest beat, or None if there was none yet in this life. Also says what was dropped since the last."""
        dropped = {"records": self._records.dropped(), "messages": self._others.dropped()}
        if any(dropped.values()):
            self._agent.tell("dropped", slot=self._slot, life=self._life, **dropped)
        if self.worker.heartbeat is None:
            return None
        now, pid = self._agent.now(), self.worker.heartbeat.get("pid")
        if type(pid) is int and self._cpu.look(now, pid, used_s(pid)):
            self.worker.seen_working(now)
        return {"life": self._life, "age": self.worker.age(now), "beat": self.worker.heartbeat}

    def due(self) -> float | None:
        return self._proxy.due()

    def tick(self) -> None:
        self._proxy.tick()

    # --- news --------------------------------------------------------------------------------------

    def tell_heartbeat(self) -> None:
        """Tell the newest beat now: what it holds may be what all depends on."""
        if self.worker.heartbeat is not None:
            message = {"say": "beat", **self.worker.heartbeat}
            self._agent.tell("said", slot=self._slot, life=self._life, message=message)

    def _asked(self, question: Question) -> None:
        request = question.request
        if RANK in request.path:
            # Ranks go by who holds the newest commit, and beats of different hosts are of different moments.
            self.drain()
            self.tell_heartbeat()
        self._agent.tell(
            "asked",
            slot=self._slot,
            life=question.life,
            id=question.number,
            method=request.method,
            path=request.path,
            body=binascii.b2a_base64(request.body, newline=False).decode("ascii"),
        )

    def _unasked(self, number: int) -> None:
        self._agent.tell("unasked", slot=self._slot, life=self._life, id=number)

    def _heard(self, message: dict[str, Any]) -> None:
        now = self._agent.now()
        self.worker.heard(now, message)
        if message["say"] == "beat":
            return
        limit = self._records if message["say"] == "record" else self._others
        if limit.allows(now):
            self._agent.tell("said", slot=self._slot, life=self._life, message=message)

    def _warn(self, problem: str) -> None:
        self._agent.warn(f"slot {self._slot}: {problem}")

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warnings:
            self._warnings.add(problem)
            self._warn(problem)

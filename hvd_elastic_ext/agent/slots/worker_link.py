"""The agent's connection with the process of a slot: its link, its rendezvous proxy, and its reported status."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.agent.orders import AnswerQuestion
from hvd_elastic_ext.agent.slots.cpu_activity import CpuActivity, used_s
from hvd_elastic_ext.agent.slots.oom import OutOfMemory
from hvd_elastic_ext.agent.slots.rendezvous import OK, RANK, Question, RendezvousProxy, is_for_a_key
from hvd_elastic_ext.agent.slots.socket_link import SocketLink
from hvd_elastic_ext.agent.slots.worker_status import RateLimit, WorkerStatus
from hvd_elastic_ext.agent.slots.world_keys import Asker, Key, WorldKeys

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.slots.warm_starts import WarmStarts


class AgentServices(EventLoop, Protocol):
    """The methods of the agent that a slot uses."""

    memory: OutOfMemory
    keys: WorldKeys
    stdin: int | None

    @property
    def warm(self) -> WarmStarts: ...

    def tell(self, event: str, **fields: object) -> None: ...
    def warn(self, problem: str) -> None: ...
    def lost_supervisor(self) -> None: ...


class Inheritance(NamedTuple):
    """What a training process inherits: descriptors of commit memory, of the memory for results of training calls
    (``past``), of link and standard input, and the port of the rendezvous proxy.
    """

    commits: tuple[int, ...] = ()
    link: int | None = None
    proxy: int | None = None
    stdin: int | None = None
    past: int | None = None


class WorkerLink:
    """The connection of one slot. The proxy lives as long as the slot, a link as long as one process."""

    def __init__(self, slot: int, agent: AgentServices) -> None:
        self._slot = slot
        self._agent = agent
        self._link: SocketLink | None = None
        self._life = 0
        self._warnings: set[str] = set()
        self._keys: dict[int, Key] = {}
        """The keys of open questions, by number, if the world of the process is known."""
        self.worker = WorkerStatus(agent.now())
        self._cpu = CpuActivity()
        self._records, self._others = RateLimit(agent.now()), RateLimit(agent.now())
        self._proxy = RendezvousProxy(agent, asked=self._asked, withdrawn=self._withdrawn, warn=self._warn_once)

    def begin(self, life: int) -> tuple[int, int]:
        """Make the link of a new process; return its descriptor and the port of the proxy."""
        self._life = self._proxy.life = life
        self.worker = WorkerStatus(self._agent.now())
        self._link = SocketLink(self._agent, received=self._received, warn=self._warn)
        return self._link.theirs.fileno(), self._proxy.port

    def handed_down(self) -> None:
        """Close the process's end of the link here: the supervisor has inherited it."""
        if self._link is not None:
            self._link.theirs.close()

    def listen(self) -> None:
        """From now on read what the process sends. Call it after its start is reported."""
        if self._link is not None:
            self._link.listen()

    def drain(self) -> None:
        """Read the rest in the link at the end of a process."""
        if self._link is not None:
            self._link.drain()

    def end_of_life(self) -> None:
        """Close the link and disconnect the proxy's clients after all processes have ended. The proxy still listens."""
        self._proxy.hang_up_all()
        self._agent.keys.lose(self.worker.generation)
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """Close the link and the proxy."""
        self.end_of_life()
        self._proxy.close()

    # --- orders and time ---------------------------------------------------------------------------

    def answer(self, order: AnswerQuestion) -> None:
        """Pass on the launcher's answer to an open question; ignored if it is not open."""
        question, key = self._proxy.question(order.number), self._keys.pop(order.number, None)
        if question is None or key is None:
            self._proxy.answer(order.number, order.status, order.body)
        elif is_for_a_key(question.request):
            self._agent.keys.answered(key, order.status, order.body)
        else:
            if order.status == OK:
                self._agent.keys.store(key, question.request.body)
            self._proxy.answer(order.number, order.status, order.body)

    def pass_answer(self, number: int, status: int, body: bytes) -> None:
        """Answer an open question; ignored if it is not open."""
        self._keys.pop(number, None)
        self._proxy.answer(number, status, body)

    def pass_on(self, number: int) -> None:
        """Pass on an open question to the launcher; ignored if it is not open."""
        if (question := self._proxy.question(number)) is not None:
            self._pass_on(question)

    def tell(self, life: int, message: dict[str, Any]) -> None:
        """Pass on a message to the process with number ``life``; ignored if that has ended."""
        if self._link is not None and life == self._life:
            self.worker.note_message(message)
            self._link.tell(message)

    def ask_again(self) -> None:
        """Report all open questions again, to a new launcher."""
        for question in self._proxy.open_questions:
            key = self._keys.get(question.number)
            stores = not is_for_a_key(question.request)
            if key is None or stores or self._agent.keys.is_passed_on(key, Asker(self, question.number)):
                self._pass_on(question)

    @property
    def asking(self) -> bool:
        """Whether a question of the slot's processes is open."""
        return bool(self._proxy.open_questions)

    def heartbeat(self) -> dict[str, Any] | None:
        """The newest heartbeat of this process, or None. Also reports how many messages were dropped since the last."""
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
        """The loop's time at which ``tick`` is needed next; None if nothing is due."""
        return self._proxy.due()

    def tick(self) -> None:
        """Disconnect clients of the proxy that take too long; accept again when a pause is over."""
        self._proxy.tick()

    # --- news --------------------------------------------------------------------------------------

    def tell_heartbeat(self) -> None:
        """Send the newest heartbeat now, because the launcher's decision depends on it."""
        if self.worker.heartbeat is not None:
            message = {"say": "beat", **self.worker.heartbeat}
            self._agent.tell("said", slot=self._slot, life=self._life, message=message)

    def _asked(self, question: Question) -> None:
        """Pass on a question, unless it is for a key that is known here or requested already."""
        generation, path = self.worker.generation, question.request.path
        if RANK in path or not generation:
            self._pass_on(question)
            return
        key = self._keys[question.number] = Key(generation, path)
        if is_for_a_key(question.request):
            self._agent.keys.ask(key, Asker(self, question.number))
        else:
            self._pass_on(question)

    def _pass_on(self, question: Question) -> None:
        request = question.request
        if RANK in request.path:
            # Ranks depend on which process holds the newest commit: send the newest heartbeat before the question.
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

    def _withdrawn(self, question: Question) -> None:
        key = self._keys.pop(question.number, None)
        if key is None or self._agent.keys.withdraw(key, Asker(self, question.number)):
            self._agent.tell("unasked", slot=self._slot, life=self._life, id=question.number)

    def _received(self, message: dict[str, Any]) -> None:
        now = self._agent.now()
        self.worker.received(now, message)
        if message["say"] in ("beat", "imported", "barrier"):
            return
        if message["say"] == "done":
            self.tell_heartbeat()  # with the number of its steps: other ranks may do more
        limit = self._records if message["say"] == "record" else self._others
        if limit.allows(now):
            self._agent.tell("said", slot=self._slot, life=self._life, message=message)

    def _warn(self, problem: str) -> None:
        self._agent.warn(f"slot {self._slot}: {problem}")

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warnings:
            self._warnings.add(problem)
            self._warn(problem)

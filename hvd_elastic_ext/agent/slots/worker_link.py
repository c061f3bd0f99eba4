"""What binds the agent to a slot's training process beside its output: the door, the link, and what it said there."""

from __future__ import annotations

import binascii
from typing import Any, Final, NamedTuple, Protocol

from hvd_elastic_ext.agent.orders.orders import Answer
from hvd_elastic_ext.agent.slots.rendezvous_proxy import Door, Question
from hvd_elastic_ext.agent.slots.socket_link import Link
from hvd_elastic_ext.agent.slots.worker_status import Allowance, Standing
from hvd_elastic_ext.agent.system.cpu_activity import AtWork, used_s
from hvd_elastic_ext.agent.system.event_loop import Hall
from hvd_elastic_ext.agent.system.oom import OutOfMemory

RANK: Final = "rank_and_size"
"""In the path of Horovod's question for a rank."""


class Desk(Hall, Protocol):
    """What a slot needs of its agent."""

    memory: OutOfMemory

    def tell(self, event: str, **fields: object) -> None: ...
    def complain(self, problem: str) -> None: ...
    def lost_holder(self) -> None: ...


class Inheritance(NamedTuple):
    """What a training process gets of the agent's: descriptors of its commit memory and its link; its door's port."""

    commits: tuple[int, ...] = ()
    link: int | None = None
    door: int | None = None


class Contact:
    """Of one slot. The door is the same in all its lives, the link another in each."""

    def __init__(self, slot: int, desk: Desk) -> None:
        self._slot = slot
        self._desk = desk
        self._link: Link | None = None
        self._life = 0
        self._complaints: set[str] = set()
        self.standing = Standing(desk.now())
        self._at_work = AtWork()
        self._records, self._others = Allowance(desk.now()), Allowance(desk.now())
        self._door = Door(desk, asked=self._asked, unasked=self._unasked, complain=self._complain_once)

    def begin(self, life: int) -> tuple[int, int]:
        """Make the link of a new life: the descriptor to hand down, and the door's port."""
        self._life = self._door.life = life
        self.standing = Standing(self._desk.now())
        self._link = Link(self._desk, heard=self._heard, complain=self._complain)
        return self._link.theirs.fileno(), self._door.port

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
        self._door.end_of_life()
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        self.end_of_life()
        self._door.close()

    # --- orders and time ---------------------------------------------------------------------------

    def answer(self, order: Answer) -> None:
        """Pass on an answer to a question that is open, or drop it."""
        self._door.answer(order.number, order.status, order.body)

    def tell(self, life: int, message: dict[str, Any]) -> None:
        """Pass on a message to the life that is meant, or drop it."""
        if self._link is not None and life == self._life:
            self.standing.told(message)
            self._link.tell(message)

    def ask_again(self) -> None:
        """Say once more which questions are open, to a launcher that does not know them."""
        for question in self._door.open_questions:
            self._asked(question)

    @property
    def asking(self) -> bool:
        return bool(self._door.open_questions)

    def beat(self) -> dict[str, Any] | None:
        """The newest beat, or None if there was none yet in this life. Also says what was dropped since the last."""
        dropped = {"records": self._records.dropped(), "messages": self._others.dropped()}
        if any(dropped.values()):
            self._desk.tell("dropped", slot=self._slot, life=self._life, **dropped)
        if self.standing.beat is None:
            return None
        now, pid = self._desk.now(), self.standing.beat.get("pid")
        if type(pid) is int and self._at_work.look(now, pid, used_s(pid)):
            self.standing.seen_at_work(now)
        return {"life": self._life, "age": self.standing.age(now), "beat": self.standing.beat}

    def due(self) -> float | None:
        return self._door.due()

    def tick(self) -> None:
        self._door.tick()

    # --- news --------------------------------------------------------------------------------------

    def tell_beat(self) -> None:
        """Tell the newest beat now: what it holds may be what all depends on."""
        if self.standing.beat is not None:
            message = {"say": "beat", **self.standing.beat}
            self._desk.tell("said", slot=self._slot, life=self._life, message=message)

    def _asked(self, question: Question) -> None:
        request = question.request
        if RANK in request.path:
            # Ranks go by who holds the newest commit, and beats of different hosts are of different moments.
            self.drain()
            self.tell_beat()
        self._desk.tell(
            "asked",
            slot=self._slot,
            life=question.life,
            id=question.number,
            method=request.method,
            path=request.path,
            body=binascii.b2a_base64(request.body, newline=False).decode("ascii"),
        )

    def _unasked(self, number: int) -> None:
        self._desk.tell("unasked", slot=self._slot, life=self._life, id=number)

    def _heard(self, message: dict[str, Any]) -> None:
        now = self._desk.now()
        self.standing.heard(now, message)
        if message["say"] == "beat":
            return
        allowance = self._records if message["say"] == "record" else self._others
        if allowance.allows(now):
            self._desk.tell("said", slot=self._slot, life=self._life, message=message)

    def _complain(self, problem: str) -> None:
        self._desk.complain(f"slot {self._slot}: {problem}")

    def _complain_once(self, problem: str) -> None:
        if problem not in self._complaints:
            self._complaints.add(problem)
            self._complain(problem)

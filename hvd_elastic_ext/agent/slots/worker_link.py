"""The agent's connection with the process of a slot: what the process says, and what it is told and answered.

A *link* is a pair of sockets with one line of JSON for each message, in both directions. Its messages say how far the
process is (:class:`WorkerStatus`); the agent keeps that for the next launcher, and passes most messages on. Heartbeats
stay here: the loop collects the newest one of each process. The process asks for its rank and for keys of its world at
the *rendezvous proxy* instead, as Horovod's code does (``rendezvous.py``).
"""

from __future__ import annotations

import binascii
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from hvd_elastic_ext.agent.descriptors import CHUNK, EventLoop, Lines, Outbox
from hvd_elastic_ext.agent.orders import AnswerQuestion
from hvd_elastic_ext.agent.slots.rendezvous import (
    OK,
    RANK,
    Asker,
    Key,
    Question,
    RendezvousProxy,
    WorldKeys,
    is_for_a_key,
)
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.wire import decode
from hvd_elastic_ext.io.process_tree import stat_of

# --- how far a process is --------------------------------------------------------------------------------


MESSAGES_A_SECOND: Final = 100.0
"""Most messages passed on in a second; records and others are counted separately."""


class WorkerStatus:
    """How far one training process is, by its messages. Pure."""

    def __init__(self, now: float) -> None:
        self.parked = False
        self.at_init = False
        """Whether it has parked in ``hvd.init()``, before its loop."""
        self.alone = False
        """Whether it was told to go on to its loop alone."""
        self.loops = False
        """Whether it has entered an elastic loop."""
        self.done = False
        self.call: int | None = None
        """The training call that it is in, or was in last."""
        self.collectives = False
        """Whether results of collectives before its first training call are, or will be, in the slot's past."""
        self.recorded: int | None = None
        """The generation of the world in which it has kept them."""
        self.reached = (0, 0)
        """How far it has come in its script: see :func:`released`."""
        self.waits = False
        """Whether it waits there, in a barrier."""
        self.warned = False
        """Whether its script has seen that it must leave."""
        self.terminated = False
        """Whether it got a SIGTERM that its script handles."""
        self.generation: int | None = None
        self.agreed: int | None = None
        """The newest generation with which it has agreed on the state."""
        self.heartbeat: dict[str, Any] | None = None
        self._beat_at = now

    def received(self, now: float, message: dict[str, Any]) -> None:
        """Apply a message of the process. ``now``: seconds of the agent's clock, the time of a heartbeat."""
        say = message["say"]
        if say in ("parked", "looping", "done") and type(call := message.get("call")) is int:
            self.call = call
            self.reached = max(self.reached, (call, 0))
        match say:
            case "beat":
                self.heartbeat = {key: value for key, value in message.items() if key != "say"}
                self._beat_at = now
            case "parked":
                self.parked = True
                self.at_init = message.get("at") == "init" and message.get("later") is True
            case "synced":
                self.loops, self.agreed = True, self.generation
            case "looping":
                self.loops, self.done = True, False
                self.collectives |= message.get("collectives") is True
            case "result":
                if message.get("call") == 0:
                    self.collectives = message.get("kept") is True
                    self.recorded = self.generation if self.collectives else None
            case "barrier":
                call, number = message.get("call"), message.get("number")
                if type(call) is int and type(number) is int:
                    self.reached, self.waits = max(self.reached, (call, number)), True
            case "done":
                self.done = True
            case "warned":
                self.warned = message.get("leaving") is True
            case "terminated":
                self.terminated = True
            case "entered":
                self._know_generation(message)

    def seen_working(self, at: float) -> None:
        """Note that the process used the processor at that time, which counts as a heartbeat."""
        self._beat_at = max(self._beat_at, at)

    def note_message(self, message: Mapping[str, Any]) -> None:
        """Apply a message to the process: ``go`` and ``alone`` end parking, ``world`` sets the generation."""
        match message.get("tell"):
            case "go":
                self.parked = False
            case "alone":
                self.parked = self.at_init = False
                self.alone = True
            case "world":
                self._know_generation(message)
            case "barrier":
                self.waits = False

    def status(self) -> dict[str, object]:
        """The status for a new launcher. ``beat``: the newest heartbeat, None before the first."""
        world = {"generation": self.generation, "agreed": self.agreed}
        reported = {"loops": self.loops, "done": self.done, "warned": self.warned, "beat": self.heartbeat}
        before_loop = {name: True for name in ("at_init", "alone") if getattr(self, name)}
        terminated = {"terminated": True} if self.terminated else {}
        call = {} if self.call is None else {"call": self.call}
        collectives = {"collectives": True} if self.collectives else {}
        recorded = {} if self.recorded is None else {"recorded": self.recorded}
        return {
            "parked": self.parked,
            **before_loop,
            **world,
            **reported,
            **terminated,
            **call,
            **collectives,
            **recorded,
        }

    def _know_generation(self, message: Mapping[str, Any]) -> None:
        generation = message.get("generation")
        if type(generation) is int:
            self.generation = generation

    def age(self, now: float) -> float:
        """Seconds since the newest heartbeat."""
        return round(now - self._beat_at, 3)


UNKNOWN: Final = WorkerStatus(0.0)
"""The status of a process without a link."""


class RateLimit:
    """Allows ``MESSAGES_A_SECOND``, twice that in a burst; counts the rest."""

    def __init__(self, now: float) -> None:
        self._left = 2 * MESSAGES_A_SECOND
        self._at = now
        self._dropped = 0

    def allows(self, now: float) -> bool:
        """Return whether a message may pass at ``now``, in seconds; otherwise it is counted as dropped."""
        self._left = min(2 * MESSAGES_A_SECOND, self._left + (now - self._at) * MESSAGES_A_SECOND)
        self._at = now
        if self._left < 1:
            self._dropped += 1
            return False
        self._left -= 1
        return True

    def dropped(self) -> int:
        """Number of messages refused since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped


# --- barriers before its world ---------------------------------------------------------------------------


Place = tuple[int, int]
"""A place in a script: the training call before it, and the number of the barrier from there on; (call, 0) before the
first one. Places of a script are passed in this order."""


class Standing(NamedTuple):
    """A living process that is in no world yet."""

    slot: int
    reached: Place
    """How far it has come."""
    waits: bool = False
    """Whether it waits there."""


def released(processes: Iterable[Standing]) -> list[int]:
    """The slots whose processes may pass the barrier in which they wait. Pure.

    A process that comes later than the others runs the script's part before the training function without peers. If it
    comes to a barrier there, it waits for those processes of its host that come later, too, and have not come so far:
    ``if local_rank() == 0: download(); barrier()``. Nobody of the job's world takes part.
    """
    newcomers = list(processes)
    if not any(process.waits for process in newcomers):
        return []
    all_have_reached = min(process.reached for process in newcomers)
    return [process.slot for process in newcomers if process.waits and process.reached <= all_have_reached]


# --- whether a silent process works ----------------------------------------------------------------------


WORKING: Final = 0.05
"""Smallest share of a core that the first thread of a working process uses, also on a crowded machine."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class CpuActivity:
    """How long a process without heartbeats has worked, by its processor time between looks.

    The heartbeat thread needs the interpreter lock, which a long call into C (a regular expression, a parser, a
    compiler) may hold for minutes. Meanwhile the first thread uses the processor. A stopped, frozen or deadlocked
    process does not.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float, float] | None = None

    def look(self, now: float, pid: int, used_s: float | None) -> float | None:
        """Return a time at which the process still worked, or None if it has not since the last look. ``used_s``: see
        :func:`used_s`.

        It is the earliest at which it can have used so much: a process may have been stopped right after the last look.
        """
        last, self._last = self._last, None if used_s is None else (pid, now, used_s)
        if last is None or used_s is None or last[0] != pid or now <= last[1]:
            return None
        since_s = used_s - last[2]
        return min(now, last[1] + since_s) if since_s >= WORKING * (now - last[1]) else None


def used_s(pid: int) -> float | None:
    """Return the processor seconds of the first thread of a process; None if there is no such process."""
    try:
        fields = stat_of(f"{pid}/task/{pid}")
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return None


# --- the link --------------------------------------------------------------------------------------------


MAX_LINE_FROM_WORKER: Final = 64 << 10
"""Bytes of the longest line that a process may send."""
MAX_UNREAD: Final = 1 << 20
"""Most bytes that wait until the process reads them; more are dropped."""
MAX_AT_END: Final = 1 << 20


class SocketLink:
    """The agent's end of a link. It never blocks.

    ``received`` gets messages of the process, ``warn`` each kind of problem once.
    """

    def __init__(
        self, loop: EventLoop, *, received: Callable[[dict[str, Any]], None], warn: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._received = received
        self._warn = warn
        self._warnings: set[str] = set()
        self._lines = Lines(MAX_LINE_FROM_WORKER)
        self._end, self.theirs = socket.socketpair()
        """``theirs`` is inherited by the process, and then closed here."""
        self._end.setblocking(False)
        self._unsent = Outbox(self._end.fileno())

    def listen(self) -> None:
        """Read what the process sends, from now on."""
        self._loop.watch(self._end.fileno(), self.read)

    def read(self) -> int:
        """Read the data that has come; return the number of bytes."""
        try:
            data = self._end.recv(CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._loop.unwatch(self._end.fileno())
        for line in self._lines.feed(data):
            self._take(line)
        return len(data)

    def drain(self) -> None:
        """Read the rest at the end of the process, up to a limit: its descendants may still write."""
        read = 0
        while read < MAX_AT_END and (size := self.read()):
            read += size

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send ``message`` as soon as there is room."""
        line = to_text(message).encode("ascii") + b"\n"
        if self._unsent.size + len(line) > MAX_UNREAD:
            self._warn_once("its process does not read its messages: they are dropped")
            return
        self._unsent.add(line)
        self._write()

    def close(self) -> None:
        """Close both ends here. Messages that still wait for the process are dropped."""
        self._loop.unwatch(self._end.fileno())
        self._end.close()
        self.theirs.close()

    def _write(self) -> None:
        before = -1
        while self._unsent.size not in (before, 0):  # as long as the socket accepts something
            before = self._unsent.size
            self._unsent.write()
        self._loop.write(self._end.fileno(), None if self._unsent.empty else self._write)

    def _take(self, line: bytes | None) -> None:
        if line is None:
            self._warn_once(f"a line of more than {MAX_LINE_FROM_WORKER} bytes on its link was dropped")
            return
        try:
            message = decode(line.decode())
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict) and isinstance(message.get("say"), str):
            self._received(message)
        else:
            self._warn_once("a line on its link that is not a JSON object with 'say' was dropped")

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warnings:
            self._warnings.add(problem)
            self._warn(problem)


# --- the connection of a slot ----------------------------------------------------------------------------


class LinkServices(EventLoop, Protocol):
    """What a link uses of the agent."""

    keys: WorldKeys

    def tell(self, event: str, **fields: object) -> None: ...
    def warn(self, problem: str) -> None: ...


class WorkerLink:
    """The connection of one slot. The proxy lives as long as the slot, a link as long as one process."""

    def __init__(self, slot: int, agent: LinkServices) -> None:
        self._slot = slot
        self._agent = agent
        self._link: SocketLink | None = None
        self._life = 0
        """Number of the newest process."""
        self._ended = False
        """Whether that has ended, and sends no more heartbeats."""
        self._warnings: set[str] = set()
        self._keys: dict[int, Key] = {}
        """The keys of open questions, by number, if the world of the process is known."""
        self.worker = WorkerStatus(agent.now())
        self._cpu = CpuActivity()
        self._records, self._others = RateLimit(agent.now()), RateLimit(agent.now())
        self._proxy = RendezvousProxy(agent, asked=self._asked, withdrawn=self._withdrawn, warn=self._warn_once)

    def begin(self, life: int) -> tuple[int, int]:
        """Make the link of a new process; return its descriptor and the port of the proxy."""
        self._life, self._ended = life, False
        self._proxy.life = life
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

    def end_of_process(self) -> None:
        """Pass on what the process has sent before its end, and its last heartbeat."""
        self._drain()
        self._tell_heartbeat()
        self._ended = True

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
        """The newest heartbeat of the process that runs, or None. Also reports how many messages were dropped since the
        last one.
        """
        dropped = {"records": self._records.dropped(), "messages": self._others.dropped()}
        if any(dropped.values()):
            self._agent.tell("dropped", slot=self._slot, life=self._life, **dropped)
        if self._ended or self.worker.heartbeat is None:
            return None
        now, pid = self._agent.now(), self.worker.heartbeat.get("pid")
        if type(pid) is int and (worked_at := self._cpu.look(now, pid, used_s(pid))) is not None:
            self.worker.seen_working(worked_at)
        return {"life": self._life, "age": self.worker.age(now), "beat": self.worker.heartbeat}

    def due(self) -> float | None:
        """The loop's time at which ``tick`` is needed next; None if nothing is due."""
        return self._proxy.due()

    def tick(self) -> None:
        """Disconnect clients of the proxy that take too long; accept again when a pause is over."""
        self._proxy.tick()

    # --- news --------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._link is not None:
            self._link.drain()

    def _tell_heartbeat(self) -> None:
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
            self._drain()
            self._tell_heartbeat()
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
        if message["say"] in ("beat", "barrier"):
            return
        if message["say"] == "done":
            self._tell_heartbeat()  # with the number of its steps: other ranks may do more
        limit = self._records if message["say"] == "record" else self._others
        if limit.allows(now):
            self._agent.tell("said", slot=self._slot, life=self._life, message=message)

    def _warn(self, problem: str) -> None:
        self._agent.warn(f"slot {self._slot}: {problem}")

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warnings:
            self._warnings.add(problem)
            self._warn(problem)

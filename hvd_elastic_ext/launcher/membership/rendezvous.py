"""The rendezvous of the processes of a generation. Pure: questions in, answers out, no clock of its own.

Horovod asks two kinds of question, through the rendezvous proxy of each process:

* ``GET /rank_and_size/…`` blocks until all members of the newest generation have asked: then all are alive, and
  each gets its rank. The answer is never 404 or rank -1, which would end a process.
* ``GET`` and ``PUT /scope/key`` exchange Gloo's addresses. Each generation has a key space of its own. A question
  for a key that is not there *yet* waits. What a world may store is limited: see :func:`max_stored_bytes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hvd_elastic_ext.core.messages.rank_info import Place

HOLD_S: Final = 2.0
"""How long a question for a key that is not set is held before the answer is 404 (Horovod then asks again)."""
OK: Final = 200
NOT_YET: Final = 404
CANNOT_FORM: Final = 500
TOO_LARGE: Final = 413
"""The answer to a value that is larger than any of Horovod's in a world of this size."""
NO_ROOM: Final = 507
"""The answer to a value that, with all others of the world, is more than Horovod ever stores."""
_BASE: Final = 8 << 10
_EACH_PEER: Final = 160
_VALUES_EACH: Final = 16
_EACH_KEY: Final = 128
_RANK: Final = "rank_and_size"
_DIGITS: Final = 4
"""Slots have numbers below 1024."""


class Seat(NamedTuple):
    """A slot of a host, for one training process: ``slot`` is its number on the host, from 0, and never changes."""

    host: str
    slot: int

    def __str__(self) -> str:
        return f"{self.host}[{self.slot}]"


class ProcessId(NamedTuple):
    """One process: the ``number``-th in its seat."""

    seat: Seat
    number: int


class Question(NamedTuple):
    """One request at the rendezvous proxy of ``life``. Requests at one proxy have different ``number``."""

    life: ProcessId
    number: int
    method: str
    path: str
    body: bytes = b""


class RendezvousAnswer(NamedTuple):
    """The answer to the :class:`Question` of the same ``life`` and ``number``; ``status`` is that of HTTP."""

    life: ProcessId
    number: int
    status: int
    body: bytes = b""


class RankAssignments(NamedTuple):
    """The places of a world's members, and the numbers of the questions that they answer, in the order of ranks."""

    places: Mapping[ProcessId, Place]
    numbers: Sequence[int]

    def answers(self) -> Iterator[RendezvousAnswer]:
        """One for each member."""
        for (life, place), number in zip(self.places.items(), self.numbers, strict=True):
            yield RendezvousAnswer(life, number, OK, place.text().encode())


def slot_number(text: str) -> int | None:
    """The number of a slot as agents name it; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def seat_of(host: str, number: str) -> Seat | None:
    """The seat of a slot that an agent names; None if it names none."""
    slot = slot_number(number)
    return None if slot is None else Seat(host, slot)


def max_value_bytes(size: int) -> int:
    """Bytes of a key and its value in a world of this many processes.

    A process stores its host's name and one address of 136 bytes for each of its peers.
    """
    return _BASE + _EACH_PEER * size


def max_stored_bytes(size: int) -> int:
    """Most bytes of all keys and values of a world of this many processes.

    A process stores two values in each of three scopes, and as many again for each process set that it is in. This
    limit allows some fifty sets of all processes in small worlds, and a dozen in the largest.
    """
    return size * _VALUES_EACH * max_value_bytes(size)


def places(members: Sequence[ProcessId]) -> dict[ProcessId, Place]:
    """Give ranks in the order of ``members``. Members of one host must follow one another.

    Local ranks have no gaps: Gloo aborts otherwise. The cross rank of a process is its host's number among the hosts
    that have its local rank.
    """
    slots = Counter([life.seat.host for life in members])  # there may be thousands
    counts = Counter(slots.values())
    crossing = [sum(counts[count] for count in counts if count > local) for local in range(max(counts, default=0))]
    found: dict[ProcessId, Place] = {}
    seen, size, host, local, hosts = [0] * len(crossing), len(members), None, 0, 0
    for rank, life in enumerate(members):
        if life.seat.host == host:
            local += 1
        else:
            host, local, hosts = life.seat.host, 0, hosts + 1
        found[life] = Place(rank, size, local, slots[host], seen[local], crossing[local])
        seen[local] += 1
    if hosts != len(slots):
        raise ValueError("the members of one host do not follow one another")
    return found


@dataclass(slots=True)
class _World:
    generation: int
    members: frozenset[ProcessId]
    places: Mapping[ProcessId, Place] = field(default_factory=dict)
    formed: bool = False
    broken: bool = False
    keys: dict[str, bytes] = field(default_factory=dict)
    kept: int = 0
    """Bytes of all keys."""

    def put(self, key: str, value: bytes) -> int:
        """Store a value if there is room for it; return the status."""
        size, cost = len(self.members), _EACH_KEY + len(key) + len(value)
        if cost > max_value_bytes(size):
            return TOO_LARGE
        before = _EACH_KEY + len(key) + len(self.keys[key]) if key in self.keys else 0
        if self.kept - before + cost > max_stored_bytes(size):
            return NO_ROOM
        self.kept += cost - before
        self.keys[key] = value
        return OK


@dataclass(slots=True)
class Rendezvous:
    """All generations that processes may still ask about, and the questions on hold."""

    _newest: _World = field(default_factory=lambda: _World(0, frozenset(), formed=True))
    _worlds: dict[ProcessId, _World] = field(default_factory=dict)
    _answered: dict[ProcessId, int] = field(default_factory=dict)
    """By process, the number of the question that was answered with its rank."""
    _waiting: dict[ProcessId, int] = field(default_factory=dict)
    """By process, the number of its question for a rank that has no answer yet."""
    _again: frozenset[ProcessId] | None = field(default=None, compare=False, repr=False)
    """The last answer of :attr:`asked_again`, until something changes it."""
    _held: dict[tuple[ProcessId, int], tuple[Question, float]] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        """The number of the newest world."""
        return self._newest.generation

    @property
    def members(self) -> frozenset[ProcessId]:
        """The members of the newest world."""
        return self._newest.members

    @property
    def formed(self) -> bool:
        """Whether the newest world's members have their ranks."""
        return self._newest.formed

    @property
    def ready(self) -> bool:
        """Whether all members of the newest world have asked for their ranks and wait for :meth:`assign_ranks`."""
        return not self._newest.formed and self._newest.members <= self._waiting.keys()

    @property
    def waiting(self) -> KeysView[ProcessId]:
        """Processes that have asked for a rank and have no answer yet; a live view."""
        return self._waiting.keys()

    def place(self, life: ProcessId) -> Place | None:
        """The place of a process in the newest world."""
        return self._newest.places.get(life)

    def form(self, generation: int, members: Iterable[ProcessId]) -> list[RendezvousAnswer]:
        """Begin a newer generation. Answers those that wait for keys of the generation before: these keys will not
        come.

        Raises ``ValueError`` if ``generation`` is not newer.
        """
        if generation <= self._newest.generation:
            raise ValueError(f"generation {generation} is not newer than {self._newest.generation}")
        answers = self.give_up()
        self._newest, self._again = _World(generation, frozenset(members)), None
        return answers

    def assign_ranks(self, order: Sequence[ProcessId]) -> RankAssignments:
        """Give ranks to the members of the newest world, all of whom are waiting, in ``order``."""
        world = self._newest
        all_ask = not world.formed and all(map(self._waiting.__contains__, order))
        if not all_ask or len(order) != len(world.members) or not world.members.issuperset(order):
            raise ValueError("ranks are assigned to all members, once all have asked")
        world.formed, self._again = True, None
        world.places = places(order)
        self._worlds.update(dict.fromkeys(order, world))
        numbers = list(map(self._waiting.pop, order))
        self._answered.update(zip(order, numbers, strict=True))
        return RankAssignments(world.places, numbers)

    def adopt(self, generation: int, members: Mapping[ProcessId, Place]) -> None:
        """Take over a world that formed under another launcher. Its keys are not known."""
        self._newest, self._again = _World(generation, frozenset(members), places=dict(members), formed=True), None
        self._worlds.update(dict.fromkeys(members, self._newest))

    def give_up(self) -> list[RendezvousAnswer]:
        """Note that the newest world is lost. Processes that wait for its keys are answered at once, not after Gloo's
        30 s."""
        self._newest.broken = True
        lost = [key for key, (question, _) in self._held.items() if self._worlds.get(question.life) is self._newest]
        return [_answer(self._held.pop(key)[0], CANNOT_FORM) for key in lost]

    def placed(self, life: ProcessId) -> bool:
        """Whether a process was answered with a rank."""
        return life in self._answered

    def ask_for_rank(self, life: ProcessId, number: int) -> list[RendezvousAnswer]:
        """A process asks for a rank, by a question of this number. If it was answered before, it is answered again: a
        question comes again because its answer may be lost.

        Else it waits. If its world is lost meanwhile, it notices that itself, and asks again.
        """
        self._again, answered = None, self._answered.get(life, -1)
        if number > answered:
            self._waiting[life] = number
        elif number == answered >= 0:  # else another one was answered since: messages may come twice
            return [RendezvousAnswer(life, number, OK, self._worlds[life].places[life].text().encode())]
        return []

    def ask(self, question: Question, now: float) -> list[RendezvousAnswer]:
        """Answer a question, and those that can be answered because of it; nothing if it has to wait."""
        if question.method != "PUT" and question.body:
            question = question._replace(body=b"")  # it is not used, and the question may wait for long
        if is_for_a_rank(question.method, question.path):
            return self.ask_for_rank(question.life, question.number)
        world = self._worlds.get(question.life)
        if world is None or world.broken:
            return [_answer(question, CANNOT_FORM if world else NOT_YET)]
        if question.method == "PUT":
            status = world.put(question.path, question.body)
            return [_answer(question, status), *(self._answer_held(world, question.path) if status == OK else ())]
        if question.method == "GET" and question.path not in world.keys:
            self._held[question.life, question.number] = (question, now + HOLD_S)
            return []
        # A process that deletes keys leaves its world. Its keys are dropped with the generation.
        return [_answer(question, OK, world.keys.get(question.path, b"") if question.method == "GET" else b"")]

    def withdraw(self, life: ProcessId, number: int) -> None:
        """A process has closed its connection before the answer."""
        self._held.pop((life, number), None)
        if self._waiting.get(life) == number:
            del self._waiting[life]
            self._again = None

    def ended(self, life: ProcessId) -> None:
        """A process has ended: drop its questions."""
        self._again = None
        for known in (self._waiting, self._worlds, self._answered):
            known.pop(life, None)
        for key in [key for key in self._held if key[0] == life]:
            del self._held[key]

    def due(self, now: float) -> list[RendezvousAnswer]:
        """Answers to processes that have waited for a key for :data:`HOLD_S`."""
        late = [key for key, (_, until) in self._held.items() if now >= until]
        return [_answer(self._held.pop(key)[0], NOT_YET) for key in late]

    def next_due(self) -> float | None:
        """When :meth:`due` has the next answer."""
        return min((until for _, until in self._held.values()), default=None)

    @property
    def asked_again(self) -> frozenset[ProcessId]:
        """Processes that ask again for their rank: the newest world is lost."""
        if not self._newest.formed:
            return frozenset()
        # Also a process that counted as ended and has returned: its answer is no longer known.
        if self._again is None:
            self._again = frozenset(life for life in self._waiting if life in self._newest.members)
        return self._again

    def _answer_held(self, world: _World, path: str) -> list[RendezvousAnswer]:
        found = [
            key
            for key, (question, _) in self._held.items()
            if question.path == path and self._worlds.get(question.life) is world
        ]
        return [_answer(self._held.pop(key)[0], OK, world.keys[path]) for key in found]


def is_for_a_rank(method: str, path: str) -> bool:
    """Whether a question is one for a rank; all others are about keys."""
    return method == "GET" and path.lstrip("/").partition("/")[0] == _RANK


def _answer(question: Question, status: int, body: bytes = b"") -> RendezvousAnswer:
    return RendezvousAnswer(question.life, question.number, status, body)

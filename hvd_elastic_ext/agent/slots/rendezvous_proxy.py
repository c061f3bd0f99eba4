"""The door of a slot: where its processes ask for their rank and meet their peers, as Horovod's clients do it.

It answers nothing of its own but what is wrong with a request: each question
goes to the launcher, and is open until that has answered or the asker hung up.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from hvd_elastic_ext.agent.slots.http import BadRequest, Reader, Request, response
from hvd_elastic_ext.agent.system.event_loop import Hall
from hvd_elastic_ext.agent.system.streams import heard
from hvd_elastic_ext.io.peers import is_trusted, owner, way_to_tell

MAX_ASKERS: Final = 256
"""Connections at a time; others wait in the kernel's queue."""
PATIENCE_S: Final = 10.0
"""How long an asker may take to say what it wants, and to take its answer."""
REGISTRATION: Final = "/worker_addresses/"
"""Where a stock worker says how to notify it, pickled. Here it hears of updates over its link: nobody reads that."""


class Question(NamedTuple):
    """``number`` tells the questions of one door apart; ``life`` is whose process asked."""

    number: int
    life: int
    request: Request


class _Asker:
    """One connection."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline: float | None = deadline
        self.reader = Reader()
        self.question: Question | None = None
        self.answer = memoryview(b"")


class Door:
    """See the module's docstring. ``asked`` and ``unasked`` hear of questions, ``complain`` of strangers."""

    def __init__(
        self,
        hall: Hall,
        *,
        asked: Callable[[Question], None],
        unasked: Callable[[int], None],
        complain: Callable[[str], None],
    ) -> None:
        self._hall = hall
        self._asked = asked
        self._unasked = unasked
        self._complain = complain
        self._way = way_to_tell()
        if self._way is None:
            complain("this kernel does not tell whose a connection is: its door is open to all users of this machine")
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_ASKERS)
        self._listener.setblocking(False)
        self._askers: dict[int, _Asker] = {}
        self._waiting: dict[int, _Asker] = {}
        self._count = 0
        self._deaf_until: float | None = None
        self.life = 0
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    # --- questions ---------------------------------------------------------------------------------

    @property
    def open_questions(self) -> list[Question]:
        """In the order in which they were asked."""
        return [asker.question for asker in self._waiting.values() if asker.question is not None]

    def answer(self, number: int, status: int, body: bytes) -> None:
        """Answer a question; nothing happens if its asker has hung up meanwhile."""
        asker = self._waiting.pop(number, None)
        if asker is not None:
            self._reply(asker, status, body)

    def due(self) -> float | None:
        """When the patience with an asker ends, or None."""
        deadlines = [asker.deadline for asker in self._askers.values()]
        return min((moment for moment in (*deadlines, self._deaf_until) if moment is not None), default=None)

    def tick(self) -> None:
        """Hang up on those who took too long."""
        now = self._hall.now()
        if self._deaf_until is not None and now >= self._deaf_until:
            self._deaf_until = None
            self._listen()
        for asker in list(self._askers.values()):
            if asker.deadline is not None and now >= asker.deadline:
                self._hang_up(asker)

    def end_of_life(self) -> None:
        """All processes of the slot have ended: nobody is left who could be answered."""
        for asker in list(self._askers.values()):
            self._hang_up(asker)

    def close(self) -> None:
        self.end_of_life()
        self._hall.unwatch(self._listener.fileno())
        self._listener.close()

    # --- connections -------------------------------------------------------------------------------

    def _listen(self) -> None:
        if len(self._askers) < MAX_ASKERS and self._deaf_until is None:
            self._hall.watch(self._listener.fileno(), self._accept)
        else:
            self._hall.unwatch(self._listener.fileno())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # gone again
            return
        except OSError as error:  # no descriptor left, say: that is not to keep the agent busy
            self._complain(f"its door cannot be opened just now: {error}")
            self._deaf_until = self._hall.now() + 1.0
            self._listen()
            return
        if not self._is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        asker = _Asker(connection, self._hall.now() + PATIENCE_S)
        self._askers[connection.fileno()] = asker
        self._hall.watch(connection.fileno(), functools.partial(self._read, asker))
        self._listen()

    def _is_ours(self, connection: socket.socket) -> bool:
        """Whether a process of this user, or of root, is there and connected. Who cannot be told is a stranger."""
        if self._way is None:
            return True
        uid = owner(connection, self._way)
        if not is_trusted(uid):
            whose = "that had gone, or whose user cannot be told," if uid is None else f"of user {uid}"
            self._complain(f"a process {whose} was turned away at the door")
        return is_trusted(uid)

    def _read(self, asker: _Asker) -> None:
        data = heard(asker.connection)
        if data is None:
            return
        if not data:
            self._hang_up(asker)
        elif asker.question is None and not asker.answer:
            self._take(asker, data)

    def _take(self, asker: _Asker, data: bytes) -> None:
        try:
            request = asker.reader.feed(data)
        except BadRequest as error:
            self._complain(f"a request at the door was refused: {error}")
            self._reply(asker, error.status, b"")
            return
        if request is None:
            return
        if not self._is_ours(asker.connection):  # asked again: it may have gone since it came
            self._hang_up(asker)
            return
        if request.method == "PUT" and request.path.startswith(REGISTRATION):
            self._reply(asker, 200, b"")
            return
        self._count += 1
        asker.question, asker.deadline = Question(self._count, self.life, request), None
        self._waiting[self._count] = asker
        self._asked(asker.question)

    def _reply(self, asker: _Asker, status: int, body: bytes) -> None:
        asker.answer = memoryview(response(status, body))
        asker.deadline = self._hall.now() + PATIENCE_S
        self._write(asker)

    def _write(self, asker: _Asker) -> None:
        try:
            sent = asker.connection.send(asker.answer)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(asker.answer)
        asker.answer = asker.answer[sent:]
        if asker.answer:
            self._hall.write(asker.connection.fileno(), functools.partial(self._write, asker))
        else:
            self._hang_up(asker)

    def _hang_up(self, asker: _Asker) -> None:
        descriptor = asker.connection.fileno()
        self._hall.unwatch(descriptor)
        del self._askers[descriptor]
        asker.connection.close()
        if asker.question is not None and self._waiting.pop(asker.question.number, None) is not None:
            self._unasked(asker.question.number)
        self._listen()

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
from hvd_elastic_ext.agent.system.event_loop import EventLoop
from hvd_elastic_ext.agent.system.streams import heard
from hvd_elastic_ext.io.peers import is_trusted, owner, owner_lookup

MAX_CLIENTS: Final = 256
"""Connections at a time; others wait in the kernel's queue."""
TIMEOUT_S: Final = 10.0
"""How long an asker may take to say what it wants, and to take its answer."""
REGISTRATION: Final = "/worker_addresses/"
"""Where a stock worker says how to notify it, pickled. Here it hears of updates over its link: nobody reads that."""


class Question(NamedTuple):
    """``number`` tells the questions of one door apart; ``life`` is whose process asked."""

    number: int
    life: int
    request: Request


class _Client:
    """One connection."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline: float | None = deadline
        self.reader = Reader()
        self.question: Question | None = None
        self.answer = memoryview(b"")


class RendezvousProxy:
    """See the module's docstring. ``asked`` and ``unasked`` hear of questions, ``warn`` of strangers."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        asked: Callable[[Question], None],
        unasked: Callable[[int], None],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._asked = asked
        self._unasked = unasked
        self._warn = warn
        self._sink = owner_lookup()
        if self._sink is None:
            warn("this kernel does not tell whose a connection is: its door is open to all users of this machine")
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_CLIENTS)
        self._listener.setblocking(False)
        self._clients: dict[int, _Client] = {}
        self._waiting: dict[int, _Client] = {}
        self._count = 0
        self._paused_until: float | None = None
        self.life = 0
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    # --- questions ---------------------------------------------------------------------------------

    @property
    def open_questions(self) -> list[Question]:
        """In the order in which they were asked."""
        return [client.question for client in self._waiting.values() if client.question is not None]

    def answer(self, number: int, status: int, body: bytes) -> None:
        """Answer a question; nothing happens if its asker has hung up meanwhile."""
        client = self._waiting.pop(number, None)
        if client is not None:
            self._reply(client, status, body)

    def due(self) -> float | None:
        """When the patience with an asker ends, or None."""
        deadlines = [client.deadline for client in self._clients.values()]
        return min((moment for moment in (*deadlines, self._paused_until) if moment is not None), default=None)

    def tick(self) -> None:
        """Hang up on those who took too long."""
        now = self._loop.now()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._listen()
        for client in list(self._clients.values()):
            if client.deadline is not None and now >= client.deadline:
                self._hang_up(client)

    def end_of_life(self) -> None:
        """All processes of the slot have ended: nobody is left who could be answered."""
        for client in list(self._clients.values()):
            self._hang_up(client)

    def close(self) -> None:
        self.end_of_life()
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    # --- connections -------------------------------------------------------------------------------

    def _listen(self) -> None:
        if len(self._clients) < MAX_CLIENTS and self._paused_until is None:
            self._loop.watch(self._listener.fileno(), self._accept)
        else:
            self._loop.unwatch(self._listener.fileno())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # gone again
            return
        except OSError as error:  # no descriptor left, say: that is not to keep the agent busy
            self._warn(f"its door cannot be opened just now: {error}")
            self._paused_until = self._loop.now() + 1.0
            self._listen()
            return
        if not self._is_ours(connection):
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection, self._loop.now() + TIMEOUT_S)
        self._clients[connection.fileno()] = client
        self._loop.watch(connection.fileno(), functools.partial(self._read, client))
        self._listen()

    def _is_ours(self, connection: socket.socket) -> bool:
        """Whether a process of this user, or of root, is there and connected. Who cannot be told is a stranger."""
        if self._sink is None:
            return True
        uid = owner(connection, self._sink)
        if not is_trusted(uid):
            whose = "that had gone, or whose user cannot be told," if uid is None else f"of user {uid}"
            self._warn(f"a process {whose} was turned away at the door")
        return is_trusted(uid)

    def _read(self, client: _Client) -> None:
        data = heard(client.connection)
        if data is None:
            return
        if not data:
            self._hang_up(client)
        elif client.question is None and not client.answer:
            self._take(client, data)

    def _take(self, client: _Client, data: bytes) -> None:
        try:
            request = client.reader.feed(data)
        except BadRequest as error:
            self._warn(f"a request at the door was refused: {error}")
            self._reply(client, error.status, b"")
            return
        if request is None:
            return
        if not self._is_ours(client.connection):  # asked again: it may have gone since it came
            self._hang_up(client)
            return
        if request.method == "PUT" and request.path.startswith(REGISTRATION):
            self._reply(client, 200, b"")
            return
        self._count += 1
        client.question, client.deadline = Question(self._count, self.life, request), None
        self._waiting[self._count] = client
        self._asked(client.question)

    def _reply(self, client: _Client, status: int, body: bytes) -> None:
        client.answer = memoryview(response(status, body))
        client.deadline = self._loop.now() + TIMEOUT_S
        self._write(client)

    def _write(self, client: _Client) -> None:
        try:
            sent = client.connection.send(client.answer)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(client.answer)
        client.answer = client.answer[sent:]
        if client.answer:
            self._loop.write(client.connection.fileno(), functools.partial(self._write, client))
        else:
            self._hang_up(client)

    def _hang_up(self, client: _Client) -> None:
        descriptor = client.connection.fileno()
        self._loop.unwatch(descriptor)
        del self._clients[descriptor]
        client.connection.close()
        if client.question is not None and self._waiting.pop(client.question.number, None) is not None:
            self._unasked(client.question.number)
        self._listen()

"""Horovod's rendezvous server for the processes of a slot, on 127.0.0.1: it passes each question on to the launcher.

A question stays open until it is answered or the client disconnects. Answered here: malformed requests, and those
that need no answer of the launcher's.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from hvd_elastic_ext.agent.slots.http import BadRequest, Reader, Request, response
from hvd_elastic_ext.agent.system.event_loop import EventLoop
from hvd_elastic_ext.agent.system.streams import heard
from hvd_elastic_ext.io.peers import is_trusted, is_whole, owner, owner_lookup

MAX_CLIENTS: Final = 256
"""Open connections; further ones wait in the kernel's queue."""
TIMEOUT_S: Final = 10.0
"""Seconds in which a client sends its request, and in which it reads the answer."""
REGISTRATION: Final = "/worker_addresses/"
"""Where a stock worker registers for notifications, pickled. Never read: updates come over the link."""


RANK: Final = "rank_and_size"
"""In the path of a question for a rank. All others are about keys."""
OK: Final = 200


class Question(NamedTuple):
    """``number`` is unique within a proxy; ``life`` is the number of the process that asks."""

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
    """``asked`` gets each question, ``withdrawn`` one that its client gave up, ``warn`` each refusal."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        asked: Callable[[Question], None],
        withdrawn: Callable[[Question], None],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._asked = asked
        self._withdrawn = withdrawn
        self._warn = warn
        self._lookup = owner_lookup()
        if self._lookup is None:
            warn("this kernel does not tell the user of a connection: the rendezvous proxy is open to all users here")
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

    def question(self, number: int) -> Question | None:
        """The open question with this number."""
        client = self._waiting.get(number)
        return None if client is None else client.question

    def answer(self, number: int, status: int, body: bytes) -> None:
        """Answer a question. Ignored if its client has disconnected."""
        client = self._waiting.pop(number, None)
        if client is not None:
            self._reply(client, status, body)

    def due(self) -> float | None:
        """When the next client times out, or None."""
        deadlines = [client.deadline for client in self._clients.values()]
        return min((moment for moment in (*deadlines, self._paused_until) if moment is not None), default=None)

    def tick(self) -> None:
        """Disconnect clients that took too long."""
        now = self._loop.now()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._listen()
        for client in list(self._clients.values()):
            if client.deadline is not None and now >= client.deadline:
                self._hang_up(client)

    def end_of_life(self) -> None:
        """Disconnect all clients: all processes of the slot have ended."""
        for client in list(self._clients.values()):
            self._hang_up(client)

    def close(self) -> None:
        """Disconnect all clients and give up the port."""
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
        except (BlockingIOError, ConnectionError):  # it has disconnected
            return
        except OSError as error:  # such as no descriptor left: pause, or the loop would spin
            self._warn(f"the rendezvous proxy accepts no connection just now: {error}")
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
        """Whether a live process of this user or of root is connected; False where that is unknown."""
        if self._lookup is None:
            return True
        uid = owner(connection, self._lookup)
        if not is_trusted(uid):
            whose = "that had gone, or whose user cannot be told," if uid is None else f"of user {uid}"
            self._warn(f"a process {whose} was refused by the rendezvous proxy")
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
            self._warn(f"the rendezvous proxy refused a request: {error}")
            self._reply(client, error.status, b"")
            return
        if request is None:
            return
        if self._lookup is not None and not is_whole(client.connection):  # it has disconnected since it was checked
            self._hang_up(client)
            return
        # A process that deletes its keys leaves its world. They are dropped with it.
        if request.method == "DELETE" or (request.method == "PUT" and request.path.startswith(REGISTRATION)):
            self._reply(client, OK, b"")
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
            self._withdrawn(client.question)
        self._listen()


def is_for_a_key(request: Request) -> bool:
    """Whether the value of a key is asked for."""
    return request.method == "GET" and RANK not in request.path

"""Horovod's rendezvous server for the processes of a slot, on 127.0.0.1. It passes each question on to the launcher.

A question stays open until it is answered or the client disconnects. The proxy itself answers malformed requests, and
requests that do not need the launcher.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.agent.http import Request, response
from hvd_elastic_ext.agent.http_port import Client, HttpPort
from hvd_elastic_ext.io.peers import is_trusted, is_whole, owner, owner_lookup

MAX_CLIENTS: Final = 256
"""Open connections; further ones wait in the kernel's queue."""
REGISTRATION: Final = "/worker_addresses/"
"""The path at which a stock worker registers for notifications, with pickled data. The data is never read: updates come
over the link."""
RANK: Final = "rank_and_size"
"""In the path of a question for a rank. All others are about keys."""
OK: Final = 200


class Question(NamedTuple):
    """A question of a process. ``number`` is unique within a proxy; ``life`` is the number of the process."""

    number: int
    life: int
    request: Request


class RendezvousProxy(HttpPort):
    """``asked`` gets each question, ``withdrawn`` each one whose client has disconnected, ``warn`` each refusal."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        asked: Callable[[Question], None],
        withdrawn: Callable[[Question], None],
        warn: Callable[[str], None],
    ) -> None:
        self._ask, self._withdraw, self._warn = asked, withdrawn, warn
        self._lookup = owner_lookup()
        if self._lookup is None:
            warn("this kernel does not tell the user of a connection: the rendezvous proxy is open to all users here")
        self._questions: dict[int, Question] = {}
        self.life = 0
        super().__init__(loop, socket.create_server(("127.0.0.1", 0), backlog=MAX_CLIENTS), most=MAX_CLIENTS)

    @property
    def open_questions(self) -> list[Question]:
        """The open questions, in the order in which they came."""
        return list(self._questions.values())

    def question(self, number: int) -> Question | None:
        """The open question with this number."""
        return self._questions.get(number)

    def answer(self, number: int, status: int, body: bytes) -> None:
        """Answer a question. Ignored if its client has disconnected."""
        if self._questions.pop(number, None) is not None:
            self._reply(self._peers[number], response(status, body))

    def _admits(self, connection: socket.socket) -> bool:
        """Whether a live process of this user or of root is connected; False if unknown."""
        if self._lookup is None:
            return True
        uid = owner(connection, self._lookup)
        if not is_trusted(uid):
            whose = "that had disconnected, or whose user is unknown," if uid is None else f"of user {uid}"
            self._warn(f"a process {whose} was refused by the rendezvous proxy")
        return is_trusted(uid)

    def _asked(self, client: Client, request: Request) -> None:
        if self._lookup is not None and not is_whole(client.connection):  # it has disconnected since the check
            self._hang_up(client)
        # A process that deletes its keys leaves its world; the keys are dropped with that world.
        elif request.method == "DELETE" or (request.method == "PUT" and request.path.startswith(REGISTRATION)):
            self._reply(client, response(OK))
        else:
            question = self._questions[client.number] = Question(client.number, self.life, request)
            self._ask(question)

    def _gone(self, client: Client) -> None:
        question = self._questions.pop(client.number, None)
        if question is not None:
            self._withdraw(question)

    def _report_problem(self, problem: str) -> None:
        self._warn(f"the rendezvous proxy {problem}")


def is_for_a_key(request: Request) -> bool:
    """Whether a request asks for the value of a key."""
    return request.method == "GET" and RANK not in request.path

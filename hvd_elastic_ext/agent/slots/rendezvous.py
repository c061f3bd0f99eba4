"""Horovod's rendezvous on this host: a server for the processes of each slot, on 127.0.0.1.

A process asks for its rank, and for keys of its world: the addresses of its peers. Horovod's protocol is not signed and
names no world. So each slot has a server of its own, the *proxy*, which knows who asks, and the agent passes the
question on to the launcher over its signed connection. A question stays open until it is answered or the client
disconnects. The proxy itself answers malformed requests, and requests that do not need the launcher.

:class:`WorldKeys` is one for all slots: it asks for each key of a world once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from hvd_elastic_ext.agent.descriptors import EventLoop
from hvd_elastic_ext.agent.ports import Client, HttpPort, Request, response
from hvd_elastic_ext.io.peers import KernelLookup, is_trusted, is_whole, owner, owner_by_netlink, owner_lookup

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
    """The server of one slot. ``asked`` gets each question, ``withdrawn`` each one whose client has disconnected, and
    ``warn`` each refusal."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        asked: Callable[[Question], None],
        withdrawn: Callable[[Question], None],
        warn: Callable[[str], None],
    ) -> None:
        self._ask, self._withdraw, self._warn = asked, withdrawn, warn
        lookup = owner_lookup()
        self._kernel = KernelLookup() if lookup is owner_by_netlink else None
        self._lookup = self._kernel or lookup
        if self._lookup is None:
            warn("this kernel does not tell the user of a connection: the rendezvous proxy is open to all users here")
        self._questions: dict[int, Question] = {}
        self.life = 0
        super().__init__(loop, socket.create_server(("127.0.0.1", 0), backlog=MAX_CLIENTS), most=MAX_CLIENTS)

    def close(self) -> None:
        """Disconnect all clients and give up the port."""
        super().close()
        if self._kernel is not None:
            self._kernel.close()

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


# --- answers for all processes of the host ---------------------------------------------------------------


_LOST: Final = 500
"""The launcher's answer to every question for a key of a world that is lost."""


class Key(NamedTuple):
    """A key of a world. ``path``: the path of its question. Each world has its own keys."""

    generation: int
    path: str


class Proxy(Protocol):
    """The connection of a slot, for the questions of its process."""

    def pass_on(self, number: int) -> None:
        """Ask the launcher."""

    def pass_answer(self, number: int, status: int, body: bytes) -> None:
        """Answer a question."""


class Asker(NamedTuple):
    """One open question, with its number at the proxy."""

    proxy: Proxy
    number: int


class WorldKeys:
    """Keys of the newest world that a process of this host has requested, and the requests that wait for each. Pure.

    In ``hvd.init()`` each process asks for the addresses of all others, in three scopes, so a host of 15 would ask 420
    questions that have 30 different answers. A process stores its keys once in a world, so an answer holds for the
    world.
    """

    def __init__(self) -> None:
        self._generation = self._lost = 0
        """Numbers of worlds: that of the keys, and the newest lost one."""
        self._known: dict[str, bytes] = {}
        self._waiting: dict[Key, list[Asker]] = {}
        """The waiting requests of each key. The first one was passed on to the launcher."""

    def ask(self, key: Key, asker: Asker) -> None:
        """Answer the question if the key is known. Else ask the launcher, unless it has been asked already."""
        if key.generation == self._generation and key.path in self._known:
            asker.proxy.pass_answer(asker.number, OK, self._known[key.path])
            return
        waiting = self._waiting.setdefault(key, [])
        waiting.append(asker)
        if len(waiting) == 1:
            asker.proxy.pass_on(asker.number)

    def is_passed_on(self, key: Key, asker: Asker) -> bool:
        """Whether this question was passed on to the launcher."""
        return self._waiting.get(key, [asker])[0] == asker

    def answered(self, key: Key, status: int, value: bytes) -> None:
        """Pass on the launcher's answer to all waiting requests."""
        if status == OK:
            self.store(key, value)
        elif status == _LOST:
            self.lose(key.generation)
        for proxy, number in self._waiting.pop(key, []):
            proxy.pass_answer(number, status, value)

    def withdraw(self, key: Key, asker: Asker) -> bool:
        """Drop a question, and pass on the next waiting one. Return whether the dropped one was passed on."""
        waiting = self._waiting.get(key, [])
        if asker not in waiting:
            return True
        first = waiting[0] == asker
        waiting.remove(asker)
        if not waiting:
            del self._waiting[key]
        elif first:
            waiting[0].proxy.pass_on(waiting[0].number)
        return first

    def store(self, key: Key, value: bytes) -> None:
        """Store the value of a key from the launcher."""
        if key.generation <= self._lost:  # a late answer, for a world that is lost
            return
        if key.generation > self._generation:
            self._generation, self._known = key.generation, {}
        if key.generation == self._generation:
            self._known[key.path] = value

    def lose(self, generation: int | None) -> None:
        """Drop the keys of a lost world. Later questions go to the launcher, which answers that the world is lost."""
        self._lost = max(self._lost, generation or 0)
        if self._generation <= self._lost:
            self._known = {}

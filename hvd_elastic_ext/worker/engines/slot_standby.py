"""Gets a slot's program its place in a world: it parks, is called, and gets a rank.

It reads the slot's link one message at a time, and nothing beyond that message: the next program needs all later ones.

:mod:`hvd_elastic_ext.worker.process.standby` uses the same messages for another purpose: it has a thread for the link,
and moves a process with Horovod from one world to the next.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.rank_info import Place, place_of
from hvd_elastic_ext.core.messages.slot_protocol import GENERATION_WAIT_S, LINK, RENDEZVOUS_PORT
from hvd_elastic_ext.worker.process.link import LONGEST_LINE, is_announced

_PEEK: Final = 4096
Message = Mapping[str, Any]


class LinkClosed(Exception):
    """The agent is gone, or sends an invalid message."""


class LauncherLink:
    """The slot's link on ``descriptor``, which stays open for the next program."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(True)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> LauncherLink:
        """Return the link that ``environ`` names. Raises :class:`LinkClosed` if there is none."""
        number = environ.get(LINK, "")
        if not is_announced(environ) or not number.isdigit():
            raise LinkClosed("this program has no link to an agent; only `hvd-elastic run` starts it")
        try:
            return cls(int(number))
        except OSError as error:
            raise LinkClosed(f"the link to the agent cannot be used: {error}") from error

    def send(self, what: str, **fields: Any) -> None:
        """Send a message. Raises :class:`LinkClosed` if the agent is gone."""
        try:
            self._socket.sendall(to_text({"say": what, **fields}).encode("ascii") + b"\n")
        except OSError as error:
            raise LinkClosed(f"the agent of this host has gone: {error}") from error

    def receive(self, *, within_s: float | None = None, beside: socket.socket | None = None) -> Message | None:
        """Wait for the next message.

        None after ``within_s`` seconds, or when there is data on ``beside``. Raises :class:`LinkClosed`.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        poll = select.poll()
        for each in (self._socket, beside):
            if each is not None:
                poll.register(each, select.POLLIN)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = [number for number, _ in poll.poll(None if left is None else left * 1000)]
            if self._socket.fileno() not in ready:
                return None
            message = self._next()
            if message is not None:
                return message

    def close(self) -> None:
        """Close the link. Call it when another process has it."""
        self._socket.close()
        os.close(self.descriptor)

    def _next(self) -> Message | None:
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                seen = self._socket.recv(_PEEK, socket.MSG_PEEK)
                end = seen.find(b"\n")
                line += self._socket.recv(end + 1 if end >= 0 else len(seen))
            except OSError as error:
                raise LinkClosed(f"the agent of this host has gone: {error}") from error
            if not seen or len(line) > LONGEST_LINE:
                raise LinkClosed("the agent of this host has gone")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) and isinstance(message.get("tell"), str) else None


HOSTNAME: Final = "HOROVOD_HOSTNAME"
AGAIN_S: Final = 0.5
"""Pause before a request is repeated."""
_OK: Final = 200
_NOT_YET: Final = 404
_LONGEST_ANSWER: Final = 2 << 20


class NotNeeded(Exception):
    """This process is not needed."""


class WorldAbandoned(Exception):
    """The world was abandoned before it formed."""


class CannotStart(Exception):
    """The training process cannot be started."""


class Membership(NamedTuple):
    """A place in a world."""

    place: Place
    generation: int
    env: Mapping[str, str]
    """The variables with which a process finds its peers."""


class SlotStandby:
    """Gets one program into its world. Every method raises :class:`LinkClosed`, :class:`NotNeeded` or
    :class:`WorldAbandoned`.
    """

    def __init__(self, link: LauncherLink, environ: Mapping[str, str]) -> None:
        self._link = link
        self._rendezvous_port = int(environ.get(RENDEZVOUS_PORT) or 0)
        self._host = environ.get(HOSTNAME) or socket.gethostname()
        self._env: dict[str, str] = {}
        self._called = False
        self._generation = 0

    def join(self) -> Membership:
        """Park, and ask for a rank once all members are called. Blocks until it is known."""
        self._link.send("parked")
        while not self._called:
            self._take(self._link.receive())
        place = None
        while place is None:
            status, body = self._question("GET", f"/rank_and_size/{self._host}/{os.getpid()}")
            place = place_of(body.decode("ascii", "replace")) if status == _OK else None
            self._pause(0.0 if place is not None else AGAIN_S)
        deadline = time.monotonic() + GENERATION_WAIT_S
        while not self._generation and (left := deadline - time.monotonic()) > 0:
            self._take(self._link.receive(within_s=left))
        return Membership(place, self._generation, self._env)

    def publish(self, name: str, text: str) -> None:
        """Publish a text to the other members of this world."""
        status, _ = self._question("PUT", f"/hvd_elastic/{name}", text.encode("ascii"))
        if status != _OK:
            raise WorldAbandoned

    def learn(self, name: str) -> str:
        """Wait for a text that another member publishes."""
        while True:
            status, body = self._question("GET", f"/hvd_elastic/{name}")
            if status == _OK:
                return body.decode("ascii")
            if status != _NOT_YET:
                raise WorldAbandoned

    def _question(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request to the agent's proxy, and read the link meanwhile."""
        head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode("ascii")
        try:
            with socket.create_connection(("127.0.0.1", self._rendezvous_port)) as asking:
                asking.sendall(head + body)
                answer = bytearray()
                while len(answer) < _LONGEST_ANSWER:
                    if (message := self._link.receive(beside=asking)) is not None:
                        self._take(message)
                        continue
                    if not (piece := asking.recv(1 << 16)):
                        break
                    answer += piece
        except OSError as error:
            raise LinkClosed(f"the agent of this host does not answer: {error}") from error
        return _parsed(bytes(answer))

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._take(self._link.receive(within_s=left))

    def _take(self, message: Message | None) -> None:
        if message is None:
            return
        if message["tell"] == "go":
            self._called = True
            env = message.get("env")
            self._env = {str(name): str(value) for name, value in (env if isinstance(env, dict) else {}).items()}
        elif message["tell"] == "world" and isinstance(message.get("generation"), int):
            self._generation = message["generation"]
        elif message["tell"] == "update" and message.get("leave"):
            raise NotNeeded(str(message.get("reason") or "it is not needed"))


class WaitingSlot(NamedTuple):
    """What a slot's program has before its rank is known."""

    link: LauncherLink
    standby: SlotStandby
    command: Sequence[str]
    """The job's."""
    environ: Mapping[str, str]
    """This program's."""


def _parsed(answer: bytes) -> tuple[int, bytes]:
    """Return status and body; status 500 for an invalid answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ")
    if len(words) < 2 or not words[1].isdigit():
        return 500, b""
    return int(words[1]), body

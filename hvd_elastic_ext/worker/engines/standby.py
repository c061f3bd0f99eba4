"""From the start of a slot's program to its place in a world: parked, called, told its rank."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from hvd_elastic_ext.core.rank_info import Place, place_of
from hvd_elastic_ext.worker.engines.launcher_link import Gone, Line, Message

DOOR: Final = "HVD_ELASTIC_DOOR"
HOSTNAME: Final = "HOROVOD_HOSTNAME"

WORLD_S: Final = 10.0
"""How long the number of the world that was just joined may take over the link: it was sent before the rank."""
AGAIN_S: Final = 0.5
"""Pause before a question is asked again that could not be answered."""

_OK: Final = 200
_NOT_YET: Final = 404
_LONGEST_ANSWER: Final = 2 << 20


class SentAway(Exception):
    """This process is not needed."""


class GivenUp(Exception):
    """The world was given up before it had formed."""


class Membership(NamedTuple):
    """``env`` is what the launcher said about how peers are found."""

    place: Place
    generation: int
    env: Mapping[str, str]


class StandingBy:
    """One program's way into its world. Every method raises :class:`Gone`, :class:`SentAway` or :class:`GivenUp`."""

    def __init__(self, line: Line, environ: Mapping[str, str]) -> None:
        self._line = line
        self._door = int(environ.get(DOOR) or 0)
        self._host = environ.get(HOSTNAME) or socket.gethostname()
        self._env: dict[str, str] = {}
        self._called = False
        self._generation = 0

    def join(self) -> Membership:
        """Park, and when all members of a world are called, ask for a rank in it. Blocks until it is known."""
        self._line.say("parked")
        while not self._called:
            self._take(self._line.hear())
        place = None
        while place is None:
            status, body = self._question("GET", f"/rank_and_size/{self._host}/{os.getpid()}")
            place = place_of(body.decode("ascii", "replace")) if status == _OK else None
            self._pause(0.0 if place is not None else AGAIN_S)
        deadline = time.monotonic() + WORLD_S
        while not self._generation and (left := deadline - time.monotonic()) > 0:
            self._take(self._line.hear(within_s=left))
        return Membership(place, self._generation, self._env)

    def publish(self, name: str, text: str) -> None:
        """Let the other members of this world know something."""
        status, _ = self._question("PUT", f"/hvd_elastic/{name}", text.encode("ascii"))
        if status != _OK:
            raise GivenUp

    def learn(self, name: str) -> str:
        """What another member has published, or will."""
        while True:
            status, body = self._question("GET", f"/hvd_elastic/{name}")
            if status == _OK:
                return body.decode("ascii")
            if status != _NOT_YET:
                raise GivenUp

    def _question(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Ask at the door, and listen to the link meanwhile."""
        head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode("ascii")
        try:
            with socket.create_connection(("127.0.0.1", self._door)) as asking:
                asking.sendall(head + body)
                answer = bytearray()
                while len(answer) < _LONGEST_ANSWER:
                    if (message := self._line.hear(beside=asking)) is not None:
                        self._take(message)
                        continue
                    if not (piece := asking.recv(1 << 16)):
                        break
                    answer += piece
        except OSError as error:
            raise Gone(f"the agent of this host does not answer: {error}") from error
        return _parsed(bytes(answer))

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._take(self._line.hear(within_s=left))

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
            raise SentAway(str(message.get("reason") or "it is not needed"))


def _parsed(answer: bytes) -> tuple[int, bytes]:
    """Status and body; 500 for what is no answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ")
    if len(words) < 2 or not words[1].isdigit():
        return 500, b""
    return int(words[1]), body

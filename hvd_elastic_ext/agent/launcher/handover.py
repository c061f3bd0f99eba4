"""Where the agent of a host receives newcomers of its job: the other side of ``singleton.py``."""

from __future__ import annotations

import functools
import hmac
import json
import os
import socket
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.launcher.singleton import ANSWER_S, MAX_LINE, prove
from hvd_elastic_ext.agent.orders.fields import OrderError
from hvd_elastic_ext.agent.orders.orders import End, Join, entry_of, read
from hvd_elastic_ext.agent.system.event_loop import Hall
from hvd_elastic_ext.agent.system.streams import Lines, heard
from hvd_elastic_ext.io.peers import user_of

MAX_GUESTS: Final = 16
DEAF_S: Final = 1.0
"""How long nobody is received where there is no descriptor left: looking again at once, it would do nothing else."""


class _Guest:
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline: float | None = deadline
        self.lines = Lines(MAX_LINE)
        self.nonce = os.urandom(32).hex()

    def say(self, **words: str) -> None:
        # A line that small is taken at once, or there is nobody.
        try:
            self.connection.send(json.dumps(words).encode() + b"\n")
        except OSError:
            return


class Reception:
    """Hands proven orders to ``obey``, which returns the answer, or raises ``OrderError`` with what is against it."""

    def __init__(self, hall: Hall, listener: socket.socket, key: bytes, *, obey: Callable[[Join | End], str]) -> None:
        self._hall = hall
        self._listener = listener
        self._key = key
        self._obey = obey
        self._guests: dict[int, _Guest] = {}
        self._deaf_until: float | None = None
        hall.watch(listener.fileno(), self._accept)

    def due(self) -> float | None:
        deadlines = [guest.deadline for guest in self._guests.values()]
        return min((moment for moment in (*deadlines, self._deaf_until) if moment is not None), default=None)

    def tick(self) -> None:
        now = self._hall.now()
        if self._deaf_until is not None and now >= self._deaf_until:
            self._deaf_until = None
            self._hall.watch(self._listener.fileno(), self._accept)
        for guest in list(self._guests.values()):
            if guest.deadline is not None and now >= guest.deadline:
                self._see_off(guest)

    def close(self) -> None:
        """Receive nobody any more. Those who wait for the agent's end wait on."""
        self._deaf_until = None
        self._hall.unwatch(self._listener.fileno())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # gone again
            return
        except OSError:
            self._deaf_until = self._hall.now() + DEAF_S
            self._hall.unwatch(self._listener.fileno())
            return
        if user_of(connection) != os.geteuid() or len(self._guests) >= MAX_GUESTS:
            connection.close()
            return
        connection.setblocking(False)
        guest = self._guests[connection.fileno()] = _Guest(connection, self._hall.now() + ANSWER_S)
        guest.say(nonce=guest.nonce)
        self._hall.watch(connection.fileno(), functools.partial(self._read, guest))

    def _read(self, guest: _Guest) -> None:
        data = heard(guest.connection)
        if data is None:
            return
        if not data:
            self._see_off(guest)
            return
        for line in guest.lines.feed(data):
            self._answer(guest, line)
            break  # one order each

    def _answer(self, guest: _Guest, line: bytes | None) -> None:
        try:
            answer = self._obey(self._proven(guest, line))
        except OrderError as error:
            guest.say(refused=str(error))
            self._see_off(guest)
            return
        guest.say(answer=answer)
        if answer == "ending":
            guest.deadline = None  # hung up on by our end
        else:
            self._see_off(guest)

    def _proven(self, guest: _Guest, line: bytes | None) -> Join | End:
        entry = entry_of(line)
        text, proof = str(entry.get("order")), str(entry.get("proof"))
        if not hmac.compare_digest(prove(self._key, guest.nonce, text).encode(), proof.encode()):
            raise OrderError("the agent that lives on this host has another key for this job")
        order = read({**entry_of(text.encode()), "key": "proven"})
        if not isinstance(order, Join | End):
            raise OrderError("this is no order for the agent that lives on this host")
        return order

    def _see_off(self, guest: _Guest) -> None:
        descriptor = guest.connection.fileno()
        self._hall.unwatch(descriptor)
        del self._guests[descriptor]
        guest.connection.close()

"""Connections of the page's server: limited in number and time, for whoever has not shown the token.

uvicorn limits neither a connection that asks nothing nor one whose answer nobody reads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from hvd_elastic_ext.core.connections import ANSWER_S, MOST, REQUEST_S, choose_to_close, source_of
from hvd_elastic_ext.io.accepting import Listener


@dataclass(eq=False, slots=True)
class Guest:
    """An open connection."""

    transport: asyncio.Transport
    source: str
    since: float
    """When it was opened, by the loop's clock."""
    knows_token: bool = False
    """A request of it had the token, so it is the user's."""
    timer: asyncio.TimerHandle | None = None

    def closed(self) -> bool:
        """Whether its descriptor is free again."""
        return bool(self.transport.get_extra_info("socket").fileno() < 0)


class Guests:
    """Open connections by the address of their other end, as ``client`` of a request names it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._guests: dict[Hashable, Guest] = {}

    def came(self, transport: asyncio.Transport, address: object) -> None:
        """A connection begins; it has :data:`REQUEST_S` for its request."""
        guest = Guest(transport, source_of(address), asyncio.get_running_loop().time())
        self._guests[_key(address)] = guest
        self._until(guest, REQUEST_S)

    def asked(self, client: object) -> None:
        """A request has come; its answer must be read within :data:`ANSWER_S`."""
        if guest := self._guests.get(_key(client)):
            self._until(guest, ANSWER_S)

    def showed_token(self, client: object) -> None:
        """It is the user's own: the answer may take as long as the page is open."""
        if guest := self._guests.get(_key(client)):
            guest.knows_token = True
            self._until(guest, None)

    def answered(self, client: object) -> None:
        """The answer is written. uvicorn closes what asks no more; what is not read then is closed here."""
        if guest := self._guests.get(_key(client)):
            self._until(guest, ANSWER_S)

    def make_room(self) -> None:
        """Close a connection if there are too many: first those that have not shown the token."""
        self._guests = {key: guest for key, guest in self._guests.items() if not guest.closed()}
        if len(self._guests) < self._most:
            return
        held = [guest for guest in self._guests.values() if not guest.transport.is_closing()]
        strangers = [guest for guest in held if not guest.knows_token]
        if leaving := choose_to_close(strangers or held):
            leaving.transport.abort()

    def _until(self, guest: Guest, seconds: float | None) -> None:
        if guest.timer is not None:
            guest.timer.cancel()
        loop = asyncio.get_running_loop()
        guest.since = loop.time()
        guest.timer = None if seconds is None else loop.call_later(seconds, guest.transport.abort)


def _key(address: object) -> Hashable:
    return tuple(address[:2]) if isinstance(address, tuple | list) else None


async def serve(app: ASGIApp, listening: socket.socket, guests: Guests, *, ends: asyncio.Event, **options: Any) -> None:
    """Serve ``app`` with uvicorn until it is told to end by a signal, or ``ends`` is set. ``options``: uvicorn's."""
    config = uvicorn.Config(app, **options)
    config.load()
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    beginning: set[asyncio.Task[None]] = set()

    async def begin(connection: socket.socket, address: object) -> None:
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: config.http_protocol_class(  # type: ignore[call-arg]
                    config=config, server_state=server.server_state, app_state={}, _loop=loop
                ),
                connection,
            )
        except OSError:  # it has disconnected
            connection.close()
            return
        guests.came(transport, address)

    def came(connection: socket.socket, address: object) -> None:
        task = loop.create_task(begin(connection, address))
        beginning.add(task)
        task.add_done_callback(beginning.discard)

    async def end() -> None:
        await ends.wait()
        server.should_exit = True

    listener = Listener(listening, came, name="the dashboard", room=guests.make_room)
    ending = loop.create_task(end())
    try:
        await server.serve(sockets=[])
    finally:
        ending.cancel()
        listener.close()

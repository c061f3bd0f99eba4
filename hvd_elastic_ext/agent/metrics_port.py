"""The port at which Prometheus reads the agent's figures."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.descriptors import EventLoop, warn
from hvd_elastic_ext.agent.ports import Client, HttpPort, Request, response
from hvd_elastic_ext.core.connections import MOST

PATH: Final = "/metrics"

_PORTS: Final = range(65536)

Answer = tuple[int, bytes, str]
"""HTTP status, body, type of the body."""


class MetricsPort(HttpPort):
    """The port. ``address``: HOST:PORT, with an address of this machine. ``answer`` returns the answer to each request.

    Raises ``OSError`` and ``ValueError`` if it cannot listen there.
    """

    def __init__(self, loop: EventLoop, address: str, answer: Callable[[], Answer]) -> None:
        self.address = address
        self._figures = answer
        self._warned: set[type[Exception]] = set()
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.inet_pton(family, host)  # no names: to resolve one takes time
        if int(port) not in _PORTS:
            raise ValueError(port)
        listener = socket.create_server((host, int(port)), family=family, backlog=MOST)
        super().__init__(loop, listener, most=MOST, replaces_oldest=True)

    def _asked(self, client: Client, request: Request) -> None:
        self._reply(client, self._answered(request))

    def _answered(self, request: Request) -> bytes:
        if request.method != "GET":
            return response(405)
        if request.path.partition("?")[0] != PATH:
            return response(404)
        try:
            status, body, kind = self._figures()
        except Exception as error:  # noqa: BLE001 - a driver's, say: it is not worth the agent and the training here
            if type(error) not in self._warned:
                self._warned.add(type(error))
                warn(f"figures for Prometheus: {type(error).__name__}: {error}")
            return response(500)
        return response(status, body, kind)

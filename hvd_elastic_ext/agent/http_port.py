"""An HTTP port with one request for each connection, in the agent's loop: the agent forks, and so has no threads."""

from __future__ import annotations

import functools
import socket

from hvd_elastic_ext.agent.descriptors import read_available
from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.agent.http import BadRequest, Reader, Request, response
from hvd_elastic_ext.agent.ports import Acceptor, Peer
from hvd_elastic_ext.core.connections import ANSWER_S, REQUEST_S


class Client(Peer):
    """One connection. It has no deadline while its request is being answered."""

    def __init__(self, number: int, connection: socket.socket, deadline: float) -> None:
        super().__init__(number, connection, deadline)
        self.reader = Reader()
        self.asked = False
        self.answer = memoryview(b"")


class HttpPort(Acceptor[Client]):
    """``listener`` is closed with the port."""

    def __init__(self, loop: EventLoop, listener: socket.socket, *, most: int, replaces_oldest: bool = False) -> None:
        super().__init__(loop, listener, most=most, replaces_oldest=replaces_oldest)
        self.port: int = listener.getsockname()[1]

    def close(self) -> None:
        """Disconnect all clients and give up the port."""
        super().close()
        self.hang_up_all()
        self._listener.close()

    def _asked(self, client: Client, request: Request) -> None:
        """Answer a request, now or later."""
        raise NotImplementedError

    def _report_problem(self, problem: str) -> None:
        """Called when a connection or request is refused."""

    def _reply(self, client: Client, answer: bytes) -> None:
        client.answer = memoryview(answer)
        client.deadline = self._loop.now() + ANSWER_S
        self._write(client)

    def _met(self, number: int, connection: socket.socket) -> Client:
        return Client(number, connection, self._loop.now() + REQUEST_S)

    def _failed(self, error: OSError) -> None:
        self._report_problem(f"accepts no connection just now: {error}")

    def _read(self, client: Client) -> None:
        data = read_available(client.connection)
        if data is None:
            return
        if not data:
            self._hang_up(client)
        elif not client.asked and not client.answer:
            self._take(client, data)

    def _take(self, client: Client, data: bytes) -> None:
        try:
            request = client.reader.feed(data)
        except BadRequest as error:
            self._report_problem(f"refused a request: {error}")
            self._reply(client, response(error.status))
            return
        if request is not None:
            client.asked, client.deadline = True, None
            self._asked(client, request)

    def _write(self, client: Client) -> None:
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

"""The agent's end of a handover: it takes orders from agents that start later. See ``claim.py``."""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.claim import ANSWER_S, MAX_LINE, proof_of
from hvd_elastic_ext.agent.descriptors import Lines, read_available
from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.agent.fields import OrderError
from hvd_elastic_ext.agent.orders import End, Join, entry_of, read
from hvd_elastic_ext.agent.ports import Acceptor, Peer
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.peers import user_of

MAX_PEERS: Final = 16


class _Newcomer(Peer):
    def __init__(self, number: int, connection: socket.socket, deadline: float) -> None:
        super().__init__(number, connection, deadline)
        self.lines = Lines(MAX_LINE)
        self.nonce = os.urandom(32).hex()
        self.send(nonce=self.nonce)

    def send(self, **words: str) -> None:
        # The kernel accepts so short a line at once, unless the peer has disconnected.
        try:
            self.connection.send(to_text(words).encode() + b"\n")
        except OSError:
            return


class HandoverServer(Acceptor[_Newcomer]):
    """Checks the proof of each order and gives it to ``apply``, which returns the answer or raises ``OrderError``.

    A connection without an order within ``ANSWER_S`` is closed.
    """

    def __init__(
        self, loop: EventLoop, listener: socket.socket, key: bytes, *, apply: Callable[[Join | End], str]
    ) -> None:
        self._key = key
        self._apply = apply
        super().__init__(loop, listener, most=MAX_PEERS + 1)

    def _admits(self, connection: socket.socket) -> bool:
        return user_of(connection) == os.geteuid() and len(self._peers) < MAX_PEERS

    def _met(self, number: int, connection: socket.socket) -> _Newcomer:
        return _Newcomer(number, connection, self._loop.now() + ANSWER_S)

    def _read(self, peer: _Newcomer) -> None:
        data = read_available(peer.connection)
        if data is None:
            return
        if not data:
            self._hang_up(peer)
            return
        for line in peer.lines.feed(data):
            self._answer(peer, line)
            break  # one order for each connection

    def _answer(self, peer: _Newcomer, line: bytes | None) -> None:
        try:
            answer = self._apply(self._proven(peer, line))
        except OrderError as error:
            peer.send(refused=str(error))
            self._hang_up(peer)
            return
        peer.send(answer=answer)
        if answer == "ending":
            peer.deadline = None  # the end of this agent closes the connection
        else:
            self._hang_up(peer)

    def _proven(self, peer: _Newcomer, line: bytes | None) -> Join | End:
        entry = entry_of(line)
        text, proof = str(entry.get("order")), str(entry.get("proof"))
        if not hmac.compare_digest(proof_of(self._key, peer.nonce, text).encode(), proof.encode()):
            raise OrderError("the agent of this host has another key for this job")
        order = read({**entry_of(text.encode()), "key": "proven"})
        if not isinstance(order, Join | End):
            raise OrderError("this order is not for the agent of this host")
        return order

"""The agent's end of a handover: it takes orders from agents that start later. See ``host_claim.py``."""

from __future__ import annotations

import functools
import hmac
import os
import socket
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.launcher.host_claim import ANSWER_S, MAX_LINE, proof_of
from hvd_elastic_ext.agent.orders.fields import OrderError
from hvd_elastic_ext.agent.orders.orders import End, Join, entry_of, read
from hvd_elastic_ext.agent.system.event_loop import EventLoop
from hvd_elastic_ext.agent.system.streams import Lines, heard
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.peers import user_of

MAX_PEERS: Final = 16
ACCEPT_PAUSE_S: Final = 1.0
"""Pause after accepting failed because no descriptor is left: without it the loop would spin."""


class _Peer:
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline: float | None = deadline
        self.lines = Lines(MAX_LINE)
        self.nonce = os.urandom(32).hex()

    def say(self, **words: str) -> None:
        # So short a line is taken at once, or the peer is gone.
        try:
            self.connection.send(to_text(words).encode() + b"\n")
        except OSError:
            return


class HandoverServer:
    """Checks the proof of each order and gives it to ``apply``, which returns the answer or raises ``OrderError``."""

    def __init__(
        self, loop: EventLoop, listener: socket.socket, key: bytes, *, apply: Callable[[Join | End], str]
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._key = key
        self._apply = apply
        self._peers: dict[int, _Peer] = {}
        self._paused_until: float | None = None
        loop.watch(listener.fileno(), self._accept)

    def due(self) -> float | None:
        """The loop's time at which a peer times out or the pause in accepting ends; None if neither is pending."""
        deadlines = [peer.deadline for peer in self._peers.values()]
        return min((moment for moment in (*deadlines, self._paused_until) if moment is not None), default=None)

    def tick(self) -> None:
        """Disconnect each peer that has sent no order within ``ANSWER_S``; accept again once the pause is over."""
        now = self._loop.now()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._loop.watch(self._listener.fileno(), self._accept)
        for peer in list(self._peers.values()):
            if peer.deadline is not None and now >= peer.deadline:
                self._close_peer(peer)

    def close(self) -> None:
        """Accept no more. Peers that wait for the agent's end keep waiting."""
        self._paused_until = None
        self._loop.unwatch(self._listener.fileno())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has disconnected
            return
        except OSError:
            self._paused_until = self._loop.now() + ACCEPT_PAUSE_S
            self._loop.unwatch(self._listener.fileno())
            return
        if user_of(connection) != os.geteuid() or len(self._peers) >= MAX_PEERS:
            connection.close()
            return
        connection.setblocking(False)
        peer = self._peers[connection.fileno()] = _Peer(connection, self._loop.now() + ANSWER_S)
        peer.say(nonce=peer.nonce)
        self._loop.watch(connection.fileno(), functools.partial(self._read, peer))

    def _read(self, peer: _Peer) -> None:
        data = heard(peer.connection)
        if data is None:
            return
        if not data:
            self._close_peer(peer)
            return
        for line in peer.lines.feed(data):
            self._answer(peer, line)
            break  # one order each

    def _answer(self, peer: _Peer, line: bytes | None) -> None:
        try:
            answer = self._apply(self._proven(peer, line))
        except OrderError as error:
            peer.say(refused=str(error))
            self._close_peer(peer)
            return
        peer.say(answer=answer)
        if answer == "ending":
            peer.deadline = None  # closed by this agent's end
        else:
            self._close_peer(peer)

    def _proven(self, peer: _Peer, line: bytes | None) -> Join | End:
        entry = entry_of(line)
        text, proof = str(entry.get("order")), str(entry.get("proof"))
        if not hmac.compare_digest(proof_of(self._key, peer.nonce, text).encode(), proof.encode()):
            raise OrderError("the agent of this host has another key for this job")
        order = read({**entry_of(text.encode()), "key": "proven"})
        if not isinstance(order, Join | End):
            raise OrderError("this order is not for the agent of this host")
        return order

    def _close_peer(self, peer: _Peer) -> None:
        descriptor = peer.connection.fileno()
        self._loop.unwatch(descriptor)
        del self._peers[descriptor]
        peer.connection.close()

"""The launcher's control port: a session with every agent; events come in and orders go out.

Frames are those of :mod:`hvd_elastic_ext.core.messages.wire`. Connections without the job's key are refused, counted
and logged once; agents reach the driver as :data:`ControlEvent`. All runs in the driver's loop and nothing waits: a
slow handler delays reading, and an agent that does not read is disconnected. It reconnects, and orders follow from the
state.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.core.messages.wire import WireError
from hvd_elastic_ext.launcher.agents.capacity import DEFAULT_PACE, HeartbeatPace
from hvd_elastic_ext.launcher.agents.connection import Acceptor, Session
from hvd_elastic_ext.launcher.agents.poller import DescriptorPoller
from hvd_elastic_ext.launcher.driver.events import AgentJoined, AgentLost, News
from hvd_elastic_ext.launcher.membership.rendezvous import slot_number

log = logging.getLogger(__name__)

LINGER_S: Final = 2.0
"""Seconds that :meth:`Control.stop` waits for agents to read their last orders and disconnect."""
_READ: Final = 64 << 10
_BACKLOG: Final = 4096
_MAX_NAMED: Final = 1024
_MAX_AGENT_ID: Final = 64
_STOPS: Final = "the launcher stops"


@dataclass(frozen=True, slots=True)
class Superseded:
    """An agent has a launcher of this job with a higher ``incarnation``: this launcher must end."""

    incarnation: int


ControlEvent = AgentJoined | AgentLost | News | Superseded


class Control:
    """See the module's docstring. Call all methods in the loop that :meth:`start` ran in.

    ``pace`` and ``options``: what agents get in their welcome. ``ports``: by address, those of an earlier
    launcher, where its agents look for it. ``on_event`` is called in the loop, and may send and drop. If it raises,
    that is logged as a defect and the agent is disconnected: it reconnects and reports its state.
    """

    def __init__(
        self,
        job: str,
        key: bytes,
        *,
        incarnation: int,
        pace: HeartbeatPace = DEFAULT_PACE,
        options: Mapping[str, Any] = MappingProxyType({}),
        ports: Mapping[str, int] | None = None,
        on_event: Callable[[ControlEvent], None],
    ) -> None:
        self.refused: Counter[str] = Counter()
        """Refusals by reason."""
        self.key = key
        self._before = dict(ports or {})
        self.buffer = bytearray(_READ)
        """The read buffer of all connections. It is filled and used within one call of the loop."""
        self.poller: DescriptorPoller
        self._job = job
        self._incarnation = incarnation
        self._on_event = on_event
        self.pace = pace
        self._options = options
        self.connections: set[Session] = set()
        self._sessions: dict[str, Session] = {}
        self._newest: dict[str, str] = {}
        """By host, the newest agent."""
        self._replaced: set[tuple[str, str]] = set()
        """Agents that another agent of their host has replaced. If they could connect again, both would replace each
        other for ever."""
        self._acceptors: dict[str, tuple[Acceptor, int]] = {}
        self._stopping = False
        self._named: set[tuple[str, str]] = set()

    async def start(self, address: str, port: int = 0) -> int:
        """Listen on one IPv4 address; return the port for agents. Raises ``UsageError`` if that is not possible."""
        try:
            listener = _listener(address, *([port] if port else [*self._earlier(address), 0]))
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"the launcher cannot listen on {address} port {port}: {why}; choose another") from None
        self.poller = DescriptorPoller()
        return self._open(address, listener)

    def listen(self, address: str) -> int:
        """Listen on one more address of this machine, on the same port if it is free there; the port.

        An address that it listens on already stays unchanged. Raises ``OSError`` for another machine's address.
        """
        if address in self._acceptors:
            return self._acceptors[address][1]
        port = next(iter(self._acceptors.values()))[1]
        return self._open(address, _listener(address, *self._earlier(address), port, 0))

    @property
    def ports(self) -> dict[str, int]:
        """Where it listens, by address."""
        return {address: port for address, (_, port) in self._acceptors.items()}

    def _earlier(self, address: str) -> list[int]:
        return [self._before[address]] if address in self._before else []

    def _open(self, address: str, listener: socket.socket) -> int:
        port = int(listener.getsockname()[1])
        self._acceptors[address] = (Acceptor(listener, self), port)
        return port

    def set_pace(self, pace: HeartbeatPace) -> None:
        """Set how often agents send heartbeats, present and later ones."""
        if pace == self.pace:
            return
        self.pace = pace
        for session in list(self._sessions.values()):
            session.send({"do": "pace", **pace._asdict()})

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts with a session."""
        return tuple(host for host, session in self._sessions.items() if not session.over)

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        """Send ``order``, without waiting. False if there is no session with ``host``, or not any more.

        True does not mean that it arrives. Raises ``WireError`` for an order that is not JSON or too large for a frame.
        """
        session = self._sessions.get(host)
        return session is not None and session.send(order)

    def drop(self, host: str, reason: str) -> None:
        """Disconnect ``host``; unsent orders are lost and ``AgentLost`` follows. It may reconnect."""
        session = self._sessions.get(host)
        if session is not None:
            session.hang_up(reason)

    async def stop(self) -> None:
        """Disconnect all agents once they have read their last orders. No events follow."""
        self._stopping = True
        for acceptor, _ in self._acceptors.values():
            acceptor.close()
        sessions = tuple(self.connections)
        for session in sessions:
            if session.host or session.over:
                session.close_when_read(_STOPS)
            else:
                session.hang_up(_STOPS)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_all_gone(sessions), LINGER_S)
        for session in sessions:
            session.hang_up(_STOPS)
        await _all_gone(sessions)
        if self._acceptors:
            self.poller.close()
        if self.refused:
            counts = "; ".join(f"{count} × {reason}" for reason, count in self.refused.most_common())
            log.warning("control port: refused in all: %s", counts)

    # --- what sessions need

    def refuse(self, peer: str, reason: str) -> None:
        """Count a refusal, and log each kind once."""
        self.refused[reason] += 1
        if (peer, reason) not in self._named and len(self._named) < _MAX_NAMED:
            self._named.add((peer, reason))
            log.warning("control port: refused %s: %s", peer, reason)

    def log_defect(self, session: Session, error: Exception) -> None:
        """Log a defect of this program with its traceback, once."""
        self.refused[f"a defect of hvd-elastic ({type(error).__name__})"] += 1
        defect = f"a defect of hvd-elastic: {type(error).__name__}: {error}"
        if ("", defect) not in self._named and len(self._named) < _MAX_NAMED:
            self._named.add(("", defect))
            who = session.host or session.peer
            log.error("%s is disconnected, to reconnect and report its state: %s", who, defect, exc_info=error)

    def admit(self, session: Session, hello: Mapping[str, Any]) -> None:
        """Bind the session to its host. Raises ``WireError`` if it is not an agent of this job."""
        problem = hello_error(hello, job=self._job)
        if problem is not None:
            raise WireError(problem)
        if hello["incarnation"] > self._incarnation:
            self._emit(Superseded(hello["incarnation"]))
            raise WireError("its agent obeys a newer launcher")
        if (hello["host"], hello["agent"]) in self._replaced:
            self._end(session, hello)
            return
        session.acceptor.authenticated_or_closed(session)
        self._replace_earlier_agent(hello["host"], agent=hello["agent"])
        session.host, session.agent = hello["host"], hello["agent"]
        self._sessions[session.host] = session
        self.poller.agents = len(self._sessions)
        session.send(self._welcome)
        self._emit(AgentJoined(session.host, hello))

    def receive(self, session: Session, news: Mapping[str, Any]) -> None:
        """Handle a message from an agent. Raises ``WireError`` if it is malformed."""
        if not isinstance(news.get("event"), str) or news["event"] == "hello":
            raise WireError("a message is not news")
        self._emit(News(session.host, news))

    def disconnected(self, session: Session) -> None:
        """A connection is closed."""
        self.connections.discard(session)
        session.acceptor.authenticated_or_closed(session)
        if self._sessions.get(session.host) is session:
            del self._sessions[session.host]
            self.poller.agents = len(self._sessions)
            self._emit(AgentLost(session.host, session.over))

    @property
    def _welcome(self) -> dict[str, Any]:
        return {"do": "welcome", "incarnation": self._incarnation, **self.pace._asdict(), **self._options}

    def _end(self, session: Session, hello: Mapping[str, Any]) -> None:
        """End an agent that comes back after another of its host: both would start processes there."""
        why = "its host has a newer agent"
        self.refuse(f"an agent of {hello['host']}", why)
        session.send(self._welcome)
        for slot in hello["seats"]:
            if (number := slot_number(slot)) is not None:
                session.send({"do": "kill", "slot": number})
        session.send({"do": "finish"})
        session.close_when_read(why)
        asyncio.get_running_loop().call_later(LINGER_S, session.hang_up, why)

    def _replace_earlier_agent(self, host: str, *, agent: str) -> None:
        newest = self._newest.get(host, agent)
        if newest != agent:
            self._replaced.add((host, newest))
        self._newest[host] = agent
        older = self._sessions.pop(host, None)
        if older is None:
            return
        if older.over or older.agent != agent:
            self._emit(AgentLost(host, older.over or "another agent has taken its place"))
        older.hang_up("it has reconnected")

    def _emit(self, event: ControlEvent) -> None:
        if not self._stopping:
            self._on_event(event)


def _listener(address: str, *ports: int) -> socket.socket:
    """Listen on the first of these ports that is free."""
    for port in ports[:-1]:
        try:
            return socket.create_server((address, port), backlog=_BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    return socket.create_server((address, ports[-1]), backlog=_BACKLOG)


async def _all_gone(sessions: tuple[Session, ...]) -> None:
    for session in sessions:
        await session.gone.wait()


def hello_error(hello: Mapping[str, Any], *, job: str) -> str | None:
    """What is wrong with a first message, or None. Pure."""
    if hello.get("event") != "hello":
        return "its first message is not a hello"
    if hello.get("job") != job:
        return "its agent belongs to another job"
    host, agent, incarnation = hello.get("host"), hello.get("agent"), hello.get("incarnation")
    if not isinstance(host, str) or name_error(host) is not None:
        return "its hello does not name a valid host"
    if not isinstance(agent, str) or not 0 < len(agent) <= _MAX_AGENT_ID:
        return "its hello does not name an agent"
    if isinstance(incarnation, bool) or not isinstance(incarnation, int):
        return "its hello does not name an incarnation"
    if not isinstance(hello.get("facts"), dict) or not isinstance(hello.get("seats"), dict):
        return "its hello lacks facts or seats"
    return None

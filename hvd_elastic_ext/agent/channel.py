"""The agent's connection to the launcher: events out, orders in. Reconnects when it is lost; never blocks.

Events wait here while there is no launcher, up to a limit, and those that may not have arrived are sent again over the
next connection. Heartbeats do not wait: only the newest are sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import termios
from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from hvd_elastic_ext.agent.descriptors import CHUNK, FULL, EventLoop
from hvd_elastic_ext.agent.resolver import Found, Lookup, family
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.wire import AgentWire, WireError

FIRST_PAUSE_S: Final = 0.2
LAST_PAUSE_S: Final = 5.0
HANDSHAKE_S: Final = 5.0
"""Seconds for each step of the handshake."""
ACKNOWLEDGE_S: Final = 10.0
"""Seconds without an acknowledgement after which the connection is given up."""
LINGER_S: Final = 1.0
"""Seconds that a closing agent waits until its last events are delivered."""
TRANSIENT: Final = ("beats", "asked", "unasked", "usage")
"""Events that do not wait for a new launcher: open questions are reported to it again, and the others are outdated."""
FAILURES: Final = ("exited", "not_started", "asked")
"""Events that show that training needs a launcher."""

_BUFFERED: Final = 128 << 10
_USER_TIMEOUT: Final = 18
_NOTSENT_LOWAT: Final = 25


class ChannelOwner(Protocol):
    """What uses the channel. ``welcome`` returns why the launcher is refused, or None."""

    def hello(self, own_address: str) -> dict[str, Any] | None: ...
    def welcome(self, message: dict[str, Any]) -> str | None: ...
    def opened(self) -> None: ...
    def ordered(self, message: dict[str, Any]) -> None: ...
    def warn(self, problem: str) -> None: ...
    def lost(self, reason: str) -> None: ...


class Channel:
    """The connection. Events that may have been lost with one connection are sent again over the next."""

    def __init__(self, loop: EventLoop, owner: ChannelOwner, key: bytes) -> None:
        self._loop = loop
        self._owner = owner
        self._key = key
        self._address: tuple[str, int]
        self._socket: socket.socket | None = None
        self._lookup: Lookup | None = None
        self._wire: AgentWire
        self._greeted = False
        """Whether the hello was sent on this connection."""
        self.open = False
        """Whether the launcher has sent its welcome on this connection."""
        self.needed = False
        """Whether training needs a launcher: one of :data:`FAILURES` has come while there was none."""
        self._retry_at: float | None = None
        """When to connect again."""
        self._pause = FIRST_PAUSE_S
        """Seconds to wait after the next failure."""
        self._deadline = 0.0
        """When the present step of the handshake must be over."""
        self._backlog = Backlog()
        self._heartbeats: dict[str, Any] | None = None
        """The newest, not signed yet."""
        self._out = bytearray()
        """Signed data that the kernel has not taken."""
        self._sealed = 0
        """Bytes that were signed on this connection."""
        self._underway: deque[tuple[int, QueuedEvent]] = deque()
        """Events that may not have arrived, each with the number of signed bytes up to its end."""

    def connect_to(self, address: tuple[str, int]) -> None:
        """Connect to the launcher at ``address``, and to no other from now on."""
        self._address = address
        self._hang_up()
        self._pause, self._retry_at = FIRST_PAUSE_S, self._loop.now()

    # --- events ------------------------------------------------------------------------------------

    def put(self, event: str, **fields: object) -> None:
        """Queue an event. Without a launcher, a transient one is dropped. One that does not fit is dropped and counted;
        the next connection sends the count.
        """
        if not self.open:
            self.needed = self.needed or event in FAILURES
            if event in TRANSIENT:
                return
        message = {"event": event, **fields}
        if event == "beats":
            self._heartbeats = message  # only the newest are sent, before all events
            self._flush()
            return
        self._backlog.put(message, connected=self.open)
        self._flush()

    @property
    def empty(self) -> bool:
        """Whether everything has been sent."""
        return not self._backlog and not self._out

    @property
    def full(self) -> bool:
        """Whether output should stay in its pipes, because the launcher reads too slowly."""
        return self.open and self._backlog.too_much_output

    def _flush(self) -> None:
        """Sign and write as much as the connection takes."""
        if not self.open or self._socket is None:
            return
        while len(self._out) < _BUFFERED and (self._heartbeats is not None or self._backlog):
            if self._heartbeats is not None:
                message, self._heartbeats = self._heartbeats, None
                self._seal(message)
                continue
            news = self._backlog.pop()
            if self._seal(news.message):
                self._underway.append((self._sealed, news))
        self._write()

    def _seal(self, message: dict[str, Any]) -> bool:
        try:
            frame = self._wire.seal(message)
        except WireError as error:
            self._owner.warn(f"{message.get('event')}: {error}")
            return False
        self._out += frame
        self._sealed += len(frame)
        return True

    def _write(self) -> None:
        if self._socket is None:
            return
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(_why(error))
            return
        acknowledged = self._sealed - len(self._out) - self._unacknowledged()
        while self._underway and self._underway[0][0] <= acknowledged:
            self._underway.popleft()
        self._loop.write(self._socket.fileno(), self._more if self._out else None)

    def _more(self) -> None:
        self._write()
        self._flush()

    def _unacknowledged(self) -> int:
        """Bytes that the other kernel has not acknowledged."""
        assert self._socket is not None
        try:
            answer = fcntl.ioctl(self._socket, termios.TIOCOUTQ, struct.pack("i", 0))
        except OSError:
            return 0
        return int(struct.unpack("i", answer)[0])

    # --- the connection ----------------------------------------------------------------------------

    def due(self) -> float | None:
        """The loop's time at which ``tick`` is needed next; None if nothing is due, as while the channel is open."""
        if self._lookup is not None:
            return self._lookup.due()
        if self._socket is None:
            return self._retry_at
        return None if self.open else self._deadline

    def tick(self) -> None:
        """Connect once the pause is over; give up a lookup or a step of the handshake that takes too long."""
        now = self._loop.now()
        if self._lookup is not None:
            self._lookup.tick()
        elif self._socket is None:
            if self._retry_at is not None and now >= self._retry_at:
                self._begin()
        elif not self.open and now >= self._deadline:
            self._fail("the launcher does not answer")

    def send_hello(self) -> None:
        """Send the hello once the launcher has greeted and the hello is complete."""
        if self._greeted or self._socket is None or not self._wire.ready:
            return
        hello = self._owner.hello(str(self._socket.getsockname()[0]))
        if hello is None:
            return
        self._greeted = True
        self._deadline = self._loop.now() + HANDSHAKE_S
        try:
            self._out += self._wire.seal(hello)
        except WireError as error:
            self._fail(str(error))
            return
        self._sealed = len(self._out)
        self._write()

    def close(self) -> None:
        """Disconnect; wait up to ``LINGER_S`` until the sent data is delivered."""
        connection = self._socket
        if connection is not None and self.open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                # Closing a socket with unread data discards the sent data that is not delivered yet.
                poll, deadline = select.poll(), self._loop.now() + LINGER_S
                poll.register(connection, select.POLLIN)
                while (left := deadline - self._loop.now()) > 0 and poll.poll(left * 1000):
                    if not connection.recv(CHUNK):
                        break
        self._hang_up()

    def _begin(self) -> None:
        name, _ = self._address
        if family(name) is None:
            self._lookup = Lookup(self._loop, name, then=self._looked_up)
        else:
            self._connect(name)

    def _looked_up(self, answer: Found) -> None:
        self._lookup = None
        if answer.addresses:
            self._connect(answer.addresses[0])
        else:
            self._fail(answer.problem or "its name has no address")

    def _connect(self, address: str) -> None:
        self._retry_at = None
        self._wire, self._greeted = AgentWire(self._key), False
        self._deadline = self._loop.now() + HANDSHAKE_S
        self._sealed = 0
        try:
            self._socket = connection = socket.socket(family(address) or socket.AF_INET, socket.SOCK_STREAM)
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(ACKNOWLEDGE_S * 1000))
            connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _BUFFERED)
            with contextlib.suppress(BlockingIOError):
                connection.connect((address, self._address[1]))
        except OSError as error:
            self._fail(_why(error))
            return
        self._loop.watch(connection.fileno(), self._read)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(_why(error))
            return
        if not data:
            self._fail("the launcher has closed the connection")
            return
        connection = self._socket
        try:
            messages = self._wire.feed(data)
        except WireError as error:
            self._fail(str(error))
            return
        for message in messages:
            if self._socket is connection:  # an earlier message may have ended the connection
                self._take(message)
        self.send_hello()

    def _take(self, message: dict[str, Any]) -> None:
        if self.open:
            self._owner.ordered(message)
            return
        problem = self._owner.welcome(message)
        if problem is not None:
            self._fail(problem)
            return
        self.open, self.needed = True, False
        self._pause = FIRST_PAUSE_S
        dropped = self._backlog.dropped()
        if dropped:
            self.put("dropped", **dropped)
        self._owner.opened()
        self._flush()

    def _fail(self, reason: str) -> None:
        self._hang_up()
        self._retry_at = self._loop.now() + self._pause
        self._pause = min(LAST_PAUSE_S, 2 * self._pause)
        self._owner.lost(reason)

    def _hang_up(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None
        if self._socket is None:
            return
        if self.open:
            self._requeue_unacknowledged()
        self.open, self._heartbeats = False, None
        self._out.clear()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._socket = None

    def _requeue_unacknowledged(self) -> None:
        """Queue the events again that may not have arrived."""
        arrived = self._sealed - len(self._out) - self._unacknowledged()
        for end, news in reversed(self._underway):
            if end > arrived:
                self._backlog.put_back(news)
        self._underway.clear()


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# --- events that wait ------------------------------------------------------------------------------------


MAX_EVENT_BYTES: Final = 8 << 20
"""Bytes of events, other than output, that are kept."""


class QueuedEvent(NamedTuple):
    """An event that waits."""

    message: dict[str, Any]
    size: int
    """Bytes of its ``text`` if it has one, else of its JSON."""

    @property
    def is_output(self) -> bool:
        """Whether this is output of a training process, which has a limit of its own."""
        return bool(self.message["event"] == "output")


class Backlog:
    """Events that wait for the launcher, in order. It is bounded, and counts the events that do not fit."""

    def __init__(self) -> None:
        self._queue: deque[QueuedEvent] = deque()
        self._size = {True: 0, False: 0}
        self._dropped = {True: 0, False: 0}

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def too_much_output(self) -> bool:
        """Whether more than ``FULL`` of output waits, by ``size``; other events do not count."""
        return self._size[True] > FULL

    def put(self, message: dict[str, Any], *, connected: bool) -> None:
        """Add an event. While connected, the source of output limits it (see ``full``); else this method does."""
        text = message.get("text")
        news = QueuedEvent(
            message, len(text.encode(errors="replace")) if isinstance(text, str) else len(to_text(message))
        )
        limit = MAX_EVENT_BYTES if not news.is_output else None if connected else FULL
        if limit is not None and self._size[news.is_output] + news.size > limit:
            self._dropped[news.is_output] += news.size if news.is_output else 1
        else:
            self._queue.append(news)
            self._size[news.is_output] += news.size

    def pop(self) -> QueuedEvent:
        """Take the oldest event."""
        news = self._queue.popleft()
        self._size[news.is_output] -= news.size
        return news

    def put_back(self, news: QueuedEvent) -> None:
        """Make ``news`` the oldest event again."""
        self._queue.appendleft(news)
        self._size[news.is_output] += news.size

    def dropped(self) -> dict[str, int]:
        """Bytes of output and number of other events dropped since the last call; empty if none."""
        output, news = self._dropped[True], self._dropped[False]
        self._dropped = {True: 0, False: 0}
        return {"output": output, "news": news} if output or news else {}

"""A training process's end of its link to the agent: JSON lines over an inherited socket.

The process beats on it, whatever its main thread is doing, says what becomes of
it, and is told when to go live, what the hosts will be, and whom to cut off.
Without the variable, and in processes forked from a training process, nothing
is said and nothing heard.

Standard library only: the import hook loads this into every training script.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

log = logging.getLogger(__name__)

VARIABLE: Final = "HVD_ELASTIC_LINK"
INTERVAL: Final = "HVD_ELASTIC_HEARTBEAT_INTERVAL"

LONGEST_LINE: Final = 1 << 20
"""Bytes of one message to this process; a longer one ends the link."""

LONGEST_SAID: Final = 60 << 10
"""Bytes of one message of this process; a longer one is dropped."""

MOST_UNSENT: Final = 1 << 20
"""Bytes kept for an agent that does not read; what is more is dropped, beats and journal lines first."""

Tell = Mapping[str, Any]


class Vitals:
    """What a beat tells. The main thread writes plain attributes: that costs it nothing."""

    __slots__ = (
        "call_s", "commit", "commit_s", "every", "fresh", "own_step", "progress", "step", "step_s", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.step = 0
        """Optimizer steps of the history that is trained; for scripts without our State, of this process."""
        self.own_step = False
        """A State counts the steps."""
        self.commit: tuple[int, int, int] | None = None
        """(incarnation, generation, number) of the newest commit; None before the first sync."""
        self.step_s: float | None = None
        """Seconds of the last step, without the time that was spent waiting for other ranks."""
        self.progress = 0
        """Grows with whatever the main thread does: steps, commits, checks, ``heartbeat()``."""
        self.waiting = False
        """The main thread waits for other ranks."""
        self.fresh = False
        """A world was entered, and no step done in it yet."""
        self.every: int | None = None
        """Every how many calls of ``commit()`` one is made; None without a State of ours."""
        self.commit_s: float | None = None
        """Seconds that the last commit took."""
        self.call_s: float | None = None
        """Seconds from one call of ``commit()`` to the next, without what the commit takes; a mean of the last ones."""

    def committed(self, step: int, identity: tuple[int, int, int, int]) -> None:
        """The newest commit is this one: lineage, incarnation, generation, number; taken after that many steps.

        One without a lineage is worth nothing to others: no world has agreed on it.
        """
        self.step, self.commit = step, identity[1:] if identity[0] else None
        self.progress += 1


class Link:
    """One connection. Every method may be called from any thread, connected or not; none blocks.

    ``told`` gets each message, on the link's own thread; ``lost`` is called there when the agent has gone.
    """

    def __init__(self, connection: socket.socket | None = None, *, interval: float = 1.0) -> None:
        self.vitals = Vitals()
        self.told: Callable[[Tell], None] = _ignore
        self.lost: Callable[[], None] = _nothing
        self._interval = interval
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._received = bytearray()
        self._closing = False
        self._thread: threading.Thread | None = None
        if connection is not None:
            connection.setblocking(False)
            connection.set_inheritable(False)
            _links.add(self)

    @property
    def connected(self) -> bool:
        """Whether somebody may be listening."""
        return self._connection is not None

    def start(self) -> None:
        """Listen and beat from now on."""
        if self._connection is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="hvd-elastic-link", daemon=True)
        self._thread.start()

    def say(self, what: str, **fields: Any) -> None:
        """Say something. If the agent does not read just now it is kept, within bounds."""
        if self._connection is None:
            return
        line = json.dumps({"say": what, **fields}, separators=(",", ":"), default=str).encode() + b"\n"
        if len(line) > LONGEST_SAID:
            log.warning("%d bytes are too much to say %r with; nothing is said", len(line), what)
            return
        droppable = what in ("record", "beat")
        if not self._lock.acquire(timeout=1.0):  # somebody interrupted a message of this very thread
            return
        try:
            self._send()
            if len(self._unsent) + len(line) <= (MOST_UNSENT // 2 if droppable else MOST_UNSENT):
                self._unsent += line
                self._send()
        finally:
            self._lock.release()

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until everything is sent, ``timeout`` seconds at most. Whether it is."""
        deadline = time.monotonic() + timeout
        while self._connection is not None:
            with self._lock:
                self._send()
                if not self._unsent:
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return False

    def close(self) -> None:
        """Say nothing more; for tests, and before another link is opened."""
        self._closing = True
        if self._thread is not None and self._thread is not threading.current_thread():
            connection = self._connection
            if connection is not None:
                _shut(connection)
            self._thread.join()
        self._drop()

    def _run(self) -> None:
        next_beat = time.monotonic()
        while not self._closing and (connection := self._connection) is not None:
            now = time.monotonic()
            if now >= next_beat:
                self.beat()
                next_beat = now + self._interval
            self._wait(connection, next_beat - now)
        self._drop()
        if not self._closing:
            self.lost()

    def _wait(self, connection: socket.socket, seconds: float) -> None:
        poll = select.poll()
        poll.register(connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        for _, event in poll.poll(max(0.0, seconds) * 1000):
            if event & select.POLLOUT:
                with self._lock:
                    self._send()
            if event & ~select.POLLOUT:
                self._receive(connection)

    def beat(self) -> None:
        """Say how far this process is, if the agent has taken in all that was said before."""
        with self._lock:
            self._send()
            if self._unsent:
                return  # nobody reads: one beat more would tell nothing
        vitals = self.vitals
        pace = {"step_s": vitals.step_s, "progress": vitals.progress, **({"waiting": True} if vitals.waiting else {})}
        if vitals.every is not None:
            pace |= {"every": vitals.every, "commit_s": vitals.commit_s, "call_s": vitals.call_s}
        self.say("beat", pid=os.getpid(), step=vitals.step, commit=vitals.commit, **pace)

    def _send(self) -> None:
        while self._unsent and self._connection is not None:
            try:
                sent = self._connection.send(self._unsent, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the reading side notices, and ends the link
                return
            del self._unsent[:sent]

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        while (end := self._received.find(b"\n")) >= 0:
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            self._hear(line)
        if len(self._received) > LONGEST_LINE:
            log.warning("the agent sent a line of more than %d bytes; nothing more is heard from it", LONGEST_LINE)
        if not data or len(self._received) > LONGEST_LINE:
            self._drop()

    def _hear(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("tell"), str):
            log.warning("the agent sent something that is no message: %r", line[:100])
            return
        try:
            self.told(message)
        except Exception:
            # What goes wrong in acting on one message must not silence the process.
            log.exception("acting on %r failed", message["tell"])

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forked(self) -> None:
        """This is a child of the training process: it has nothing to say, and must not keep the connection open."""
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._thread = None
        self._drop()


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork() -> None:
    for link in list(_links):
        link.forked()


os.register_at_fork(after_in_child=_after_fork)

_current: list[Link] = []


def current() -> Link:
    """Return this process's link; opened at the first call that finds the variable set."""
    if not _current:
        link = open_link(os.environ)
        if not link.connected:
            return link
        _current.append(link)
    return _current[0]


def open_link(environ: MutableMapping[str, str]) -> Link:
    """Return a link on the socket that ``environ`` names, or one that is not connected.

    The variable is taken out: programs that this one starts are no training processes.
    """
    number = environ.get(VARIABLE, "")
    connection = _socket(int(number)) if number.isdigit() else None
    if connection is not None:
        del environ[VARIABLE]
    return Link(connection, interval=_seconds(environ.get(INTERVAL, "")))


def is_announced(environ: Mapping[str, str]) -> bool:
    """Whether an agent gave this process, or the program that started it, a link."""
    return bool(environ.get(VARIABLE))


def _socket(descriptor: int) -> socket.socket | None:
    """The agent's socket, if it has come as far as this process: programs in between may have closed it."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        found = socket.socket(fileno=descriptor)
    except OSError:
        return None
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM:
        found.detach()
        return None
    return found


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 1.0
    return min(max(value, 0.01), 60.0)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


def _ignore(message: Tell) -> None:
    """Nobody listens yet."""


def _nothing() -> None:
    """Nobody minds."""

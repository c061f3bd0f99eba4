"""The training process's end of the link to its agent: JSON lines over an inherited socket.

The process sends heartbeats from a thread of its own, sends reports, and receives orders: go live, coming hosts, peers
to cut off. Without the variable, and in processes forked from a training process, nothing is sent or received.

Standard library only: the import hook loads this into every training script.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import signal
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import LINK

log = logging.getLogger(__name__)

INTERVAL: Final = "HVD_ELASTIC_HEARTBEAT_INTERVAL"

LONGEST_LINE: Final = 1 << 20
"""Bytes of one received message; a longer one ends the link."""

LONGEST_SENT: Final = 60 << 10
"""Most bytes of a sent message; a longer one is dropped."""

MAX_UNSENT: Final = 1 << 20
"""Most unsent bytes that are kept. Above half of it heartbeats and journal lines are dropped."""

MAX_OBSERVED: Final = 16
"""Most names of signals that a script observes. They are few, because every heartbeat contains them."""

Message = Mapping[str, Any]


class Status:
    """The content of a heartbeat. The main thread only sets plain attributes, which is fast."""

    __slots__ = (
        "averages", "call_s", "commit", "commit_s", "every", "fresh", "look", "observed", "own_step",
        "progress", "share", "step", "step_s", "stepped", "stepped_at", "waiting", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.step = 0
        """Optimizer steps of the committed history; without our State, of this process."""
        self.own_step = False
        """Whether a State counts the steps itself."""
        self.commit: tuple[int, int, int] | None = None
        """(incarnation, generation, number) of the newest commit; None before the first sync."""
        self.step_s: float | None = None
        """Seconds of the last step, without the time of waits for other ranks."""
        self.stepped_at: float | None = None
        """When the last step ended, in seconds of a clock here. Heartbeats are too rare to show a step's length."""
        self.stepped: tuple[int, float] | None = None
        """The number of steps that this process has done, and when the last of them ended, by the same clock. Set at
        once, since a heartbeat may be sent between any two lines: a length is right only if both are of one step.
        """
        self.progress = 0
        """Grows with each step, commit, check and ``heartbeat()`` of the main thread."""
        self.waiting = False
        """Whether the main thread waits for other ranks."""
        self.look: Callable[[], None] | None = None
        """Called before each heartbeat, where steps cannot be noted as they end."""
        self.waits: Callable[[], bool] | None = None
        """Called at each heartbeat, where waits for other ranks cannot be noted as they begin and end."""
        self.fresh = False
        """Whether this process has entered a world and has done no step in it yet."""
        self.every: int | None = None
        """Number of calls of ``commit()`` for each commit; None without our State."""
        self.commit_s: float | None = None
        """Seconds of the last commit."""
        self.call_s: float | None = None
        """Mean seconds between recent calls of ``commit()``, less the commits themselves."""
        self.observed: dict[str, float] | None = None
        """What the script has observed for ``--autoscale``, by name."""
        self.share: tuple[int, int] | None = None
        """This rank's samples of a global batch, and all of them, where shares follow the ranks' speed."""
        self.averages = False
        """Whether ranks train alone between averages: then the loss of one takes back no step of another."""

    def step_ended(self, at: float | None = None, *, steps: int = 1) -> None:
        """Count steps, of which the last ended ``at`` a time of :func:`time.perf_counter`; by default now."""
        count = steps if self.stepped is None else self.stepped[0] + steps
        self.stepped = (count, round(time.perf_counter() if at is None else at, 6))

    def committed(self, step: int, identity: tuple[int, int, int, int]) -> None:
        """Note the newest commit: lineage, incarnation, generation and number, after ``step`` steps.

        A commit without a lineage is not reported: no world has agreed on it.
        """
        self.step, self.commit = step, identity[1:] if identity[0] else None
        self.progress += 1

    def observe(self, signals: Mapping[str, float]) -> None:
        """Put the script's ``signals`` into the next heartbeats; a name keeps its value until it is given again.

        Raises :class:`UsageError` for a value that is not a finite number, and for too many names.
        """
        observed = dict(self.observed or {})
        for name, value in signals.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if not math.isfinite(number):
                raise UsageError(f"state.observe({name}={value!r}): give a finite number")
            observed[name] = number
        if len(observed) > MAX_OBSERVED:
            raise UsageError(f"state.observe: {len(observed)} names are too many; at most {MAX_OBSERVED} are allowed")
        self.observed = observed


class Link:
    """One connection. Every method may be called from any thread, connected or not. Only ``flush`` and ``close`` wait.

    ``on_message`` gets each message on the link's thread; ``on_lost`` is called there when the agent is gone.
    ``on_signal`` gets the number of each signal that the script handles, see :meth:`watch_signals`.
    """

    def __init__(self, connection: socket.socket | None = None, *, interval: float = 1.0) -> None:
        self.status = Status()
        self.on_message: Callable[[Message], None] = lambda message: None
        self.on_lost: Callable[[], None] = lambda: None
        self.on_signal: Callable[[int], None] = lambda number: None
        self._interval = interval
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._received = bytearray()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._signals: tuple[int, int] | None = None
        """The ends of a pipe, into which Python writes the numbers of signals."""
        if connection is not None:
            connection.setblocking(False)
            connection.set_inheritable(False)
            _links.add(self)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to an agent."""
        return self._connection is not None

    def start(self) -> None:
        """Start the thread that receives messages and sends heartbeats."""
        if self._connection is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="hvd-elastic-link", daemon=True)
        self._thread.start()

    def send(self, what: str, **fields: Any) -> None:
        """Send a message. While the agent does not read, keep it, up to :data:`MAX_UNSENT` bytes."""
        if self._connection is None:
            return
        line = to_text({"say": what, **fields}, default=str).encode("ascii") + b"\n"
        if len(line) > LONGEST_SENT:
            log.warning("a message %r of %d bytes is too long and is dropped", what, len(line))
            return
        droppable = what in ("record", "beat")
        if not self._lock.acquire(timeout=1.0):  # this thread may hold it, if this is a signal handler
            return
        try:
            self._send()
            if len(self._unsent) + len(line) <= (MAX_UNSENT // 2 if droppable else MAX_UNSENT):
                self._unsent += line
                self._send()
        finally:
            self._lock.release()

    def watch_signals(self) -> None:
        """Note signals for which the script has a handler of its own; other signals end the process or do nothing.

        Without effect in another thread than the main one, and if the script uses Python's descriptor for signals.
        """
        if threading.current_thread() is not threading.main_thread() or self._signals is not None:
            return
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before == -1:
            self._signals = reader, writer
            return
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)

    def read_signals(self) -> None:
        """Pass the signals that have come on to ``on_signal``. The link's thread does this, too."""
        if self._signals is None:
            return
        try:
            numbers = os.read(self._signals[0], 1 << 12)
        except OSError:  # there is none, or the other thread was faster
            return
        for number in numbers:
            self.on_signal(number)

    def _end_signals(self) -> None:
        if self._signals is None or threading.current_thread() is not threading.main_thread():
            return
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, self._signals[1]):
            signal.set_wakeup_fd(before)
        for end in self._signals:
            os.close(end)
        self._signals = None

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until everything is sent, at most ``timeout`` seconds; return whether it is."""
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
        """End the link; for tests, and before another link is opened."""
        self._closing = True
        if self._thread is not None and self._thread is not threading.current_thread():
            if (connection := self._connection) is not None:
                with contextlib.suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)
            self._thread.join()
        self._end_signals()
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
            self.on_lost()

    def _wait(self, connection: socket.socket, seconds: float) -> None:
        poll = select.poll()
        poll.register(connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        signals = self._signals
        if signals is not None:
            poll.register(signals[0], select.POLLIN)
        for descriptor, event in poll.poll(max(0.0, seconds) * 1000):
            if signals is not None and descriptor == signals[0]:
                self.read_signals()
                continue
            if event & select.POLLOUT:
                with self._lock:
                    self._send()
            if event & ~select.POLLOUT:
                self._receive(connection)

    def beat(self) -> None:
        """Send a heartbeat, if the agent has read all earlier messages."""
        with self._lock:
            self._send()
            if self._unsent:
                return  # the agent does not read: another heartbeat is useless
        status = self.status
        if status.look is not None:
            status.look()
        waits = status.waits is not None and status.waits()
        pace: dict[str, object] = {
            "step_s": status.step_s,
            "progress": status.progress,
            **({"waiting": True} if status.waiting or waits else {}),
        }
        if status.every is not None:
            pace |= {"every": status.every, "commit_s": status.commit_s, "call_s": status.call_s}
        if status.stepped_at is not None:
            pace["stepped_at"] = status.stepped_at
        if (stepped := status.stepped) is not None:
            pace["stepped"] = stepped
        if (share := status.share) is not None:
            pace["share"] = share
        if status.averages:
            pace["averages"] = True
        observed = {} if status.observed is None else {"observed": status.observed}
        self.send("beat", pid=os.getpid(), step=status.step, commit=status.commit, **pace, **observed)

    def _send(self) -> None:
        while self._unsent and self._connection is not None:
            try:
                sent = self._connection.send(self._unsent, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # the receiving thread notices the error too, and ends the link
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
            self._handle_line(line)
        if len(self._received) > LONGEST_LINE:
            log.warning("the agent sent a line of more than %d bytes; the link is closed", LONGEST_LINE)
        if not data or len(self._received) > LONGEST_LINE:
            self._drop()

    def _handle_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("tell"), str):
            log.warning("the agent sent an invalid message: %r", line[:100])
            return
        try:
            self.on_message(message)
        except Exception:
            # A failed reaction to one message must not end the link.
            log.exception("acting on %r failed", message["tell"])

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forked(self) -> None:
        """In a forked child: close the connection, and send nothing."""
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._thread = None
        self._end_signals()  # a signal to the child is not one to this process
        self._drop()


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork() -> None:
    for link in list(_links):
        link.forked()


os.register_at_fork(after_in_child=_after_fork)

_current: list[Link] = []


def current() -> Link:
    """Return this process's link; it is opened by the first call that finds the variable set."""
    if not _current:
        link = open_link(os.environ)
        if not link.connected:
            return link
        _current.append(link)
    return _current[0]


def open_link(environ: MutableMapping[str, str]) -> Link:
    """Return a link on the socket that ``environ`` names, or one that is not connected.

    Remove the variable, because programs that this one starts are not training processes.
    """
    number = environ.get(LINK, "")
    connection = _socket(int(number)) if number.isdigit() else None
    if connection is not None:
        del environ[LINK]
    return Link(connection, interval=_seconds(environ.get(INTERVAL, "")))


def is_announced(environ: Mapping[str, str]) -> bool:
    """Whether an agent gave this process, or the program that started it, a link."""
    return bool(environ.get(LINK))


def _socket(descriptor: int) -> socket.socket | None:
    """Return the agent's socket, unless a program between the agent and this process has closed it."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return None
    if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_STREAM:
        connection.detach()
        return None
    return connection


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 1.0
    return min(max(value, 0.01), 60.0)

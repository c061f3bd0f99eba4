"""Whether a new host can be reached: asked once a pod, before it is published for the first time.

A pod counts as ready the moment its container runs, which is before its sshd listens and before its name resolves
everywhere; and a host that Horovod finds closed once is on its blacklist.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from discover.selection.damping import ProbeResults, probe_key
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import Host

LOG = logging.getLogger("hvd-discover")

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds between two probes of one pod: doubled with each failure, up to the longest. Not longer: an answer of DNS
that there is no such name is remembered for 5 to 30 s, and sshd starts within a few."""

WARN_AFTER = 6
"""Failures in a row after which the log names a host: some five seconds."""

MAX_ADDRESSES = 4


class Admission(Protocol):
    """Finds out which hosts answer. Level, not edge: told again and again who waits."""

    def start(self, changed: Callable[[], None]) -> None:
        """Begin. ``changed`` is called, from any thread, whenever :meth:`follow` may have another answer."""

    def follow(self, wanted: Iterable[Host], *, there: Collection[str]) -> ProbeResults:
        """Say what is known, at once; probe ``wanted`` meanwhile, and nobody else.

        ``there`` holds the UIDs of all pods there are; others are forgotten. Who answered once is admitted for life.
        """

    def stop(self) -> None:
        """End all probes. May be repeated, and come before :meth:`start`."""


class NoProbe:
    """Admits everybody: for hosts that nobody connects to."""

    def start(self, changed: Callable[[], None]) -> None:
        """Nothing to find out: ``changed`` is never called."""

    def follow(self, wanted: Iterable[Host], *, there: Collection[str]) -> ProbeResults:
        return ProbeResults(everybody=True)

    def stop(self) -> None:
        """Nothing to end."""


def parse_probe(value: str) -> int | None:
    """Read ``tcp:PORT``, or ``none`` as None. Raises :class:`UsageError`."""
    if value == "none":
        return None
    kind, _, port = value.partition(":")
    if kind != "tcp" or not (port.isascii() and port.isdigit()) or not 1 <= int(port[:6]) <= 65535:
        raise UsageError(f"--admission-probe {value}: write tcp:PORT, the port being 1 to 65535, or none")
    return int(port)


def pause_after(failures: int) -> float:
    """Seconds until the next probe after that many failures in a row (at least one)."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))


def connect_error(name: str, port: int, *, timeout: float) -> str:
    """Resolve ``name`` and connect to ``port``; return why that failed, or "". ``timeout``: seconds an address."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"{name} does not resolve: {_why(error)}"
    problem = f"{name} has no address"
    for family, kind, protocol, _, address in found[:MAX_ADDRESSES]:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.settimeout(timeout)
                probe.connect(address)
            return ""
        except OSError as error:
            problem = f"{name} ({address[0]}) port {port}: {_why(error)}"
    return problem


@dataclass(slots=True)
class _Pending:
    """A pod that was not admitted yet. ``due`` is in monotonic seconds; ``queued``: it stands in the queue, or runs."""

    host: Host
    due: float
    wanted: bool = True
    queued: bool = False
    failures: int = 0


class TcpProbe:
    """Connects to a port of each new host, from at most ``most`` threads at a time, which live as long as a probe.

    ``timeout`` is in seconds, for each address of a name; resolving takes as long as the system's resolver takes.
    """

    def __init__(
        self,
        port: int,
        *,
        clock: Clock,
        most: int = 16,
        timeout: float = 2.0,
        connect_error: Callable[..., str] = connect_error,
    ) -> None:
        self._port = port
        self._clock = clock
        self._most = most
        self._timeout = timeout
        self._reach = connect_error
        self._changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._cases: dict[str, _Pending] = {}
        self._queue: list[tuple[float, str]] = []
        self._admitted: set[str] = set()
        self._refused: dict[str, str] = {}
        self._answers: ProbeResults | None = None
        self._running: set[threading.Thread] = set()
        self._poke = threading.Event()
        self._stopping = False
        self._keeper = threading.Thread(target=self._keep, name="admission", daemon=True)

    def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._keeper.start()

    def follow(self, wanted: Iterable[Host], *, there: Collection[str]) -> ProbeResults:
        with self._lock:
            self._forget(there)
            for case in self._cases.values():
                case.wanted = False
            for host in wanted:
                self._want(host)
            if self._answers is None:
                self._answers = ProbeResults(frozenset(self._admitted), dict(self._refused))
            return self._answers

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            running = list(self._running)
        self._poke.set()
        with contextlib.suppress(RuntimeError):  # never started
            self._keeper.join(1.0)
        for thread in running:  # one that waits for the resolver is left to end with it, or with the process
            thread.join(0.5 / len(running))

    def _forget(self, there: Collection[str]) -> None:
        gone = {each for each in (*self._cases, *self._admitted) if each.partition("/")[0] not in there}
        if gone:
            self._admitted -= gone
            for each in gone:
                self._cases.pop(each, None)
                self._refused.pop(each, None)
            self._answers = None

    def _want(self, host: Host) -> None:
        if probe_key(host) in self._admitted:
            return
        case = self._cases.setdefault(probe_key(host), _Pending(host, self._clock.mono()))
        case.wanted = True
        case.host = host
        if not case.queued:
            case.queued = True
            heapq.heappush(self._queue, (case.due, probe_key(host)))
            self._poke.set()

    def _keep(self) -> None:
        while not self._stopping:
            self._poke.clear()
            with self._lock:
                pause = self._launch(self._clock.mono())
            self._clock.wait(self._poke, pause)

    def _launch(self, now: float) -> float | None:
        """Start what is due and return the seconds until the next is, or None to be poked."""
        while self._queue and len(self._running) < self._most and not self._stopping:
            due, uid = self._queue[0]
            if due > now:
                return due - now
            heapq.heappop(self._queue)
            case = self._cases.get(uid)
            if case is None or not case.wanted:
                if case is not None:
                    case.queued = False
                continue
            thread = threading.Thread(
                target=self._probe, args=(case.host,), name=f"probe {case.host.name}", daemon=True
            )
            self._running.add(thread)
            thread.start()
        return None

    def _probe(self, host: Host) -> None:
        why = self._reach(host.name, self._port, timeout=self._timeout)
        with self._lock:
            news = self._record(host, why) and not self._stopping
            self._running.discard(threading.current_thread())
        self._poke.set()
        if news:
            self._changed()

    def _record(self, host: Host, why: str) -> bool:
        """Note an answer; return whether it is another one than before."""
        case = self._cases.get(probe_key(host))
        if case is None:  # the pod went meanwhile
            return False
        case.queued = False
        if not why:
            del self._cases[probe_key(host)]
            self._refused.pop(probe_key(host), None)
            self._admitted.add(probe_key(host))
            self._answers = None
            return True
        case.failures += 1
        case.due = self._clock.mono() + pause_after(case.failures)
        if case.failures == WARN_AFTER:
            LOG.warning("admission: %s; not added before it answers (--admission-probe)", why)
        if case.wanted:
            case.queued = True
            heapq.heappush(self._queue, (case.due, probe_key(host)))
        if self._refused.get(probe_key(host)) == why:
            return False
        self._refused[probe_key(host)] = why
        self._answers = None
        return True


def _why(error: OSError | UnicodeError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error)).lower()

"""Tests whether a new host can be reached. Each pod has to answer once before it is published for the first time.

A pod is ready as soon as its container runs. That is before its sshd listens, and before its name resolves everywhere.
Horovod blacklists a host after the first connection that fails.
"""

from __future__ import annotations

import heapq
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from discover.threads import PeriodicThread
from discover.verdicts.damping import ProbeResults, probe_key
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import Host

LOG = logging.getLogger("hvd-discover")

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds between two probes of one pod. Each failure doubles them, up to the second value. Longer pauses would only
delay hosts: a resolver forgets after 5 to 30 s that a name did not exist, and sshd starts within a few seconds.
"""

WARN_AFTER = 6
"""After so many failures in a row, the log names a host. They take about eight seconds or more."""

MAX_ADDRESSES = 4


def parse_probe(value: str) -> int | None:
    """Return the port of ``tcp:PORT``, or None for ``none``. Raises :class:`UsageError`."""
    if value == "none":
        return None
    kind, _, port = value.partition(":")
    if kind != "tcp" or not (port.isascii() and port.isdigit()) or not 1 <= int(port[:6]) <= 65535:
        raise UsageError(f"--admission-probe {value}: write tcp:PORT, the port being 1 to 65535, or none")
    return int(port)


def connect_error(name: str, port: int, *, timeout: float) -> str:
    """Resolve ``name`` and connect to ``port``; return why that failed, or "". ``timeout``: seconds for each
    address.
    """
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
    """A host that is not admitted yet."""

    host: Host
    due: float
    """When to probe it next (monotonic seconds)."""
    wanted: bool = True
    queued: bool = False
    """It is in the queue, or a probe of it runs."""
    failures: int = 0


class TcpProbe:
    """Finds out which hosts answer on a port. At most ``most`` probes run at a time, each in a thread of its own.

    ``timeout``: seconds for each address of a name, without the time in which the system resolves the name.
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
        self._scheduler = PeriodicThread("admission", self._launch, clock=clock, finish_timeout=1.0, grace=0.0)

    def start(self, changed: Callable[[], None]) -> None:
        """Start the probes. ``changed`` is called, from any thread, when :meth:`follow` may return something new."""
        self._changed = changed
        self._scheduler.start()

    def follow(self, wanted: Iterable[Host], *, there: Collection[str]) -> ProbeResults:
        """Return the results so far, at once. From now on probe ``wanted`` and no other hosts.

        ``there``: the UIDs of all pods; results of others are dropped. A host that has answered is not probed again.
        """
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
        """End all probes. May be called again, and before :meth:`start`."""
        with self._lock:
            self._scheduler.begin_stop()
            running = list(self._running)
        self._scheduler.stop()
        for thread in running:  # a thread that waits for the resolver may last longer: it is a daemon thread
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
            self._scheduler.wake()

    def _launch(self) -> float | None:
        with self._lock:
            return self._start_due(self._clock.mono())

    def _start_due(self, now: float) -> float | None:
        """Start the probes that are due; return the seconds to the next, None to wait for a wake-up."""
        while self._queue and len(self._running) < self._most and not self._scheduler.stopping:
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
            news = self._record(host, why) and not self._scheduler.stopping
            self._running.discard(threading.current_thread())
        self._scheduler.wake()
        if news:
            self._changed()

    def _record(self, host: Host, why: str) -> bool:
        """Record a result; return whether it differs from the last one."""
        case = self._cases.get(probe_key(host))
        if case is None:  # the pod has gone meanwhile
            return False
        case.queued = False
        if not why:
            del self._cases[probe_key(host)]
            self._refused.pop(probe_key(host), None)
            self._admitted.add(probe_key(host))
            self._answers = None
            return True
        case.failures += 1
        case.due = self._clock.mono() + pause_after(case.failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
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

"""An admission probe in memory: which hosts answer is what the test says. Kept honest by the suite of the real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from discover.selection.damping import ProbeResults, probe_key
from hvd_elastic_ext.core.hosts import Host


class FakeAdmission:
    """Hosts answer from :meth:`open` until :meth:`shut`; each that waits is looked at whenever anything happens."""

    def __init__(self, *open_names: str) -> None:
        self._open = set(open_names)
        self._lock = threading.Lock()
        self._waiting: dict[str, Host] = {}
        self._admitted: set[str] = set()
        self._refused: dict[str, str] = {}
        self._changed: Callable[[], None] | None = None
        self._stopped = False

    def open(self, name: str) -> None:
        with self._lock:
            self._open.add(name)
        self._probe()

    def shut(self, name: str) -> None:
        with self._lock:
            self._open.discard(name)

    def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._probe()

    def follow(self, wanted: Iterable[Host], *, there: Collection[str]) -> ProbeResults:
        with self._lock:
            self._waiting = {probe_key(host): host for host in wanted if probe_key(host) not in self._admitted}
            self._admitted = {each for each in self._admitted if each.partition("/")[0] in there}
            self._refused = {each: why for each, why in self._refused.items() if each.partition("/")[0] in there}
            known = ProbeResults(frozenset(self._admitted), dict(self._refused))
        self._probe()
        return known

    def stop(self) -> None:
        self._stopped = True

    def _probe(self) -> None:
        """Like the real one, it tells what it finds with the next :meth:`follow`, and calls that worth asking for."""
        if self._changed is None or self._stopped:
            return
        with self._lock:
            news = [self._look(host) for host in list(self._waiting.values())]
        if any(news):
            self._changed()

    def _look(self, host: Host) -> bool:
        if host.name in self._open:
            del self._waiting[probe_key(host)]
            self._refused.pop(probe_key(host), None)
            self._admitted.add(probe_key(host))
            return True
        new = probe_key(host) not in self._refused
        self._refused[probe_key(host)] = f"{host.name} port 22: connection refused"
        return new

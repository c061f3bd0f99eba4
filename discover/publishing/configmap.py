"""Publishes hosts in a ConfigMap, for launchers beside which no daemon can run. They mount the ConfigMap as a volume.

Kubelets renew such a volume after a minute or more, so this way is slow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from discover.common.source import Unsettled
from discover.common.threads import PeriodicThread
from discover.kube.collection import Sender
from discover.publishing.file_lock import OwnedByOther
from discover.publishing.files import PublishFailed
from discover.publishing.lease import Lease
from discover.publishing.overlap import Overlap, OverlapLimits
from discover.publishing.publishers import pause_after_failures
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import BadHosts
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Publication, parse_hosts_text, render_hosts_text, to_json
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

LOG = logging.getLogger("hvd-discover")

HOSTS: Final = "hosts"
PUSH: Final = "publication.json"
SCRIPT: Final = "discover_hosts.sh"

SCRIPT_TEXT: Final = """\
#!/bin/sh
# Written by hvd-discover: prints the file "hosts" beside it.
[ -r "${0%/*}/hosts" ] && cat <"${0%/*}/hosts" 2>/dev/null
exit 0
"""

MAX_DATA: Final = 1_000_000
"""Most bytes of data. The API server takes 1 MiB."""

CHECK_INTERVAL: Final = 60.0
"""Seconds after which the ConfigMap is read again, because another client may have changed it."""

OVERLAP: Final = OverlapLimits(least=150.0, most=150.0)
"""Seconds. A reader may see a state of the volume that is this old, and may miss a state that lasted for less."""

TURN: Final = 1.0
"""Seconds between two turns, as for files."""

STAND_BY: Final = 2.0
"""Seconds between two looks at another daemon's Lease."""

WRITE_INTERVAL: Final = 3.0
"""Seconds between two writes. Readers see about one a minute, and each may send 1 MB to the API server."""

LAST_REQUEST: Final = 0.6
"""Seconds that the current request and the release of the Lease may take at the end."""

REFUSALS: Final = 3
"""After so many refusals in a row a right counts as missing. A server that has just started knows no roles yet."""


class Refused(PublishFailed):
    """The server refuses the request because a right is missing."""


class ConfigMap:
    """Publishes as the keys ``hosts``, ``publication.json`` and ``discover_hosts.sh`` of a ConfigMap; other keys stay.

    ``hosts`` has an overlap like a hosts file, with ``alive`` as in :class:`Overlap`. Only the holder of ``lease``
    writes. ``wrote`` is called after each write. Each method may wait for the server. :meth:`publish` and
    :meth:`published_before` may raise :class:`PublishFailed`, and :meth:`publish` also :class:`OwnedByOther`.
    """

    def __init__(
        self,
        sender: Sender,
        lease: Lease,
        *,
        namespace: str,
        name: str,
        alive: Callable[[Host], bool],
        clock: Clock,
        wrote: Callable[[], None],
    ) -> None:
        self.where = where_of(namespace, name)
        self._sender = sender
        self._lease = lease
        self._namespace, self._name = namespace, name
        self._clock = clock
        self._wrote = wrote
        self._alive = alive
        self._known: Mapping[str, Any] | None = None
        self._read_at = 0.0
        self._json = ""
        self._published: Publication | None = None
        self._overlap = self._new_overlap()

    def own(self) -> None:
        """Take or keep the Lease. Raises :class:`OwnedByOther` if another daemon has it, or :class:`PublishFailed`."""
        try:
            self._lease.hold()
        except OwnedByOther:
            # Another daemon writes now. If this one writes again later, it begins with what it reads then.
            self._known, self._published, self._overlap = None, None, self._new_overlap()
            raise

    @property
    def others_until(self) -> float | None:
        """When another daemon's Lease expires unless that daemon renews it (monotonic seconds); None if there is
        none.
        """
        return self._lease.others_until

    def published_before(self) -> HostSet:
        """Return the hosts of an earlier run, in their order. They are empty if there are none, or if they cannot be
        parsed.
        """
        data = (self._read() or {}).get("data") or {}
        try:
            return parse_hosts_text(str(data.get(HOSTS, "")), where=self.where)
        except BadHosts:
            return HostSet()

    def publish(self, publication: Publication) -> None:
        """Write the publication, and renew the Lease.

        It does not write if this publication is already written, the overlap keeps no host, and the last read is less
        than :data:`CHECK_INTERVAL` seconds old.
        """
        self.own()
        same = publication is self._published
        if same and not self._overlap.keeps and self._clock.mono() < self._read_at + CHECK_INTERVAL:
            return
        if not same:
            self._json = to_json(publication)
        self._published = None
        self._overlap.publish(publication, before=self.published_before, write=self._write_hosts)
        self._published = publication

    def close(self) -> None:
        """Release the Lease, so that another daemon can write at once, and close the connection."""
        self._lease.release()
        self._sender.close()

    def interrupt(self) -> None:
        """Abort the current request and all later ones. May be called from any thread."""
        self._sender.interrupt()

    def _new_overlap(self) -> Overlap:
        return Overlap(alive=self._alive, clock=self._clock, limits=OVERLAP)

    def _write_hosts(self, hosts: HostSet) -> None:
        text = render_hosts_text(hosts)
        wanted: dict[str, str | None] = {HOSTS: text, PUSH: self._json, SCRIPT: SCRIPT_TEXT}
        if _size(wanted) > MAX_DATA:
            wanted[PUSH] = None  # stock Horovod does not read it
        if _size(wanted) > MAX_DATA:
            raise PublishFailed(self.where, f"{len(text)} bytes of hosts are more than a ConfigMap takes")
        known = self._known
        if known is None or self._clock.mono() >= self._read_at + CHECK_INTERVAL:
            known = self._read()
        if known is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            data = {key: value for key, value in wanted.items() if value is not None}
            self._send(
                "POST", self._path(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            )
        elif any((known.get("data") or {}).get(key) != value for key, value in wanted.items()):
            # Name the version that was read, so that a daemon that has lost the Lease meanwhile overwrites nothing.
            version = str((known.get("metadata") or {}).get("resourceVersion", ""))
            body = {"metadata": {"resourceVersion": version}, "data": wanted}
            self._send("PATCH", self._path(self._name), body)

    def _read(self) -> Mapping[str, Any] | None:
        try:
            self._known = self._sender.send("GET", self._path(self._name))
        except ApiError as error:
            self._known = None
            if error.reason is not Reason.NOT_FOUND:
                raise self._failed(error) from None
        self._read_at = self._clock.mono()
        return self._known

    def _send(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        self._known = None  # until it is known that the write has succeeded
        try:
            self._known = self._sender.send(method, path, body)
        except ApiError as error:
            raise self._failed(error, creating=method == "POST") from None
        self._wrote()

    def _failed(self, error: ApiError, *, creating: bool = False) -> PublishFailed:
        if error.reason is Reason.CONFLICT:
            return PublishFailed(self.where, "another client has just changed it")
        if error.reason is Reason.FORBIDDEN:
            make = f"there is none; make it: kubectl -n {self._namespace} create configmap {self._name}"
            remedy = make if creating else "hvd-elastic manifest configmap gives the right"
            return Refused(self.where, f"{error}; {remedy}")
        return PublishFailed(self.where, str(error))

    def _path(self, name: str = "") -> str:
        return path_of("v1", "configmaps", self._namespace, name)


class BackgroundConfigMap:
    """Publishes to a ConfigMap from a thread of its own: :meth:`publish` never waits or fails.

    ``stands_by``: whether another daemon writes. ``problem``: why the newest publication is not written, for people; ""
    if it is written, will be written now, or another daemon writes. ``earlier``: the hosts that an earlier run
    published, None while they are not known; :meth:`recall` asks for them. ``failed`` is called after each failure,
    ``owns`` with True if this daemon writes, else with False.
    """

    def __init__(
        self, configmap: ConfigMap, *, clock: Clock, failed: Callable[[], None], owns: Callable[[bool], None]
    ) -> None:
        self.where = configmap.where
        self.problem = ""
        self.stands_by = False
        self.earlier: HostSet | None = None
        self._configmap = configmap
        self._clock = clock
        self._count_failure = failed
        self._owns = owns
        self._recalled: Callable[[], None] | None = None
        self._wanted: Publication | None = None
        self._published: Publication | None = None
        self._next_write = 0.0
        self._failures = self._refusals = 0
        self._not_before = 0.0
        self._other_writer = ""
        self._thread = PeriodicThread(
            "configmap",
            self.turn,
            clock=clock,
            interrupt=configmap.interrupt,
            at_end=configmap.close,
            finish_timeout=LAST_REQUEST,
        )
        self.start, self.begin_stop, self.close = self._thread.start, self._thread.begin_stop, self._thread.stop

    def recall(self, done: Callable[[], None]) -> None:
        """Read what was published before. This object's thread calls ``done`` when it is known."""
        self._recalled = done
        self._thread.wake()

    def recalled(self) -> HostSet | Unsettled:
        """Return the hosts that were published before, or :class:`Unsettled` while they are not known."""
        if self.earlier is not None:
            return self.earlier
        why = "what was published before is not known yet"
        return Unsettled(self.where, ": ".join(filter(None, (why, self.problem))))

    def publish(self, publication: Publication) -> None:
        """Set what the thread publishes next, and wake the thread if this is new."""
        if publication != self._wanted:
            self._wanted = publication
            self._thread.wake()

    def turn(self) -> float:
        """Publish the newest publication; return the seconds to the next turn."""
        wanted, now = self._wanted, self._clock.mono()
        if now < self._not_before:
            return self._not_before - now
        if self._recalled is not None:
            return self._recall(self._recalled)
        if wanted is None:
            return TURN
        if wanted is not self._published and now < self._next_write:
            return self._next_write - now  # the next turn writes the newest publication
        try:
            self._configmap.publish(wanted)
        except OwnedByOther as other:
            return self._set_writer(str(other))
        except PublishFailed as error:
            return self._failed(error)
        if wanted is not self._published:
            self._published, self._next_write = wanted, self._clock.mono() + WRITE_INTERVAL
        self._set_writer("")
        return TURN

    def _recall(self, done: Callable[[], None]) -> float:
        try:
            earlier = self._configmap.published_before()
        except PublishFailed as error:
            self._refusals = self._refusals + 1 if isinstance(error, Refused) else 0
            if self._refusals < REFUSALS:
                return self._failed(error)
            LOG.warning("what %s has cannot be known: %s", self.where, error)
            earlier = HostSet()
        self.earlier, self._recalled = earlier, None
        self._failures, self.problem = 0, ""
        done()
        return TURN

    def _failed(self, error: PublishFailed) -> float:
        self._failures += 1
        self._count_failure()
        self.problem = f"{error}; trying again"
        pause = pause_after_failures(self._failures)
        self._not_before = self._clock.mono() + pause
        return pause

    def _set_writer(self, other: str) -> float:
        """Record who writes: ``other`` is a message about another daemon that does, "" if this one does."""
        self._failures, self._not_before, self.problem = 0, 0.0, ""
        self.stands_by = bool(other)
        self._owns(not other)
        if other != self._other_writer:
            LOG.info("%s", f"standing by: {other}" if other else f"{self.where}: written by this daemon now")
        self._other_writer = other
        if other:
            self._not_before = self._clock.mono() + STAND_BY
        return STAND_BY


def own_in_time(configmap: ConfigMap, *, clock: Clock) -> None:
    """Take the Lease. If another daemon holds it, wait at most until it expires, as its holder may have been killed.

    Raises :class:`OwnedByOther` if the holder renews it, :class:`PublishFailed` if the Lease cannot be read or written.
    """
    due: float | None = None
    while True:
        try:
            return configmap.own()
        except OwnedByOther:
            until, now = configmap.others_until, clock.mono()
            if until is None or due not in (None, until):
                raise
            if due is None:
                LOG.warning(
                    "%s: another daemon holds its Lease; waiting %.0f s at most to see whether it still runs",
                    configmap.where,
                    until - now,
                )
            due = until
        clock.wait(threading.Event(), min(STAND_BY, max(0.1, due - now)))


def where_of(namespace: str, name: str) -> str:
    """Return the words by which messages name a ConfigMap."""
    return f"configmap {namespace}/{name}"


def _size(data: Mapping[str, str | None]) -> int:
    return sum(len(key) + len((value or "").encode()) for key, value in data.items())

"""Hosts in a ConfigMap, for launchers that no daemon can stand beside: they mount it. Kubelets renew such a volume
after a minute or more, so this is the slow way out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from discover.common.background import Aside
from discover.kube.changes import CONFLICT, MERGE, NOT_ALLOWED, NOT_FOUND, Sender, path_of, said
from discover.kube.transport import RequestFailed
from discover.publishing.file_lock import OwnedByOther
from discover.publishing.files import PublishFailed
from discover.publishing.lease import Lease
from discover.publishing.publishers import pause_after
from discover.publishing.survivor import OverlapLimits, OverlappingHostsFile
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import BadHosts
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Publication, parse_hosts_text, render_hosts_text, to_json

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
"""Bytes of data; the API server takes 1 MiB."""

CHECK_INTERVAL: Final = 60.0
"""Seconds after which it is looked whether somebody else has changed what stands there."""

OVERLAP: Final = OverlapLimits(least=150.0, most=150.0)
"""A reader sees the volume as it was up to 150 seconds ago, and may miss whatever stood there for less."""

TURN: Final = 1.0
"""Seconds from one look at the time to the next, as for files."""

STAND_BY: Final = 2.0
"""Seconds between two looks at another daemon's Lease."""


WRITE_INTERVAL: Final = 3.0
"""Seconds from one change to the next. Readers see one in a minute, and each is up to 1 MB for the API server."""

LAST_REQUEST: Final = 0.6
"""Seconds that the last request may take, and letting the Lease go."""

REFUSALS: Final = 3
"""After so many in a row a right is missing; a server that has only just started may not know it yet."""


class Refused(PublishFailed):
    """The server says that this is not allowed."""


class ConfigMap:
    """Publishes as the keys ``hosts``, ``publication.json`` and ``discover_hosts.sh`` of a ConfigMap; its other keys
    are left alone. ``hosts`` keeps the last survivor, as a hosts file does; ``alive`` as there.

    Only the holder of ``lease`` writes. Each method may wait for the server; :meth:`publish` and :meth:`standing` may
    raise :class:`PublishFailed`, and the first :class:`Taken`.
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
        self._looked_at = 0.0
        self._push = ""
        self._out: Publication | None = None
        self._hosts = self._beginning()

    class _Hosts:
        """The key ``hosts`` as a place of its own."""

        def __init__(self, whole: ConfigMap) -> None:
            self._whole = whole
            self.where = whole.where

        def own(self) -> None:
            self._whole.own()

        def published_before(self) -> HostSet:
            return self._whole.published_before()

        def publish(self, publication: Publication) -> None:
            self._whole._bring(render_hosts_text(publication.hosts))

        def close(self) -> None:
            """The whole is closed."""

    def own(self) -> None:
        try:
            self._lease.hold()
        except OwnedByOther:
            # What stands there is another's now; if it is ever ours again, we begin with that.
            self._known, self._out, self._hosts = None, None, self._beginning()
            raise

    @property
    def others_until(self) -> float | None:
        """When it is no longer another's to write, unless that one shows that it lives (monotonic seconds); None if it
        is nobody else's."""
        return self._lease.others_until

    def published_before(self) -> HostSet:
        """What an earlier life published, in its order; nothing if there is none, or it cannot be read as hosts."""
        data = (self._look() or {}).get("data") or {}
        try:
            return parse_hosts_text(str(data.get(HOSTS, "")), where=self.where)
        except BadHosts:
            return HostSet()

    def publish(self, publication: Publication) -> None:
        self.own()
        if publication is self._out and not self._hosts.keeps and self._clock.mono() < self._looked_at + CHECK_INTERVAL:
            return
        if publication is not self._out:
            self._push = to_json(publication)
        self._out = None
        self._hosts.publish(publication)
        self._out = publication

    def close(self) -> None:
        self._lease.release()
        self._sender.close()

    def interrupt(self) -> None:
        """Break off what waits for the server, for good; from any thread."""
        self._sender.interrupt()

    def _beginning(self) -> OverlappingHostsFile:
        return OverlappingHostsFile(self._Hosts(self), alive=self._alive, clock=self._clock, limits=OVERLAP)

    def _bring(self, hosts: str) -> None:
        wanted: dict[str, str | None] = {HOSTS: hosts, PUSH: self._push, SCRIPT: SCRIPT_TEXT}
        if _size(wanted) > MAX_DATA:
            wanted[PUSH] = None  # stock Horovod does not read it
        if _size(wanted) > MAX_DATA:
            raise PublishFailed(self.where, f"{len(hosts)} bytes of hosts are more than a ConfigMap takes")
        known = self._known
        if known is None or self._clock.mono() >= self._looked_at + CHECK_INTERVAL:
            known = self._look()
        if known is None:
            self._create({key: value for key, value in wanted.items() if value is not None})
        elif any((known.get("data") or {}).get(key) != value for key, value in wanted.items()):
            self._change(wanted, str((known.get("metadata") or {}).get("resourceVersion", "")))

    def _look(self) -> Mapping[str, Any] | None:
        try:
            self._known = self._sender.send("GET", self._path(self._name))
        except RequestFailed as error:
            self._known = None
            if not said(error, NOT_FOUND):
                raise self._failed(error) from None
        self._looked_at = self._clock.mono()
        return self._known

    def _change(self, data: Mapping[str, str | None], version: str) -> None:
        """Of the very version that was seen: whoever lost the lease meanwhile overwrites nobody."""
        body = {"metadata": {"resourceVersion": version}, "data": data}
        self._write("PATCH", self._path(self._name), body, media=MERGE)

    def _create(self, data: Mapping[str, str | None]) -> None:
        metadata = {"name": self._name, "namespace": self._namespace}
        self._write("POST", self._path(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    def _write(self, method: str, path: str, body: Mapping[str, Any], *, media: str = "application/json") -> None:
        self._known = None  # until it is known that it is as wanted
        try:
            self._known = self._sender.send(method, path, body, media=media)
        except RequestFailed as error:
            raise self._failed(error, creating=method == "POST") from None
        self._wrote()

    def _failed(self, error: RequestFailed, *, creating: bool = False) -> PublishFailed:
        if said(error, CONFLICT):
            return PublishFailed(self.where, "somebody else has just changed it")
        remedy = ""
        if said(error, NOT_ALLOWED):
            make = f"there is none; make it: kubectl -n {self._namespace} create configmap {self._name}"
            remedy = f"; {make if creating else 'docker/manifests/configmap.yaml gives the right'}"
            return Refused(self.where, f"{error}{remedy}")
        return PublishFailed(self.where, f"{error}{remedy}")

    def _path(self, name: str = "") -> str:
        return path_of("v1", self._namespace, "configmaps", name)


class BackgroundConfigMap:
    """A publisher whose work is done in a thread of its own: :meth:`publish` hands over, and never waits or fails.

    ``stands_by``: another daemon does it. ``problem``: why the newest publication is not out, for people; "" if it
    is, is on its way, or is another daemon's to bring out. ``owns`` is told whether this daemon is the one that writes.
    ``stood``: what stood there before, None while that is not known; it is asked for by :meth:`recall`.
    """

    def __init__(
        self, publisher: ConfigMap, *, clock: Clock, failed: Callable[[], None], owns: Callable[[bool], None]
    ) -> None:
        self.where = publisher.where
        self.problem = ""
        self.stands_by = False
        self.stood: HostSet | None = None
        self._publisher = publisher
        self._clock = clock
        self._failed = failed
        self._owns = owns
        self._told: Callable[[], None] | None = None
        self._wanted: Publication | None = None
        self._out: Publication | None = None
        self._next_write = 0.0
        self._failures = self._refusals = 0
        self._not_before = 0.0
        self._waits_for = ""
        self._aside = Aside(
            "configmap",
            self.turn,
            clock=clock,
            interrupt=publisher.interrupt,
            farewell=publisher.close,
            patience=LAST_REQUEST,
        )

    def start(self) -> None:
        self._aside.start()

    def recall(self, told: Callable[[], None]) -> None:
        """Find out what stands there before anything is brought out, and call ``told`` then, from the own thread."""
        self._told = told
        self._aside.poke()

    def publish(self, publication: Publication) -> None:
        if publication != self._wanted:
            self._wanted = publication
            self._aside.poke()

    def hurry(self) -> None:
        """Begin to close, and do not wait for it."""
        self._aside.hurry()

    def close(self) -> None:
        self._aside.stop()

    def turn(self) -> float:
        """Bring out what is wanted; return after how many seconds to look again."""
        wanted, told, now = self._wanted, self._told, self._clock.mono()
        if now < self._not_before:
            return self._not_before - now
        if told is not None:
            return self._recall(told)
        if wanted is None:
            return TURN
        if wanted is not self._out and now < self._next_write:
            return self._next_write - now  # and then it is the newest that comes out
        try:
            self._publisher.publish(wanted)
        except OwnedByOther as taken:
            return self._stand_by(str(taken))
        except PublishFailed as error:
            return self._fail(error)
        if wanted is not self._out:
            self._out, self._next_write = wanted, self._clock.mono() + WRITE_INTERVAL
        self._stand_by("")
        return TURN

    def _recall(self, told: Callable[[], None]) -> float:
        try:
            stood = self._publisher.published_before()
        except PublishFailed as error:
            self._refusals = self._refusals + 1 if isinstance(error, Refused) else 0
            if self._refusals < REFUSALS:
                return self._fail(error)
            LOG.warning("what stands in %s cannot be known: %s", self.where, error)
            stood = HostSet()
        self.stood, self._told = stood, None
        self._failures, self.problem = 0, ""
        told()
        return TURN

    def _fail(self, error: PublishFailed) -> float:
        self._failures += 1
        self._failed()
        self.problem = str(error)
        pause = pause_after(self._failures)
        self._not_before = self._clock.mono() + pause
        return pause

    def _stand_by(self, why: str) -> float:
        """``why``: who else writes it; "" if this daemon does."""
        self._failures, self._not_before, self.problem = 0, 0.0, ""
        self.stands_by = bool(why)
        self._owns(not why)
        if why != self._waits_for:
            LOG.info("%s", f"standing by: {why}" if why else f"{self.where}: written by this daemon now")
        self._waits_for = why
        if why:
            self._not_before = self._clock.mono() + STAND_BY
        return STAND_BY


def own_in_time(configmap: ConfigMap, *, clock: Clock) -> None:
    """Be the one that writes, even if the last one was killed: wait until its Lease is over.

    Raises :class:`Taken` if that one still lives, :class:`PublishFailed` if that cannot be found out.
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
                    "%s: another daemon holds its Lease; waiting %.0f s at most to see whether it still lives",
                    configmap.where,
                    until - now,
                )
            due = until
        clock.wait(threading.Event(), min(STAND_BY, max(0.1, due - now)))


def where_of(namespace: str, name: str) -> str:
    return f"configmap {namespace}/{name}"


def _size(data: Mapping[str, str | None]) -> int:
    return sum(len(key) + len((value or "").encode()) for key, value in data.items())

"""Checks whether a watch still reports all changes. A server may keep a connection open and send nothing.

A read timeout detects that after 70 seconds, but a machine may be gone 30 seconds after its notice. So if a watch has
been silent for a while, the audit lists the pods and compares them. For many pods, a list has tens of megabytes; then
lists are rare.

The server serves watches from a cache. If the cache gets no updates, all watches are silent, and lists from the cache
agree with them. So the audit sometimes lists the pods from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from discover.pods.views import Key, PodView, older, pod_view
from discover.watch.collection import Collection, Request, RequestKind
from discover.watch.reflector import Reflector, read_list, turns_of
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason

LOG = logging.getLogger("hvd-discover")

SMALL_JOB: Final = 200
"""Up to so many pods, each check lists all of them."""

CHECK_INTERVAL: Final = 15.0
"""Seconds from the last event of a watch, or from the last check, to the next check."""

STORE_INTERVAL: Final = 60.0
"""Seconds between two lists from the store, up to :data:`LARGE_JOB` pods. For more pods they grow in proportion."""

LARGE_JOB: Final = 1000

WATCH_LAG: Final = 2.0
"""Seconds by which a watch may be later than a list."""


def store_interval(pods: int) -> float:
    """Return the seconds between two lists of so many pods from the store. The lists take about 0.1 % of a core."""
    return STORE_INTERVAL * max(1.0, pods / LARGE_JOB)


def find_missed(
    listed: Iterable[PodView], listed_version: str, *, known: Mapping[Key, PodView], known_version: str
) -> str:
    """Return which change of a list the watch has not reported, or "". Returns "" too unless ``known_version`` is
    older than ``listed_version``, because then the two cannot be compared.
    """
    if not older(known_version, listed_version):
        return ""
    there = set()
    for pod in listed:
        there.add(pod.key)
        mine = known.get(pod.key)
        if mine is None or (mine.uid, mine.version) != (pod.uid, pod.version):
            return f"it did not tell of pod {pod.key}"
    gone = next((key for key in known if key not in there), None)
    return "" if gone is None else f"it did not tell of the end of pod {gone}"


class WatchAudit:
    """Compares what ``watched`` knows with the server, in a thread of its own, while its watch is open and silent.

    ``store_restored`` is called with the reason if the server's store was restored to an earlier state. Then watches at
    later versions stay silent until the server reaches these versions.
    """

    def __init__(
        self,
        collection: Collection,
        watched: Reflector[PodView],
        *,
        clock: Clock,
        store_restored: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._collection = collection
        self._store_restored = store_restored
        self._watched = watched
        self._clock = clock
        self._store_listed_at: float | None = None
        self._unknown_versions = 0
        self._beyond_cache = ""
        self._thread = turns_of(collection, "audit-pods", self.turn, clock=clock)
        self.start, self.begin_stop, self.stop = self._thread.start, self._thread.begin_stop, self._thread.stop

    def turn(self) -> float:
        """Check if the watch has been silent for long enough; return the seconds to the next turn."""
        status = self._watched.status
        if not status.watching or status.last_event_at is None:
            return CHECK_INTERVAL
        if (left := status.last_event_at + CHECK_INTERVAL - self._clock.mono()) > 0:
            return left
        try:
            self._check()
        except ApiError as error:
            self._failed(error)
        return CHECK_INTERVAL

    def _check(self) -> None:
        now, pods = self._clock.mono(), len(self._watched.known()[0])
        if self._store_listed_at is None:
            self._store_listed_at = now  # a list came before the watch
        # If the store may not know the version, list it again soon.
        from_store = self._unknown_versions > 0 or now >= self._store_listed_at + store_interval(pods)
        if from_store:
            self._store_listed_at = now
        elif pods > SMALL_JOB:
            return
        if self._list_agrees(from_store=from_store):
            self._unknown_versions = 0
            self._watched.confirm_in_sync()

    def _list_agrees(self, *, from_store: bool) -> bool:
        """List from the store or from the server's cache, and compare; return whether the watch has missed nothing.

        The first list may have a later version than the cache, which gets no new version while no pod changes. Then
        only the store can tell whether it has had that version.
        """
        version = self._watched.known()[1]
        if not from_store and version != self._beyond_cache:
            try:
                return self._compare(version, Request(ask=RequestKind.RELIST, version=version))
            except ApiError as error:
                if error.reason is not Reason.AHEAD:
                    raise
            self._beyond_cache = version
        return self._compare(version, Request(ask=RequestKind.UNPAGED))

    def _compare(self, version: str, request: Request) -> bool:
        listed, listed_version = read_list(self._collection.open, pod_view, request)
        if older(listed_version, version):
            raise ApiError(Reason.AHEAD, f"the store is at version {listed_version}, and {version} is known")
        if not self._missed(listed, listed_version) or self._thread.sleep(WATCH_LAG):
            return True
        if missed := self._missed(listed, listed_version):
            self._watched.force_relist(f"the watch missed a change: {missed}")
        return not missed

    def _missed(self, listed: list[PodView], version: str) -> str:
        known, known_version = self._watched.known()
        return find_missed(listed, version, known=known, known_version=known_version)

    def _failed(self, error: ApiError) -> None:
        """Handle a failed check. A server that does not know the version was restored. A server that does not answer
        needs nothing here, because the reflector notices that.
        """
        ending = error.reason
        self._unknown_versions = self._unknown_versions + 1 if ending is Reason.AHEAD else 0
        if ending in (Reason.UNAUTHORIZED, Reason.NO_CREDENTIALS):
            self._collection.reload_credentials()
        elif ending is Reason.EXPIRED or self._unknown_versions >= 2:
            self._unknown_versions = 0
            why = f"its versions are not the server's: {error}"
            self._watched.force_relist(why)
            self._store_restored(why)

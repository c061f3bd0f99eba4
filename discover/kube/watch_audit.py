"""Checks whether a watch still tells all changes: a server may keep a connection open for ever and send nothing.

A read timeout finds that after 70 seconds; the notice of a machine may be over after 30. So when a watch has been
silent for a while, the pods are listed beside it and compared. For many pods a list is tens of megabytes: then a second
watch is opened for a second instead, and lists are rare.

Watches are served from the server's cache, and that may stand still: then all of them are silent. So the version of the
store itself is read, too. If the watch does not reach it within :data:`BOOKMARK_TIMEOUT`, the pods are listed from the
store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from discover.common.threads import PeriodicThread
from discover.kube.reflector import STOP_TIMEOUT, Reflector, read_list, reading
from discover.kube.streams import LineSplitter, ListParser
from discover.kube.transport import Collection, Failure, Request, RequestFailed, RequestKind, failure_from_status
from discover.kube.watch_policy import Ending, ending_of
from discover.selection.objects import Key, PodView, older
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

SMALL_JOB: Final = 200
"""Pods up to which each check lists them all."""

CHECK_INTERVAL: Final = 15.0
"""Seconds from the last event of a watch, or from a check, to the next check."""

LIST_INTERVAL: Final = 60.0
"""Seconds between two lists of up to :data:`LARGE_JOB` pods; of more, in proportion."""

LARGE_JOB: Final = 1000

SECOND_WATCH: Final = 1
"""Seconds that the second watch is open."""

WATCH_LAG: Final = 2.0
"""Seconds that a watch may be behind a list."""

BOOKMARK_TIMEOUT: Final = 75.0
"""Seconds within which a watch reaches the store's version, by a bookmark if nothing changes."""

_COMPARED: Final = ("namespace", "name", "uid", "resourceVersion")


class PodVersion(NamedTuple):
    key: Key
    uid: str
    version: str

    @classmethod
    def of(cls, raw: object) -> PodVersion:
        """Raises ``ValueError`` for what is no pod."""
        metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
        if not isinstance(metadata, Mapping):
            raise ValueError("an object of the list has no metadata")
        namespace, name, uid, version = (str(metadata.get(each) or "") for each in _COMPARED)
        return cls(Key(namespace, name), uid, version)


class MissingVersion(NamedTuple):
    """A version of the store that the watch has not reached, and when it was read (monotonic seconds)."""

    version: str
    at: float


def list_interval(pods: int) -> float:
    """Return the shortest time (seconds) between two lists of so many pods: they take about 0.1 % of a core."""
    return 0.0 if pods <= SMALL_JOB else LIST_INTERVAL * max(1.0, pods / LARGE_JOB)


def find_missed(
    listed: Iterable[PodVersion], listed_version: str, *, known: Mapping[Key, PodView], known_version: str
) -> str:
    """Say what of a list the watch has not told, or "". Nothing follows where versions cannot be compared, or where
    the known version is later than the list's."""
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

    ``store_restored`` is called when the server's store was restored to an earlier state: watches at later versions
    stay silent until the server has caught up with them.
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
        self._listed_at: float | None = None
        self._store_listed_at: float | None = None
        self._missing: MissingVersion | None = None
        self._timeout = BOOKMARK_TIMEOUT
        self._unknown_versions = 0
        self._beyond_cache = ""
        self._thread = PeriodicThread(
            "audit-pods",
            self.turn,
            clock=clock,
            interrupt=lambda: collection.interrupt(),
            patience=0.0,
            grace=STOP_TIMEOUT,
        )
        self.start, self.begin_stop = self._thread.start, self._thread.begin_stop

    def stop(self) -> None:
        self._thread.stop()
        if not self._thread.running:
            self._collection.close()

    def turn(self) -> float:
        """Check, if the watch has been silent for long; return the seconds to the next turn."""
        status = self._watched.status
        if not status.watching or status.last_event_at is None:
            return CHECK_INTERVAL
        if (left := status.last_event_at + CHECK_INTERVAL - self._clock.mono()) > 0:
            return left
        try:
            self._check()
        except RequestFailed as error:
            self._failed(error)
        return CHECK_INTERVAL

    def _check(self) -> None:
        now, pods = self._clock.mono(), len(self._watched.known()[0])
        if self._listed_at is None and pods > SMALL_JOB:
            self._listed_at = now  # the watch began with a list
        if self._store_listed_at is None:
            self._store_listed_at = now
        due = self._listed_at is None or now >= self._listed_at + list_interval(pods)
        missing = self._missing
        late = missing is not None and now >= missing.at + self._timeout and self._behind(missing.version)
        if due or late or not self._second_watch_agrees():
            self._listed_at = now
            if late and self._missing is not None:
                self._missing = self._missing._replace(at=now)  # a list that fails is not repeated by the next check
            from_store = late or now >= self._store_listed_at + LIST_INTERVAL
            agrees = self._list_agrees(now, from_store=from_store)
            if from_store or not agrees:
                self._missing = None
            if late:  # some servers send bookmarks only once in ten minutes
                most = max(BOOKMARK_TIMEOUT, list_interval(pods))
                self._timeout = min(2 * self._timeout, most) if agrees else BOOKMARK_TIMEOUT
            if not agrees:
                return
        self._unknown_versions = 0
        if self._missing is None:
            self._watched.confirm_in_sync()

    def _behind(self, version: str) -> bool:
        return older(self._watched.known()[1], version)

    def _second_watch_agrees(self) -> bool:
        """Whether a second watch tells nothing that the first does not. Raises :class:`RequestFailed`."""
        version = self._watched.known()[1]
        self._note_store_version(self._store_version(), version)
        try:
            newest = self._newest(version)
        except RequestFailed as error:
            if ending_of(error) is not Ending.EXPIRED:
                raise
            return False
        return not self._stays(lambda: self._behind(newest))

    def _stays(self, differs: Callable[[], object]) -> bool:
        """Whether a difference is still there after the time that a watch may be behind."""
        return bool(differs()) and not self._thread.sleep(WATCH_LAG) and bool(differs())

    def _note_store_version(self, store: str, version: str) -> None:
        """Note whether the store is further than the watch just was. Raises :class:`RequestFailed`."""
        _check_restored(store, version)
        if self._missing is None or not self._behind(self._missing.version):
            if self._missing is not None:
                self._timeout = BOOKMARK_TIMEOUT
            self._missing = MissingVersion(store, self._clock.mono()) if self._behind(store) else None

    def _store_version(self) -> str:
        """The version of the store itself, by a list of one object without a version. Raises :class:`RequestFailed`."""
        body = ListParser()
        with closing(self._collection.open(Request(ask=RequestKind.PAGED, most=1))) as pieces, reading():
            for piece in pieces:
                body.feed(piece)
            body.finish()
        return str(body.metadata.get("resourceVersion") or "")

    def _newest(self, version: str) -> str:
        """The newest version that a watch from ``version`` on tells of. Raises :class:`RequestFailed`."""
        lines = LineSplitter()
        request = Request(ask=RequestKind.WATCH, version=version, ends=SECOND_WATCH)
        with closing(self._collection.open(request)) as pieces, reading():
            for piece in pieces:
                for line in lines.feed(piece):
                    version = _version_in(json.loads(line)) or version
        return version

    def _list_agrees(self, now: float, *, from_store: bool) -> bool:
        """List, from the store or from the server's cache, and relist if the watch missed anything.

        The first list may have a later version than the cache reaches while no pod changes. Then only the store can
        say whether that version is one of its own.
        """
        version = self._watched.known()[1]
        if not from_store and version != self._beyond_cache:
            try:
                return self._compare(now, version, from_store=False)
            except RequestFailed as error:
                if ending_of(error) is not Ending.AHEAD:
                    raise
        if not from_store:
            self._beyond_cache = version
        return self._compare(now, version, from_store=True)

    def _compare(self, now: float, version: str, *, from_store: bool) -> bool:
        request = Request(ask=RequestKind.UNPAGED) if from_store else Request(ask=RequestKind.RELIST, version=version)
        listed, listed_version = read_list(self._collection.open, PodVersion.of, request)
        self._store_listed_at = now if from_store else self._store_listed_at
        _check_restored(listed_version, version)
        if self._stays(lambda: self._missed(listed, listed_version)):
            self._watched.force_relist(f"the watch missed a change: {self._missed(listed, listed_version)}")
            return False
        return True

    def _missed(self, listed: list[PodVersion], version: str) -> str:
        known, known_version = self._watched.known()
        return find_missed(listed, version, known=known, known_version=known_version)

    def _failed(self, error: RequestFailed) -> None:
        """The reflector sees that a server does not answer. A server that does not know the version was restored."""
        ending = ending_of(error)
        self._unknown_versions = self._unknown_versions + 1 if ending is Ending.AHEAD else 0
        if ending in (Ending.DENIED, Ending.NO_CREDENTIALS):
            self._collection.reload_credentials()
        elif ending is Ending.EXPIRED or self._unknown_versions >= 2:
            self._unknown_versions = 0
            why = f"its versions are not the server's: {error}"
            self._watched.force_relist(why)
            self._store_restored(why)


def _check_restored(store: str, version: str) -> None:
    """Raises :class:`RequestFailed` if a version that was known earlier is later than the store's."""
    if older(store, version):
        why = f"the store is at version {store}, and {version} is known"
        raise RequestFailed(Failure.ANSWERED, why, causes=("ResourceVersionTooLarge",))


def _version_in(line: object) -> str:
    """The version of the pod in a line of a watch; "" if there is none. Raises :class:`RequestFailed`."""
    if not isinstance(line, Mapping) or not isinstance(thing := line.get("object"), Mapping):
        raise ValueError("a line of the watch is no event")
    if line.get("type") == "ERROR":
        raise failure_from_status(thing)
    return "" if line.get("type") == "BOOKMARK" else PodVersion.of(thing).version

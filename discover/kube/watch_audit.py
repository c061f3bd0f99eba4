"""Looks whether a watch still tells all there is: a server may take a connection's bytes for ever and send nothing.

A silent watch is found out after 70 seconds at the earliest, for a live one may be silent for 60. A machine's notice
may be over after 30. So when a watch has been silent for some time the pods are listed beside it, and compared. Where
they are many, a list is fifty megabytes: then another watch is opened beside it for a second, which tells as well
whether there is anything that the first one has not told, and lists are seldom.

A server tells its watches what it keeps in memory, and that may stand still: then all of them are deaf. So the version
of the store itself is asked for, too. If a watch does not come to it in the time in which it should hear as much, by a
bookmark at the latest, the pods are listed from the store.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from typing import Final, NamedTuple, Protocol

from discover.common.grace import Leave
from discover.kube.reflector import LAST_TURN, WatchStatus, end_thread, read_list, reading
from discover.kube.streams import LineSplitter, ListParser
from discover.kube.transport import Collection, Failure, Request, RequestFailed, RequestKind, failure_from_status
from discover.kube.watch_policy import Ending, end_of
from discover.selection.objects import Key, PodView, older
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

SMALL_JOB: Final = 200
"""Pods up to which listing them at each look costs little."""

CHECK_INTERVAL: Final = 15.0
"""Seconds from the last word of a watch, or from a look, to the next look."""

LIST_INTERVAL: Final = 60.0
"""Seconds between two lists of up to :data:`MANY` pods; of more, in proportion."""

LARGE_JOB: Final = 1000

SECOND_WATCH: Final = 1
"""Seconds that the watch beside is open."""

WATCH_LAG: Final = 2.0
"""Seconds that a watch may be behind a list."""

BOOKMARK_TIMEOUT: Final = 75.0
"""Seconds after which a watch has said that it is as far as the store was, even if there is nothing to tell."""

_ITEMS: Final = b'"items"'


class PodVersion(NamedTuple):
    """What is compared of a pod."""

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


_COMPARED: Final = ("namespace", "name", "uid", "resourceVersion")


class MissingVersion(NamedTuple):
    """A version of the store that the watch has not come to, and when it was read there (monotonic seconds)."""

    version: str
    at: float


class Watched(Protocol):
    """The reflector, as it is seen from here."""

    @property
    def status(self) -> WatchStatus: ...

    def known(self) -> tuple[dict[Key, PodView], str]: ...

    def confirm_in_sync(self) -> None: ...

    def force_relist(self, why: str) -> None: ...


def list_interval(pods: int) -> float:
    """Seconds from one list of so many pods to the next, at least: some thousandth of a core goes into them."""
    return 0.0 if pods <= SMALL_JOB else LIST_INTERVAL * max(1.0, pods / LARGE_JOB)


def find_missed(
    listed: Iterable[PodVersion], listed_version: str, *, known: Mapping[Key, PodView], known_version: str
) -> str:
    """Say what a watch has not told of a list, or "".

    Who knows a later version than the list's has been told all of it. Where versions cannot be compared nothing is
    concluded.
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
    """Compares now and then, in a thread of its own, while the watch is open; what it finds, the reflector mends.

    ``set_back`` is told when the server's store was restored to an earlier state: watches of anything at later
    versions are open then, and will say nothing until the server has caught up with them.
    """

    def __init__(
        self,
        collection: Collection,
        watched: Watched,
        *,
        clock: Clock,
        set_back: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._collection = collection
        self._set_back = set_back
        self._watched = watched
        self._clock = clock
        self._settled = b""
        self._listed_at: float | None = None
        self._stored_at: float | None = None
        self._owed: MissingVersion | None = None
        self._patience = BOOKMARK_TIMEOUT
        self._unknown = 0
        self._beyond = ""
        self._stop = threading.Event()
        self._leave = Leave(LAST_TURN)
        self._thread = threading.Thread(target=self._run, name="recheck-pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Begin to stop, and do not wait for it. May be repeated."""
        self._leave.begin()
        self._stop.set()
        self._collection.interrupt()

    def stop(self) -> None:
        """End the thread. May be repeated, and come before :meth:`start`."""
        self.hurry()
        end_thread(self._thread, self._collection, self._leave)

    def turn(self) -> float:
        """Look, if the watch has said nothing for long; return how many seconds to wait before the next turn."""
        status = self._watched.status
        if not status.watching or status.last_event_at is None:
            return CHECK_INTERVAL
        if (left := status.last_event_at + CHECK_INTERVAL - self._clock.mono()) > 0:
            return left  # who talks is not deaf
        try:
            self._look()
        except RequestFailed as error:
            self._failed(error)
        return CHECK_INTERVAL

    def _run(self) -> None:
        pause = CHECK_INTERVAL
        while not self._clock.wait(self._stop, pause):
            try:
                pause = self.turn()
            except Exception:
                LOG.exception("%s: a defect of hvd-discover; looking again later", self._collection.where)
                pause = LIST_INTERVAL

    def _look(self) -> None:
        now, pods = self._clock.mono(), len(self._watched.known()[0])
        if self._listed_at is None and pods > SMALL_JOB:
            self._listed_at = now  # the watch began with a list
        if self._stored_at is None:
            self._stored_at = now
        due = self._listed_at is None or now >= self._listed_at + list_interval(pods)
        late = self._owed is not None and now >= self._owed.at + self._patience and self._behind(self._owed.version)
        if due or late or not self._glance():
            self._listed_at = now
            if late and self._owed is not None:
                self._owed = self._owed._replace(at=now)  # a list that fails is not repeated at the next look
            stored = late or now >= self._stored_at + LIST_INTERVAL
            agreed = self._compare(now, stored=stored)
            if stored or not agreed:
                self._owed = None
            if late:  # there are servers that tell their watches how far they are once in ten minutes
                most = max(BOOKMARK_TIMEOUT, list_interval(pods))
                self._patience = min(2 * self._patience, most) if agreed else BOOKMARK_TIMEOUT
            if not agreed:
                return
        self._unknown = 0
        if self._owed is None:
            self._watched.confirm_in_sync()

    def _behind(self, version: str) -> bool:
        return older(self._watched.known()[1], version)

    def _glance(self) -> bool:
        """Whether another watch tells nothing that the first one does not. Raises :class:`RequestFailed`."""
        version = self._watched.known()[1]
        self._reckon(self._store_version(), version)
        try:
            newest = self._newest(version)
        except RequestFailed as error:
            if end_of(error) is not Ending.EXPIRED:
                raise
            return False
        # The first one may be behind for a moment.
        behind = self._behind(newest) and not self._clock.wait(self._stop, WATCH_LAG)
        return not (behind and self._behind(newest))

    def _reckon(self, store: str, version: str) -> None:
        """Note whether the store is further than the watch was just before. Raises :class:`RequestFailed`."""
        _check_restored(store, version)
        if self._owed is None or not self._behind(self._owed.version):
            if self._owed is not None:
                self._patience = BOOKMARK_TIMEOUT
            self._owed = MissingVersion(store, self._clock.mono()) if self._behind(store) else None

    def _store_version(self) -> str:
        """How far the store itself is, by a list of one that asks for no version. Raises :class:`RequestFailed`."""
        body = ListParser()
        with closing(self._collection.open(Request(ask=RequestKind.PAGED, most=1))) as pieces, reading():
            for piece in pieces:
                body.feed(piece)
            body.finish()
        return str(body.metadata.get("resourceVersion") or "")

    def _newest(self, version: str) -> str:
        """The latest version that a watch from ``version`` on tells of. Raises :class:`RequestFailed`."""
        lines = LineSplitter()
        request = Request(ask=RequestKind.WATCH, version=version, ends=SECOND_WATCH)
        with closing(self._collection.open(request)) as pieces, reading():
            for piece in pieces:
                for line in lines.feed(piece):
                    version = _version_in(json.loads(line)) or version
        return version

    def _compare(self, now: float, *, stored: bool) -> bool:
        """List, and say whether the watch has told all of it; if not, it is not trusted any more. ``stored``: what the
        store holds, and not what the server has in memory.

        What the first list had from the store may be later than all that the server's memory comes to while nothing
        happens to pods. Then only the store can say whether that version is one of its own.
        """
        version = self._watched.known()[1]
        if not stored and version != self._beyond:
            try:
                return self._compared(now, version, stored=False)
            except RequestFailed as error:
                if end_of(error) is not Ending.AHEAD:
                    raise
        if not stored:
            self._beyond, self._settled = version, b""  # the version of the list is wanted, too
        return self._compared(now, version, stored=True)

    def _compared(self, now: float, version: str, *, stored: bool) -> bool:
        since = Request(ask=RequestKind.RELIST, version=version)
        request, listing = Request(ask=RequestKind.UNPAGED) if stored else since, _Hashed(self._collection)
        if self._settled:
            # Most of the time nothing has changed. Then the same bytes come as before, and need not be taken apart.
            with closing(listing.open(request)) as pieces:
                for _ in pieces:
                    pass
            if listing.sum() == self._settled:
                self._stored_at = now if stored else self._stored_at
                return True
        self._settled = b""
        listed, found = read_list(listing, PodVersion.of, request)
        self._stored_at = now if stored else self._stored_at
        _check_restored(found, version)
        why = self._missed(listed, found) and not self._clock.wait(self._stop, WATCH_LAG)
        if why and (what := self._missed(listed, found)):
            self._watched.force_relist(f"the watch is deaf: {what}")
            return False
        self._settled = listing.sum()
        return True

    def _missed(self, listed: list[PodVersion], version: str) -> str:
        known, known_version = self._watched.known()
        return find_missed(listed, version, known=known, known_version=known_version)

    def _failed(self, error: RequestFailed) -> None:
        """A server that does not answer is the watch's business. One that knows no such version was set back."""
        end = end_of(error)
        self._unknown = self._unknown + 1 if end is Ending.AHEAD else 0
        if end in (Ending.DENIED, Ending.NO_CREDENTIALS):
            self._collection.reload_credentials()
        elif end is Ending.EXPIRED or self._unknown >= 2:
            self._unknown = 0
            why = f"its versions are not the server's: {error}"
            self._watched.force_relist(why)
            self._set_back(why)


def _check_restored(store: str, version: str) -> None:
    """What was known before the store was asked cannot be later than the store. Raises :class:`RequestFailed`."""
    if older(store, version):
        why = f"the store is at version {store}, and {version} is known"
        raise RequestFailed(Failure.ANSWERED, why, causes=("ResourceVersionTooLarge",))


class _Hashed:
    """Lists ``collection``, and takes a sum of the objects, and not of what comes first: the list's own version changes
    with any pod of the cluster."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._digest = hashlib.blake2b(digest_size=16)

    def open(self, request: Request) -> Generator[bytes, None, None]:
        self._digest = self._digest if request.more else hashlib.blake2b(digest_size=16)
        head, begun = b"", False
        with closing(self._collection.open(request)) as pieces:
            for piece in pieces:
                if begun:
                    self._digest.update(piece)
                else:
                    head += piece
                    if (at := head.find(_ITEMS)) >= 0:
                        begun = True
                        self._digest.update(head[at:])
                yield piece

    def sum(self) -> bytes:
        """Of the list that was opened last, with all of its pages."""
        return self._digest.digest()


def _version_in(said: object) -> str:
    """That of a pod that a line of a watch tells of; "" if it tells of none. Raises :class:`RequestFailed`."""
    if not isinstance(said, Mapping) or not isinstance(thing := said.get("object"), Mapping):
        raise ValueError("a line of the watch is no event")
    if said.get("type") == "ERROR":
        raise failure_from_status(thing)
    return "" if said.get("type") == "BOOKMARK" else PodVersion.of(thing).version

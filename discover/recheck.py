"""Looks whether a watch still tells all there is: a server may take a connection's bytes for ever and send nothing.

A silent watch is found out after 70 seconds at the earliest, for a live one may be silent for 60. A machine's notice
may be over after 30. So when a watch has been silent for some time the pods are listed beside it, and compared.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Final, NamedTuple, Protocol

from discover.cluster import Key, PodView, older
from discover.steps import End, end_of
from discover.transport import Ask, Collection, Request, RequestFailed
from discover.watch import Contact, end_thread, read_list
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

FEW: Final = 200
"""Pods up to which looking often costs little."""

OFTEN: Final = 15.0
SELDOM: Final = 60.0
"""Seconds from the last word of a watch, or from a look, to the next look."""

GRACE: Final = 2.0
"""Seconds that a watch may be behind a list."""

_ITEMS: Final = b'"items"'


class Listed(NamedTuple):
    """What is compared of a pod."""

    key: Key
    uid: str
    version: str

    @classmethod
    def of(cls, raw: object) -> Listed:
        """Raises ``ValueError`` for what is no pod."""
        metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
        if not isinstance(metadata, Mapping):
            raise ValueError("an object of the list has no metadata")
        namespace, name, uid, version = (str(metadata.get(each) or "") for each in _COMPARED)
        return cls(Key(namespace, name), uid, version)


_COMPARED: Final = ("namespace", "name", "uid", "resourceVersion")


class Watched(Protocol):
    """The reflector, as it is seen from here."""

    @property
    def contact(self) -> Contact: ...

    def known(self) -> tuple[dict[Key, PodView], str]: ...

    def confirm(self) -> None: ...

    def distrust(self, why: str) -> None: ...


def interval(pods: int) -> float:
    """Seconds between two looks at so many pods."""
    return OFTEN if pods <= FEW else SELDOM


def missed(listed: Iterable[Listed], listed_version: str, *, known: Mapping[Key, PodView], known_version: str) -> str:
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


class Recheck:
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
        self._unknown = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recheck-pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. May be repeated, and come before :meth:`start`."""
        self._stop.set()
        end_thread(self._thread, self._collection)

    def turn(self) -> float:
        """Look, if the watch has said nothing for long; return how many seconds to wait before the next turn."""
        contact, pause = self._watched.contact, interval(len(self._watched.known()[0]))
        if not contact.watching or contact.told is None:
            return pause
        if (left := contact.told + pause - self._clock.mono()) > 0:
            return left  # who talks is not deaf
        try:
            self._look()
        except RequestFailed as error:
            self._failed(error)
        return pause

    def _run(self) -> None:
        pause = OFTEN
        while not self._clock.wait(self._stop, pause):
            try:
                pause = self.turn()
            except Exception:
                LOG.exception("%s: a defect of hvd-discover; looking again later", self._collection.where)
                pause = SELDOM

    def _look(self) -> None:
        request = Request(ask=Ask.SINCE, version=self._watched.known()[1])
        # Most of the time nothing has changed. Then the same bytes come as before, and need not be taken apart.
        digest = self._digest(request)
        if digest != self._settled:
            listed, version = read_list(self._collection, Listed.of, request)
            why = self._missed(listed, version) and not self._clock.wait(self._stop, GRACE)
            if why and (what := self._missed(listed, version)):
                self._settled = b""
                self._watched.distrust(f"the watch is deaf: {what}")
                return
            self._settled = digest
        self._unknown = 0
        self._watched.confirm()

    def _missed(self, listed: list[Listed], version: str) -> str:
        known, known_version = self._watched.known()
        return missed(listed, version, known=known, known_version=known_version)

    def _digest(self, request: Request) -> bytes:
        """Of the objects, and not of what comes first: the list's own version changes with any pod of the cluster."""
        digest, head, begun = hashlib.blake2b(digest_size=16), b"", False
        with closing(self._collection.open(request)) as pieces:
            for piece in pieces:
                if begun:
                    digest.update(piece)
                    continue
                head += piece
                at = head.find(_ITEMS)
                if at >= 0:
                    begun = True
                    digest.update(head[at:])
        return digest.digest()

    def _failed(self, error: RequestFailed) -> None:
        """A server that does not answer is the watch's business. One that knows no such version was set back."""
        end = end_of(error)
        self._unknown = self._unknown + 1 if end is End.AHEAD else 0
        if end in (End.DENIED, End.UNARMED):
            self._collection.renew()
        elif end is End.EXPIRED or self._unknown >= 2:
            self._unknown = 0
            why = f"its versions are not the server's: {error}"
            self._watched.distrust(why)
            self._set_back(why)

"""Follows one collection of an API server: lists it, watches it, and lists it again when the watch cannot continue.

:mod:`discover.watch.policy` decides the next request; this module sends it, in a thread of its own. What it knows is
always the whole collection: who reads it needs no event, and misses none.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from discover.metrics import ClusterMetrics
from discover.pods.views import NodeView, PodView, node_view, older, pod_view
from discover.threads import PeriodicThread
from discover.watch.collection import Collection, Request, RequestKind
from discover.watch.policy import SHORT_WATCH, Ending, Outcome, State, Step, next_step
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason

LOG = logging.getLogger("hvd-discover")

MIN_WATCH: Final = 50
"""Least seconds for which a request asks the server to keep a watch open.

If etcd reports no progress, a watch may send nothing for minutes, not even a bookmark. A server that works still ends
its watches in time, and a dead one does not.
"""

WATCH_JITTER: Final = 10
"""Up to so many seconds are added, so that many watches do not end together."""

STATUS_INTERVAL: Final = 0.5
"""Least seconds between two updates of the status by events of a watch."""

STOP_TIMEOUT: Final = 0.4
"""Seconds to wait for a thread that was asked to end."""

T = TypeVar("T")
V = TypeVar("V", PodView, NodeView)


@dataclass(frozen=True, slots=True)
class Resource(Generic[V]):
    """A kind of objects. ``view`` makes a view of an API object."""

    name: str
    view: Callable[[object], V]
    optional: bool = False
    """The daemon can work without them, so after a 403 they count as hidden."""


PODS: Final[Resource[PodView]] = Resource("pods", pod_view)
NODES: Final[Resource[NodeView]] = Resource("nodes", node_view, optional=True)


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """How well a collection is followed; times in monotonic seconds."""

    listed: bool = False
    """A complete list has arrived once, or the server refuses to give one (``hidden``)."""
    hidden: bool = False
    in_sync_at: float | None = None
    """When all objects were last known with certainty, None if never."""
    last_event_at: float | None = None
    """When a watch last sent something or was opened."""
    watching: bool = False
    """A watch is open."""
    problem: str = ""
    """Why the last request failed, else empty."""
    problem_since: float | None = None
    """When the first of these failures was, without a watch between them that lasted."""

    def failed(self, now: float, why: str, *, lived: float) -> WatchStatus:
        """Return the status after a request has failed. ``why``: the reason. ``lived``: seconds that a watch was
        open.
        """
        since = self.problem_since
        over = since is None or lived >= SHORT_WATCH or (self.in_sync_at is not None and self.in_sync_at > since)
        return replace(self, problem=why, problem_since=now if over else since)


def turns_of(collection: Collection, name: str, turn: Callable[[], float], *, clock: Clock) -> PeriodicThread:
    """Return a thread that sends requests to ``collection``. Stopping the thread aborts its current request at once."""
    return PeriodicThread(
        name,
        turn,
        clock=clock,
        interrupt=lambda: collection.interrupt(),
        at_end=collection.close,
        finish_timeout=0.0,
        grace=STOP_TIMEOUT,
    )


class Reflector(Generic[V]):
    """Keeps a copy of all objects of ``collection`` as the server has them, in a thread of its own.

    The thread calls ``changed`` with True if objects have changed, with False if only the status has. ``draw`` returns
    a random number from [0, 1).
    """

    def __init__(
        self,
        collection: Collection,
        resource: Resource[V],
        changed: Callable[[bool], None],
        *,
        clock: Clock,
        draw: Callable[[], float],
        metrics: ClusterMetrics,
    ) -> None:
        self._collection = collection
        self._resource: Resource[V] = resource
        self._changed = changed
        self._clock = clock
        self._draw = draw
        self._metrics = metrics
        self._state = State()
        self._status = WatchStatus()
        self._version = ""
        self._known: dict[Any, V] = {}
        self._sorted = True
        """Whether :attr:`_known` is in order of its keys. A changed object keeps its place; a new one comes last."""
        self._shown: Mapping[Any, V] = MappingProxyType({})
        self._outdated = False
        """Whether :attr:`_shown` differs from :attr:`_known`."""
        self._lock = threading.Lock()
        self._relist_reason = ""
        self._was_silent = False
        self._lived = 0.0
        self._thread = turns_of(collection, f"watch-{resource.name}", self.turn, clock=clock)
        self.start, self.begin_stop, self.stop = self._thread.start, self._thread.begin_stop, self._thread.stop

    @property
    def where(self) -> str:
        """What is followed and on which server, for people."""
        return self._collection.where

    @property
    def status(self) -> WatchStatus:
        """How well the collection is followed now. For any thread."""
        return self._status

    def known(self) -> tuple[Mapping[Any, V], str]:
        """Return all objects by their ``id``, in order of these, and their version. The mapping is the same object
        until one of them changes.
        """
        with self._lock:
            if not self._sorted:
                self._known, self._sorted = {id_: self._known[id_] for id_ in sorted(self._known)}, True
            if self._outdated:
                self._shown, self._outdated = MappingProxyType(self._known.copy()), False
            return self._shown, self._version

    def confirm_in_sync(self) -> None:
        """Record that a comparison with the server has found no difference."""
        self._update(in_sync_at=self._clock.mono())

    def force_relist(self, why: str) -> None:
        """End the watch and list again, because the watch has missed something. For any thread."""
        if self._status.watching:
            self._relist_reason = why
            self._collection.interrupt()

    def turn(self) -> float:
        """Send one request, and read its whole answer; return the seconds to the next request."""
        state, self._state = self._state, State()  # so that it begins again after an unexpected exception
        self._lived = 0.0
        outcome = self._request(state)
        if self._thread.stopping:
            return 0.0
        optional = self._resource.optional
        step, reason = next_step(self._clock.mono(), state, outcome, jitter=self._draw(), optional=optional)
        self._report(state, outcome, step, reason)
        self._state = step.state
        if step.hidden:
            news = not self._status.hidden
            self._update(listed=True, hidden=True)
            if news:
                self._changed(True)
        if step.reload_credentials:
            self._collection.reload_credentials()
        return step.pause

    def _request(self, state: State) -> Outcome:
        self._relist_reason = ""
        ending: Ending | Reason
        try:
            if state.next is RequestKind.WATCH:
                self._watch(state.version)
            else:
                self._list(state)
            ending, why, retry_after = Ending.DONE, "", None
        except ApiError as error:
            ending, why, retry_after = error.reason, str(error), error.retry_after
        finally:
            self._update(watching=False)
        if self._relist_reason and state.next is RequestKind.WATCH:
            ending, why = Ending.MISSED, self._relist_reason
        return Outcome(ending, why, self._version, lived=self._lived, retry_after=retry_after)

    def _list(self, state: State) -> None:
        self._metrics.listed(self._resource.name)
        request = Request(ask=state.next, version=state.version)
        found, version = read_list(self._collection.open, self._view_of, request)
        if self._was_silent:
            news = set(map(_identity, found)) ^ set(map(_identity, self._known.values()))
            self._check_silent_watch(len({uid for uid, _ in news}))
        with self._lock:
            self._known = {view.id: view for view in found}
            self._sorted, self._outdated = False, True
            self._version = version
        self._update(listed=True, hidden=False, in_sync_at=self._clock.mono(), problem="")
        self._changed(True)

    def _view_of(self, item: object) -> V:
        """Return the view of ``item``, or the known view if it is the same. That saves memory and later comparisons."""
        view = self._resource.view(item)
        known = self._known.get(view.id)
        return known if known is not None and view.version and _identity(known) == _identity(view) else view

    def _watch(self, version: str) -> None:
        ends = MIN_WATCH + int(WATCH_JITTER * self._draw())
        lines, opened = LineSplitter(), self._clock.mono()
        request = Request(ask=RequestKind.WATCH, version=version, ends=ends)
        with closing(self._collection.open(request)) as pieces:
            self._update(watching=True, last_event_at=opened, problem="")
            updated, answered = opened, self._clock.mono()
            try:
                for piece in pieces:
                    with reading():
                        changes = self._take(lines.feed(piece))
                    # Only changes right after the start were missed before; later changes are new.
                    self._check_silent_watch(changes if self._clock.mono() < answered + SHORT_WATCH else 0)
                    if (now := self._clock.mono()) >= updated + STATUS_INTERVAL:
                        updated = now
                        self._update(in_sync_at=now, last_event_at=now)
            finally:
                self._lived = self._clock.mono() - opened
        self._was_silent = False
        if self._lived >= SHORT_WATCH:  # the server itself ended the watch, so it works
            self._update(in_sync_at=opened + self._lived, last_event_at=opened + self._lived)

    def _check_silent_watch(self, changes: int) -> None:
        """Warn if the last watch was silent and missed changes. ``changes``: how many arrive right after it."""
        if self._was_silent and changes:
            LOG.warning("%s: the watch that fell silent missed %d changes", self.where, changes)
        self._was_silent = False

    def _take(self, lines: Iterable[bytes]) -> int:
        """Apply the events in ``lines``; return the number of changes."""
        changes = 0
        try:
            for line in lines:
                changes += self._take_event(json.loads(str(line, "utf-8")))
        finally:
            if changes:
                self._changed(True)
        return changes

    def _take_event(self, line: object) -> bool:
        """Apply one event of a watch. Return False for a bookmark, which only has a version (rule R5)."""
        if not isinstance(line, Mapping) or not isinstance(thing := line.get("object"), Mapping):
            raise ValueError("a line of the watch is not an event")
        match line.get("type"):
            case "BOOKMARK":
                metadata = thing.get("metadata")
                self._advance(str(metadata.get("resourceVersion") or "") if isinstance(metadata, Mapping) else "")
                return False
            case "ERROR":
                raise ApiError.of_status(thing)
            case "ADDED" | "MODIFIED" | "DELETED" as kind:
                self._note(self._resource.view(thing), gone=kind == "DELETED")
                return True
            case other:
                raise ValueError(f"a line of the watch is of the unknown type {str(other)[:40]!r}")

    def _note(self, view: V, *, gone: bool) -> None:
        """Apply one change. Events may be late or repeated, and a deletion may be that of an earlier object of the same
        name (rule R11).
        """
        with self._lock:
            known = self._known.get(view.id)
            same = known is not None and known.uid == view.uid
            news = same if gone else not (same and known is not None and older(view.version, known.version))
            if news and gone:
                del self._known[view.id]
            elif news:
                self._sorted = self._sorted and known is not None
                self._known[view.id] = view
            self._outdated = self._outdated or news
        self._advance(view.version)

    def _advance(self, version: str) -> None:
        if version and not older(version, self._version):
            self._version = version

    def _update(self, **changes: Any) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)

    def _report(self, state: State, outcome: Outcome, step: Step, reason: str) -> None:
        if state.next is RequestKind.WATCH:
            self._metrics.restarted(self._resource.name, outcome.ending.value)
        if outcome.ending is Ending.DONE:
            return
        self._was_silent = self._was_silent or (state.next is RequestKind.WATCH and outcome.ending is Reason.SILENT)
        before = self._status.problem
        with self._lock:
            self._status = self._status.failed(self._clock.mono(), reason, lived=outcome.lived)
        if before != reason:
            # A request that is repeated at once needs no warning, unless something was missed.
            level = logging.WARNING if step.pause or outcome.ending is Ending.MISSED else logging.INFO
            then = f"{step.state.next.value} again" + (f" in {step.pause:.1f} s" if step.pause else "")
            self._changed(False)
            LOG.log(level, "%s: %s: %s; %s", self.where, state.next.value, reason, then)


def read_list(
    open_: Callable[[Request], Generator[bytes, None, None]], view: Callable[[object], T], request: Request
) -> tuple[list[T], str]:
    """Read all pages of a list; return ``(views, version)``. Raises :class:`ApiError` if one page fails."""
    views: list[T] = []
    version = ""
    while True:
        body = ListParser()
        with closing(open_(request)) as pieces, reading():
            for piece in pieces:
                views.extend(map(view, body.feed(piece)))
            views.extend(map(view, body.finish()))
        version = version or str(body.metadata.get("resourceVersion") or "")
        more = str(body.metadata.get("continue") or "")
        if not more:
            return views, version
        request = replace(request, more=more)


@contextmanager
def reading() -> Iterator[None]:
    """Turn errors of parsing into :class:`ApiError`."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise ApiError(Reason.SERVER_ERROR, f"the answer cannot be read: {error}") from None


def _identity(view: PodView | NodeView) -> tuple[str, str]:
    return view.uid, view.version


# --- bodies that are parsed while they arrive


MAX_LINE: Final = 16 << 20
"""Most bytes of a line. etcd keeps no object of more than 1.5 MiB."""

_DECODER = json.JSONDecoder()
_ITEMS = re.compile(r'"items"\s*:\s*\[')
_BEFORE_OBJECT = re.compile(r"\s*(,?)\s*(?=\{)")


class LineSplitter:
    """Makes lines from the pieces of a body. A line is bytes without the line end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Add ``piece``; return the lines that are complete now, without blank ones. Raises ``ValueError`` for a line
        that is too long.
        """
        *ended, rest = piece.split(b"\n")
        if ended:
            ended[0] = b"".join([*self._pieces, ended[0]])
            self._pieces, self._size = [], 0
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
            if self._size > MAX_LINE:
                raise ValueError(f"a line of the answer is longer than {MAX_LINE >> 20} MiB")
        return [line for line in ended if line.strip()]


class ListParser:
    """Parses a list: ``{"kind": …, "metadata": {…}, "items": [{…}, …]}``, with the keys in any order."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._head = ""
        self._began = False
        self._wanted = 0

    def feed(self, piece: bytes) -> list[Any]:
        """Add ``piece``; return the objects that are complete now. Raises ``ValueError`` if the body is not a list."""
        self._text += self._utf8.decode(piece)
        return self._complete() if len(self._text) >= self._wanted else []

    def finish(self) -> list[Any]:
        """End the list; return the last objects. Raises ``ValueError`` if it is incomplete."""
        self._text += self._utf8.decode(b"", final=True)
        found = self._complete()
        around = json.loads(self._head + self._text)  # the list without its objects
        if not isinstance(around, dict) or around.get("items", self) not in (None, []):
            raise ValueError("the answer is not a list: it has no items")
        if isinstance(metadata := around.get("metadata"), dict):
            self.metadata = metadata
        return found

    def _complete(self) -> list[Any]:
        """Remove the complete objects from the text, and return them."""
        if not self._head and (start := _ITEMS.search(self._text)) is not None:
            self._head, self._text = self._text[: start.end()], self._text[start.end() :]
        found, at = [], 0
        while self._head and (before := _BEFORE_OBJECT.match(self._text, at)) is not None:
            if bool(before[1]) is not self._began:
                raise ValueError("the answer is not a list: commas separate its items")
            try:
                item, at = _DECODER.raw_decode(self._text, before.end())
            except ValueError:
                break
            self._began = True
            found.append(item)
        self._text = self._text[at:]
        # Parse an incomplete object again only when twice as much text is there, so that repeated parsing costs little.
        self._wanted = 2 * len(self._text)
        return found

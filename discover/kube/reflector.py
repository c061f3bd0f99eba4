"""Keeps up with one collection of an API server: list, watch, and list again where the watch cannot go on.

What comes next is decided in :mod:`discover.kube.watch_policy`; this does it, in a thread of its own.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from discover.common.grace import Leave
from discover.kube.streams import LineSplitter, ListParser
from discover.kube.transport import Collection, Failure, Request, RequestFailed, RequestKind, failure_from_status
from discover.kube.views import node_view, pod_view
from discover.kube.watch_policy import SHORT_WATCH, Ending, Outcome, State, Step, end_of, next_step
from discover.selection.objects import (
    ClusterEvent,
    Key,
    NodeGone,
    NodeSeen,
    NodesHidden,
    NodesListed,
    NodeView,
    PodGone,
    PodSeen,
    PodsListed,
    PodView,
    older,
    outdated,
)
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

MIN_WATCH: Final = 50
"""Seconds that the server is asked to keep a watch open, at least.

A watch may have nothing to tell for minutes, not even a bookmark: where etcd does not say how far it is, a quiet kind
has none that would be news. That a server ends its watches in time is what tells a live one from a dead one.
"""

WATCH_JITTER: Final = 10
"""Seconds more, at most: so that many watches do not end together."""

STATUS_INTERVAL: Final = 0.5
"""Seconds after which a further sign of life of a watch is noted."""

LAST_TURN: Final = 0.4
"""Seconds to wait for a thread, once it was told to end; it is a daemon thread, and ends with the process if it does
not."""

T = TypeVar("T")
V = TypeVar("V", PodView, NodeView)


@dataclass(frozen=True, slots=True)
class Resource(Generic[V]):
    """How objects of one kind become events. ``hidden``: what tells that they may not be read, if they can be done
    without; None if they cannot."""

    name: str
    view: Callable[[object], V]
    listed: Callable[[tuple[V, ...]], ClusterEvent]
    seen: Callable[[V], ClusterEvent]
    gone: Callable[[V], ClusterEvent]
    hidden: ClusterEvent | None = None


PODS: Final[Resource[PodView]] = Resource("pods", pod_view, PodsListed, PodSeen, PodGone)
NODES: Final[Resource[NodeView]] = Resource("nodes", node_view, NodesListed, NodeSeen, NodeGone, NodesHidden())


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """How a reflector and its server stand.

    ``listed``: a list came whole once, or it was learnt that there is none to be had. ``heard``: monotonic seconds
    when it was last certain to know all there is; None if never. ``told``: when a watch last said something, or was
    opened. ``watching``: a watch is open. ``trouble``: why the latest request came to nothing, empty if it did not;
    ``troubled``: since when that is so (monotonic seconds), and no watch lived or said anything.
    """

    listed: bool = False
    hidden: bool = False
    in_sync_at: float | None = None
    last_event_at: float | None = None
    watching: bool = False
    problem: str = ""
    problem_since: float | None = None

    def failed(self, now: float, why: str, *, lived: float) -> WatchStatus:
        """A request came to nothing; a watch that was open for ``lived`` seconds."""
        since = self.problem_since
        over = since is None or lived >= SHORT_WATCH or (self.in_sync_at is not None and self.in_sync_at > since)
        return replace(self, problem=why, problem_since=now if over else since)


class Witness(Protocol):
    """Who counts."""

    def listed(self, resource: str) -> None:
        """A list was asked for."""

    def restarted(self, resource: str, reason: str) -> None:
        """A watch ended, for a ``reason`` out of a handful of words."""


class Reflector(Generic[V]):
    """Tells all changes of ``collection`` to ``emit``, in batches and in order, from the thread it runs in. An empty
    batch says that the status has changed.

    ``draw`` gives random numbers from [0, 1).
    """

    def __init__(
        self,
        collection: Collection,
        resource: Resource[V],
        emit: Callable[[tuple[ClusterEvent, ...]], None],
        *,
        clock: Clock,
        draw: Callable[[], float],
        witness: Witness,
    ) -> None:
        self._collection = collection
        self._resource: Resource[V] = resource
        self._emit = emit
        self._clock = clock
        self._draw = draw
        self._witness = witness
        self._state = State()
        self._status = WatchStatus()
        self._version = ""
        self._known: dict[Key, V] = {}
        self._lock = threading.Lock()
        self._distrusted = ""
        self._silenced = False
        self._lived = 0.0
        self._stop = threading.Event()
        self._leave = Leave(LAST_TURN)
        self._thread = threading.Thread(target=self.run, name=f"watch-{resource.name}", daemon=True)

    @property
    def where(self) -> str:
        return self._collection.where

    @property
    def status(self) -> WatchStatus:
        return self._status

    def known(self) -> tuple[dict[Key, V], str]:
        """What is known now, and the newest version among it."""
        with self._lock:
            return dict(self._known), self._version

    def confirm_in_sync(self) -> None:
        """Somebody else found that what is known is all there is."""
        self._stand(in_sync_at=self._clock.mono())

    def force_relist(self, why: str) -> None:
        """Somebody else found that the watch does not tell all there is: list anew. From any thread."""
        if self._status.watching:
            self._distrusted = why
            self._collection.interrupt()

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Begin to stop, and do not wait for it. May be repeated."""
        self._leave.begin()
        self._stop.set()
        self._collection.interrupt()

    def stop(self) -> None:
        """End the thread, whatever it waits for. May be repeated, and come before :meth:`start`."""
        self.hurry()
        end_thread(self._thread, self._collection, self._leave)

    def run(self) -> None:
        """Take turns until :meth:`stop`."""
        while not self._stop.is_set():
            try:
                pause = self.turn()
            except Exception:
                # Without this thread the hosts would stand still for ever, and nobody would know.
                LOG.exception("%s: a defect of hvd-discover; beginning again", self._collection.where)
                self._state, pause = State(), 30.0
            if pause > 0:
                self._clock.wait(self._stop, pause)

    def turn(self) -> float:
        """Make one request, to its end; return how many seconds to wait before the next."""
        state, self._lived = self._state, 0.0
        outcome = self._outcome(state)
        if self._stop.is_set():
            return 0.0
        hidable = self._resource.hidden is not None
        step, reason = next_step(self._clock.mono(), state, outcome, jitter=self._draw(), dispensable=hidable)
        self._account(state, outcome, step, reason)
        self._state = step.state
        if step.hidden and not self._status.hidden and self._resource.hidden is not None:
            self._emit((self._resource.hidden,))
        if step.hidden:
            self._stand(listed=True, hidden=True)
        if step.reload_credentials:
            self._collection.reload_credentials()
        return step.pause

    def _outcome(self, state: State) -> Outcome:
        self._distrusted = ""
        try:
            if state.next is RequestKind.WATCH:
                self._watch(state.version)
            else:
                self._list(state)
            end, why, retry_after = Ending.DONE, "", None
        except RequestFailed as error:
            end, why, retry_after = end_of(error), str(error), error.retry_after
        finally:
            self._stand(watching=False)
        if self._distrusted and state.next is RequestKind.WATCH:
            end, why = Ending.MISSED, self._distrusted
        return Outcome(end, why, self._version, lived=self._lived, retry_after=retry_after)

    def _list(self, state: State) -> None:
        self._witness.listed(self._resource.name)
        found, version = read_list(self._collection, self._view_of_item, Request(ask=state.next, version=state.version))
        if self._silenced:
            news = set(map(_identity, found)) ^ set(map(_identity, self._known.values()))
            self._check_silence(len({uid for uid, _ in news}))
        with self._lock:
            self._known = {view.key: view for view in found}
            self._version = version
        self._emit((self._resource.listed(tuple(found)),))
        self._stand(listed=True, hidden=False, in_sync_at=self._clock.mono(), problem="")

    def _view_of_item(self, item: object) -> V:
        """What has not changed is the same thing as before: that is dear neither to keep nor to look at again."""
        view = self._resource.view(item)
        known = self._known.get(view.key)
        return known if known is not None and view.version and _identity(known) == _identity(view) else view

    def _watch(self, version: str) -> None:
        ends = MIN_WATCH + int(WATCH_JITTER * self._draw())
        lines, opened = LineSplitter(), self._clock.mono()
        with closing(self._collection.open(Request(ask=RequestKind.WATCH, version=version, ends=ends))) as pieces:
            self._stand(watching=True, last_event_at=opened, problem="")
            confirmed, answered = opened, self._clock.mono()
            try:
                for piece in pieces:
                    with reading():
                        told = self._take(lines.feed(piece))
                    # What comes later is news.
                    self._check_silence(told if self._clock.mono() < answered + SHORT_WATCH else 0)
                    if (now := self._clock.mono()) >= confirmed + STATUS_INTERVAL:
                        confirmed = now
                        self._stand(in_sync_at=now, last_event_at=now)
            finally:
                self._lived = self._clock.mono() - opened
        self._silenced = False
        if self._lived >= SHORT_WATCH:
            self._stand(
                in_sync_at=opened + self._lived, last_event_at=opened + self._lived
            )  # only a live server ends it itself

    def _check_silence(self, told: int) -> None:
        """Warn if a watch that fell silent had missed something: ``told`` is how much is told at once after it."""
        if self._silenced and told:
            LOG.warning("%s: the watch that fell silent had not told of all changes (%d told now)", self.where, told)
        self._silenced = False

    def _take(self, lines: Iterable[bytes]) -> int:
        """Tell what they say, and return how many changes that were."""
        batch: list[ClusterEvent] = []
        try:
            for line in lines:
                event = self._event(json.loads(str(line, "utf-8")))
                if event is not None:
                    batch.append(event)
        finally:
            if batch:
                self._emit(tuple(batch))
        return len(batch)

    def _event(self, said: object) -> ClusterEvent | None:
        """Read one line of a watch; None for a bookmark, which tells how far the server is and nothing else (R5)."""
        if not isinstance(said, Mapping) or not isinstance(thing := said.get("object"), Mapping):
            raise ValueError("a line of the watch is no event")
        match said.get("type"):
            case "BOOKMARK":
                metadata = thing.get("metadata")
                self._reach(str(metadata.get("resourceVersion") or "") if isinstance(metadata, Mapping) else "")
                return None
            case "ERROR":
                raise failure_from_status(thing)
            case "ADDED" | "MODIFIED":
                view = self._resource.view(thing)
                self._note(view, gone=False)
                return self._resource.seen(view)
            case "DELETED":
                view = self._resource.view(thing)
                self._note(view, gone=True)
                return self._resource.gone(view)
            case other:
                raise ValueError(f"a line of the watch is of type {str(other)[:40]!r}, which there is not")

    def _note(self, view: V, *, gone: bool) -> None:
        with self._lock:
            known = self._known.get(view.key)
            if not gone and not outdated(view, known):
                self._known[view.key] = view
            elif gone and known is not None and known.uid == view.uid:
                del self._known[view.key]
        self._reach(view.version)

    def _reach(self, version: str) -> None:
        if version and not older(version, self._version):
            self._version = version

    def _stand(self, **changes: Any) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)

    def _account(self, state: State, outcome: Outcome, step: Step, reason: str) -> None:
        if state.next is RequestKind.WATCH:
            self._witness.restarted(self._resource.name, outcome.end.value)
        if outcome.end is Ending.DONE:
            return
        self._silenced = self._silenced or (state.next is RequestKind.WATCH and outcome.end is Ending.SILENT)
        before = self._status.problem
        with self._lock:
            self._status = self._status.failed(self._clock.mono(), reason, lived=outcome.lived)
        if before != reason:
            # What is tried again at once is no trouble yet, unless something was missed.
            level = logging.WARNING if step.pause or outcome.end is Ending.MISSED else logging.INFO
            then = f"{step.state.next.value} again" + (f" in {step.pause:.1f} s" if step.pause else "")
            self._emit(())
            LOG.log(level, "%s: %s: %s; %s", self._collection.where, state.next.value, reason, then)


class Lists(Protocol):
    """What a list is read from; see :meth:`discover.kube.transport.Collection.open`."""

    def open(self, request: Request) -> Generator[bytes, None, None]: ...


def read_list(collection: Lists, view: Callable[[object], T], request: Request) -> tuple[list[T], str]:
    """Read all pages of a list: ``(views, version)``. All or nothing. Raises :class:`RequestFailed`."""
    views: list[T] = []
    version = ""
    while True:
        body = ListParser()
        with closing(collection.open(request)) as pieces, reading():
            for piece in pieces:
                views.extend(map(view, body.feed(piece)))
            views.extend(map(view, body.finish()))
        version = version or str(body.metadata.get("resourceVersion") or "")
        more = str(body.metadata.get("continue") or "")
        if not more:
            return views, version
        request = replace(request, more=more)


def end_thread(thread: threading.Thread, collection: Collection, leave: Leave) -> None:
    """Wait for ``thread``, which was told to stop and may be waiting for ``collection``, until its leave is over."""
    while thread.is_alive() and thread is not threading.current_thread() and leave.left > 0:
        collection.interrupt()  # more than once: a request may be on its way to be sent
        thread.join(0.05)
    if not thread.is_alive():
        collection.close()


@contextmanager
def reading() -> Iterator[None]:
    """What cannot be read is the server's trouble, and not ours."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise RequestFailed(Failure.UNREADABLE, f"the answer cannot be read: {error}") from None


def _identity(view: PodView | NodeView) -> tuple[str, str]:
    return view.uid, view.version

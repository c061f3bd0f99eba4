"""The daemon's loop: wait for an event, look at the source, decide, publish.

Every look decides from the whole that the source shows and from what was published last; a look that fails changes
nothing. Places are brought to the last publication again and again, so one that has failed or was changed by others is
repaired at a later turn.
"""

from __future__ import annotations

import logging
import queue
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from discover.metrics import Metrics
from discover.publish.files import Publisher, PublishFailed
from discover.publish.server import Health
from discover.sources import Observation, Source, Unsettled
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import HOSTS_KEPT, ElasticError, SourceUnavailable
from hvd_elastic_ext.core.hosts import HostChange, HostSet, follow
from hvd_elastic_ext.core.pace import Lines
from hvd_elastic_ext.core.publication import Publication

LOG = logging.getLogger("hvd-discover")


# --- what a look changes


SETTLE_TIMEOUT = 5.0
"""Seconds for which a source may stay unsettled without a problem."""

Seen = Observation | Unsettled | ElasticError
"""The result of one look at the source."""


@dataclass(frozen=True, slots=True)
class DaemonState:
    """What the daemon knows before a look.

    ``life`` names this run of the daemon.
    """

    life: str
    seniority: HostSet = field(default_factory=HostSet)
    """The hosts in the order in which they came; until the first publication, those of an earlier run."""
    last: Publication | None = None
    """The last publication."""
    seen: Observation | None = None
    """The last observation, which has the same hosts as ``last``."""
    unsettled_since: float | None = None
    """In monotonic seconds."""


@dataclass(frozen=True, slots=True)
class PublicationDecision:
    """``state.last`` is what should be published."""

    state: DaemonState
    news: bool = False
    """This look has changed it."""
    problem: str = ""
    """Why the look gave no observation, or why that is in doubt; else empty."""
    followed: bool = False
    """The look gave an observation."""


def decide(now: float, state: DaemonState, seen: Seen) -> tuple[PublicationDecision, str]:
    """Return ``(decision, reason)`` for one look. If the look failed, the last good hosts stay.

    ``now`` is in monotonic seconds.
    """
    kept = HOSTS_KEPT if state.last is not None or state.seniority else ""
    if isinstance(seen, Unsettled):
        since = now if state.unsettled_since is None else state.unsettled_since
        waiting = replace(state, unsettled_since=since)
        if now - since < SETTLE_TIMEOUT:
            return PublicationDecision(waiting), "waiting for the source to settle"
        problem = f"{SourceUnavailable(seen.where, seen.why)}{kept}"
        return PublicationDecision(waiting, problem=problem), problem
    if isinstance(seen, ElasticError):
        problem = f"{seen}{kept}" if isinstance(seen, SourceUnavailable) else str(seen)
        return PublicationDecision(replace(state, unsettled_since=None), problem=problem), problem
    return _follow(replace(state, unsettled_since=None), seen)


def publication_of(state: DaemonState, seen: Observation) -> tuple[Publication, HostChange]:
    """Return a publication of ``seen`` under the next sequence number, and what has changed. Known hosts come first,
    then new ones by name.
    """
    sequence = 1 if state.last is None else state.last.sequence + 1
    hosts, change = follow(state.seniority, seen.hosts, newcomers=lambda host: host.name)
    return Publication(state.life, sequence, hosts, seen.departing), change


def _follow(state: DaemonState, seen: Observation) -> tuple[PublicationDecision, str]:
    if state.last is not None and _same(seen, state.seen):
        return PublicationDecision(state, problem=seen.doubt, followed=True), _size(state.last.hosts)
    publication, change = publication_of(state, seen)
    hosts = publication.hosts
    if publication.has_same_content(state.last):
        return PublicationDecision(replace(state, seen=seen), problem=seen.doubt, followed=True), _size(hosts)
    reason = "; ".join(filter(None, [_size(hosts), _describe(change), _leaving(publication, state.last)]))
    after = replace(state, seniority=hosts, last=publication, seen=seen)
    return PublicationDecision(after, news=True, problem=seen.doubt, followed=True), reason


def _same(seen: Observation, before: Observation | None) -> bool:
    """A quick test: a source without changes may return the same objects again."""
    return before is not None and seen.hosts is before.hosts and seen.departing == before.departing


def _size(hosts: HostSet) -> str:
    return f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}, {hosts.slots} slot{'' if hosts.slots == 1 else 's'}"


def _describe(change: HostChange) -> str:
    parts = [("added", change.added), ("removed", change.removed), ("grown", change.grown), ("shrunk", change.shrunk)]
    return ", ".join(f"{verb} {_names(names)}" for verb, names in parts if names)


def _leaving(publication: Publication, before: Publication | None) -> str:
    known = {} if before is None else {each.host: each for each in before.departing}
    # Most are the same objects as before.
    news = [each for each in publication.departing if (old := known.get(each.host)) is not each and old != each]
    return ", ".join(f"{each.host} departing ({each.reason})" for each in news)


def _names(names: tuple[str, ...]) -> str:
    shown = " ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


# --- the places


FIRST_PAUSE = 1.0
"""Seconds before a failed publication is repeated. Each further failure doubles them."""

LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class _PublisherState:
    publisher: Publisher
    failures: int = 0
    not_before: float = 0.0
    problem: str = ""


class Publishers:
    """All places. A place that fails delays no other, and is tried again after growing pauses."""

    def __init__(self, publishers: Iterable[Publisher], metrics: Metrics) -> None:
        self._outlets = [_PublisherState(publisher) for publisher in publishers]
        self._metrics = metrics

    def bring_to(self, publication: Publication, *, now: float) -> str:
        """Publish to every place whose pause is over; return why some do not have the publication, or "".

        ``now`` is in monotonic seconds.

        Raises :class:`discover.publish.files.OwnedByOther` if another process owns a place.
        """
        for outlet in self._outlets:
            if now >= outlet.not_before:
                self._try(outlet, publication, now)
        return "; ".join(outlet.problem for outlet in self._outlets if outlet.problem)

    def close(self) -> None:
        """Release all places, one after another. May be called again."""
        for outlet in self._outlets:
            outlet.publisher.close()

    def _try(self, outlet: _PublisherState, publication: Publication, now: float) -> None:
        try:
            outlet.publisher.publish(publication)
        except PublishFailed as error:
            outlet.failures += 1
            outlet.not_before = now + pause_after(outlet.failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
            outlet.problem = f"{error}; trying again"
            self._metrics.failures.inc()
        else:
            outlet.failures, outlet.not_before, outlet.problem = 0, 0.0, ""


# --- the loop


TICK = 1.0
"""Seconds between turns without events. Such a turn repeats failed publications and restores changed files."""

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after SIGINT."""


class Note(Enum):
    """CHANGED: the source may have something new. TICK: :data:`TICK` seconds have passed without an event."""

    CHANGED = 1
    TICK = 2


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A signal or a part of the daemon asks the loop to end."""

    why: str
    """For the log."""
    exit_code: int


Event = Note | StopRequested


class EventQueue:
    """Events for the loop, from any thread and from signal handlers (its queue is re-entrant).

    Several changes before the next look are one event, because a look reads the whole state of the source.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waiting = False
        self._attended = False

    def attend(self) -> None:
        """Turn signals into events from now on. Call this just before the loop begins."""
        self._attended = True

    def changed(self) -> None:
        """Ask for a look at the source. Several calls before the loop takes the event are one event."""
        if not self._waiting:
            self._waiting = True
            self._queue.put(Note.CHANGED)

    def signalled(self, signal_number: int, _frame: object) -> None:
        """Handle a signal: SIGHUP asks for a look at the source, any other ends the daemon.

        Raises ``SystemExit`` before :meth:`attend`: the set-up may wait, for example for a program that gets
        credentials.
        """
        if signal_number == signal.SIGHUP:
            self.changed()
            return
        exit_code = 0 if signal_number == signal.SIGTERM else 128 + signal_number
        if not self._attended:
            raise SystemExit(exit_code)
        self.end(signal.Signals(signal_number).name, exit_code)

    def end(self, why: str, exit_code: int) -> None:
        """Ask the loop to end with ``exit_code``; ``why`` is for the log."""
        self._queue.put(StopRequested(why, exit_code))

    def next(self, timeout: float) -> Event:
        """Return the next event, or :attr:`Note.TICK` after ``timeout`` seconds without one."""
        try:
            event = self._queue.get(timeout=timeout)
        except queue.Empty:
            return Note.TICK
        if event is Note.CHANGED:
            self._waiting = False  # before the look: a change during the look leads to another look
        return event


class ReasonLog:
    """Logs the reason of a problem when it changes. Reasons that come back in turn are logged at the pace of waits."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._lines: dict[str, Lines] = {}

    def say(self, topic: str, reason: str, *, level: int, now: float) -> None:
        """Log ``reason`` at ``level`` if it is not the last one of ``topic``; "" means that the problem is over."""
        if self._last.get(topic, "") == reason:
            return
        lines = self._lines.setdefault(topic, Lines(now, first_s=0.0, news_s=0.0))
        if not reason or lines.due(now, reason):
            self._last[topic] = reason
            LOG.log(level if reason else logging.INFO, "%s: %s", topic, reason or "recovered")


class Daemon:
    """Follows one source until it gets a request to stop, even if the source fails."""

    def __init__(
        self,
        source: Source,
        outlets: Publishers,
        *,
        state: DaemonState,
        vitals: Health,
        metrics: Metrics,
        clock: Clock,
        next_event: Callable[[float], Event],
        changed: Callable[[], None],
        leaving: Callable[[], None],
    ) -> None:
        """``leaving`` is called once at the end, before the source is stopped."""
        self._source = source
        self._outlets = outlets
        self._state = state
        self._vitals = vitals
        self._metrics = metrics
        self._clock = clock
        self._next_event = next_event
        self._changed = changed
        self._leaving = leaving
        self._reasons = ReasonLog()
        self._problem = ""
        self._change = ""
        self._published_at = clock.mono()

    def run(self) -> int:
        """Run until a :class:`StopRequested` event; return its exit code.

        Raises :class:`discover.publish.files.OwnedByOther` if another process owns a place to publish to.
        """
        self._source.start(self._changed)
        try:
            return self._loop()
        finally:
            self._leaving()
            self._source.stop()

    def _loop(self) -> int:
        look = due = True
        while True:
            news = look and self._look()
            # Many fast changes of the source that change no host must not cause a check of the published files each.
            if news or due or self._clock.mono() >= self._published_at + TICK:
                self._publish()
            self._reasons.say("source", self._problem, level=logging.WARNING, now=self._clock.mono())
            self._report_change()
            self._vitals.loop_turned()
            event = self._next_event(TICK)
            if isinstance(event, StopRequested):
                level = logging.INFO if event.exit_code in (0, INTERRUPTED) else logging.ERROR
                LOG.log(level, "stopping: %s; the published hosts stay", event.why)
                return event.exit_code
            due = event is Note.TICK
            look = not due or bool(self._problem) or self._state.unsettled_since is not None

    def _look(self) -> bool:
        """Look at the source; return whether there is something new to publish or to report."""
        before = self._problem
        decision, reason = decide(self._clock.mono(), self._state, self._see())
        self._state, self._problem = decision.state, decision.problem
        if decision.problem and not decision.followed:
            self._metrics.refused.inc()
        if decision.news:
            self._change = reason
        return decision.news or decision.problem != before

    def _report_change(self) -> None:
        """Log the last change. Called after the publication, so that the log does not delay it."""
        change, self._change = self._change, ""
        if change and self._state.last is not None:
            self._metrics.published(self._state.last)
            LOG.info("hosts: sequence=%d: %s", self._state.last.sequence, change)

    def _see(self) -> Seen:
        try:
            return self._source.read()
        except ElasticError as error:
            return error
        except Exception as error:
            # A defect of a source must never end the daemon.
            failure = SourceUnavailable("unexpected failure, a defect of hvd-discover", repr(error))
            if not self._problem.startswith(str(failure)):
                LOG.exception("source: unexpected failure")
            return failure

    def _publish(self) -> None:
        self._published_at = self._clock.mono()
        publication = self._state.last
        if publication is None:
            self._vitals.report(published=False, problem=self._problem or "nothing published yet")
            self._metrics.fresh.set(0)
            return
        stuck = self._outlets.bring_to(publication, now=self._clock.mono())
        if not stuck:
            self._metrics.delivered()
        self._reasons.say("publishing", stuck, level=logging.ERROR, now=self._clock.mono())
        problem = "; ".join(filter(None, [self._problem, stuck]))
        self._vitals.report(published=not stuck, problem=problem)
        self._metrics.fresh.set(int(not problem))

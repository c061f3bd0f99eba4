"""Writes one kind of Kubernetes Event, ``HostsExcluded``: pods of the job have run for minutes and are not hosts.

Who waits for such a pod sees it run, and looks at the job with ``kubectl describe``, not at the daemon's log. All else
that happens to hosts is in that log and in the launcher's journal.

A pod is reported once. Pods that come together make one Event, and Events have a least distance, so that a thousand
pods with the same trouble are not a thousand objects.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from discover.metrics import WriteMetrics
from discover.reap.cluster_view import ClusterView
from discover.reap.request_retry import FORBIDDEN_PAUSE, RequestRetry
from discover.threads import PeriodicThread
from discover.verdicts.verdicts import Grade, Verdict
from discover.watch.collection import Sender
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

LOG = logging.getLogger("hvd-discover")

REASON: Final = "HostsExcluded"
"""The Event's reason in Kubernetes. Its type is ``Warning``."""

TURN: Final = 1.0
"""Seconds between two looks."""

LONGEST: Final = 1000
"""Most characters of a message. The API takes 1024."""

COMPONENT: Final = "hvd-discover"


@dataclass(frozen=True, slots=True)
class EventLimits:
    """When pods are reported, and how many by name."""

    long: float = 300.0
    """Seconds for which a pod has to run without being a host."""
    gather: float = 2.0
    """Seconds for which an Event waits for further pods."""
    pause: float = 30.0
    """Least seconds between two Events."""
    names: int = 5
    """How many pods a message names."""


@dataclass(frozen=True, slots=True)
class EventState:
    """State between looks; times in monotonic seconds."""

    idle: Mapping[str, float] = field(default_factory=dict)
    """From when pods have run without being hosts, by UID."""
    told: frozenset[str] = frozenset()
    """The pods of ``idle`` that were reported."""
    at: float = float("-inf")
    """When the last Event was made."""


def decide_event(
    now: float, state: EventState, view: ClusterView, *, limits: EventLimits = EventLimits()
) -> tuple[EventState, str, float | None]:
    """Decide what to report after a look: ``(state, message, when to decide again without a new look)``. Pure.

    The message is empty if there is nothing to report now. The last value is in monotonic seconds, or None.
    """
    running = [each for each in view.verdicts if each.pod.uid not in view.published and _runs(each, view)]
    idle = {each.pod.uid: state.idle.get(each.pod.uid, now) for each in running}
    told = state.told & idle.keys()
    late = [each for each in running if each.pod.uid not in told and now >= idle[each.pod.uid] + limits.long]
    message, at = "", state.at
    if late and now >= _due([idle[each.pod.uid] for each in late], at, limits):
        message, at = _text(late, view, limits), now
        told |= {each.pod.uid for each in late}
    waiting = [since for uid, since in idle.items() if uid not in told]
    return EventState(idle, told, at), message, _due(waiting, at, limits) if waiting else None


def _due(idle: list[float], at: float, limits: EventLimits) -> float:
    return max(min(idle) + limits.long + limits.gather, at + limits.pause)


def _runs(verdict: Verdict, view: ClusterView) -> bool:
    """Whether the pod could be a host: it belongs to the job, has started and is not leaving."""
    at_work = verdict.pod.phase in ("Running", "Unknown") and verdict.grade is not Grade.LEAVING
    return at_work and verdict.pod.deleting is None and view.owns(verdict)


def _text(late: list[Verdict], view: ClusterView, limits: EventLimits) -> str:
    count = len(late)
    pods, hosts = ("pod has", "is not a host") if count == 1 else ("pods have", "are not hosts")
    what = f"{count} {pods} run for {limits.long / 60:.0f} minutes and {hosts}"
    chosen = sorted(late, key=lambda each: each.pod.key.name)[: limits.names]
    named = ", ".join(f"{each.pod.key.name} ({view.reason(each)})" for each in chosen)
    more = f" and {count - limits.names} more" if count > limits.names else ""
    room = LONGEST - len(what) - len(more) - 2
    return f"{what}: {named if len(named) <= room else named[: room - 1] + '…'}{more}"


@dataclass(frozen=True, slots=True)
class EventObject:
    """The object that Events are about."""

    version: str
    """Its ``apiVersion``."""
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Event:
    """One Event that is to be sent. ``name`` makes it unique."""

    name: str
    text: str
    at: float
    """In Unix seconds."""


class EventWriter:
    """Writes Events in a thread of its own. While one cannot be sent, no other is made: it will name all further pods.

    ``view`` returns the latest look, None before the first; a new object for each look. ``about`` returns the object
    that Events are about, None if there is none; it may raise :class:`ApiError`. ``instance``: this machine's
    name. ``draw`` returns a random number from [0, 1).
    """

    def __init__(
        self,
        sender: Sender,
        view: Callable[[], ClusterView | None],
        about: Callable[[], EventObject | None],
        *,
        instance: str,
        metrics: WriteMetrics,
        clock: Clock,
        draw: Callable[[], float],
        limits: EventLimits | None = None,
    ) -> None:
        self._sender = sender
        self._latest_view, self._about, self._instance = view, about, instance
        self._metrics = metrics
        self._clock = clock
        self._limits = limits or EventLimits()
        self._state = EventState()
        self._view: ClusterView | None = None
        self._again_at: float | None = None
        self._unsent: Event | None = None
        self._retry = RequestRetry("Events wait", manifest="rbac.yaml", clock=clock, draw=draw)
        self._thread = PeriodicThread("events", self.turn, clock=clock, interrupt=sender.interrupt, at_end=sender.close)
        self.start, self.begin_stop, self.stop = self._thread.start, self._thread.begin_stop, self._thread.stop

    def turn(self) -> float:
        """Look, and send what is due; return the seconds to the next turn."""
        now, view = self._clock.mono(), self._latest_view()
        due = self._again_at is not None and now >= self._again_at
        if self._unsent is None and view is not None and (view is not self._view or due):
            self._view = view
            self._state, text, self._again_at = decide_event(now, self._state, view, limits=self._limits)
            if text:
                self._unsent = Event(secrets.token_hex(8), text, self._clock.wall())
        if self._unsent is not None and self._retry.due(now):
            self._send(self._unsent)
        return TURN

    def _send(self, event: Event) -> None:
        try:
            about = self._about()
            if about is None:
                why = "neither the job nor the daemon's own pod may be read, so there is no object for them"
                self._retry.wait(FORBIDDEN_PAUSE, why, level=logging.INFO)
                return
            sent = self._accepted(about, event)
        except ApiError as error:
            self._retry.failed(error, forbidden=error.reason is Reason.FORBIDDEN)
        else:
            self._unsent = None
            self._metrics.event(REASON, sent=sent)
            self._retry.clear_problem()

    def _accepted(self, about: EventObject, event: Event) -> bool:
        """Send an Event; return whether the server has taken it. Raises :class:`ApiError` if it may succeed later."""
        body = event_body(about, event, instance=self._instance)
        try:
            self._sender.send("POST", path_of("v1", "events", about.namespace), body)
        except ApiError as error:
            if error.reason is Reason.CONFLICT:  # an earlier request has arrived, and its answer was lost
                return True
            if error.transient or error.reason in (Reason.UNAUTHORIZED, Reason.FORBIDDEN):
                raise
            LOG.warning("an Event was refused: %s", error)
            return False
        self._retry.succeeded()
        return True


def event_body(about: EventObject, event: Event, *, instance: str) -> dict[str, Any]:
    """Return an Event as an API object. Pure."""
    moment = datetime.fromtimestamp(event.at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name[:220]}.{event.name}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "type": "Warning",
        "reason": REASON,
        "message": event.text,
        "source": {"component": COMPONENT, "host": instance},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }

"""Writes Kubernetes Events about the job, which ``kubectl describe`` shows."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from discover.actions.cluster_view import ClusterView
from discover.actions.event_policy import EventLimits, EventState, Message, PodNote, decide_events
from discover.actions.request_retry import FORBIDDEN_PAUSE, RequestRetry
from discover.common.metrics import WriteMetrics
from discover.common.threads import PeriodicThread
from discover.kube.collection import Sender
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

LOG = logging.getLogger("hvd-discover")

TURN: Final = 1.0
"""Seconds between two looks."""

MAX_QUEUED: Final = 16
"""How many Events may wait for the server. If more come, the oldest are dropped."""

COMPONENT: Final = "hvd-discover"


@dataclass(frozen=True, slots=True)
class EventObject:
    """The object that Events are about. ``version`` is its ``apiVersion``."""

    version: str
    kind: str
    namespace: str
    name: str
    uid: str


class EventWriter:
    """Writes Events in a thread of its own. Up to :data:`MAX_QUEUED` Events that cannot be sent wait.

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
        self._reaped: deque[PodNote] = deque()
        self._queue: deque[tuple[str, Message, float]] = deque()
        self._retry = RequestRetry("Events wait", manifest="rbac.yaml", clock=clock, draw=draw)
        self._thread = PeriodicThread("events", self.turn, clock=clock, interrupt=sender.interrupt, at_end=sender.close)
        self.start, self.begin_stop, self.stop = self._thread.start, self._thread.begin_stop, self._thread.stop

    def reaped(self, note: PodNote) -> None:
        """Report that a pod was deleted. May be called from any thread."""
        self._reaped.append(note)

    def turn(self) -> float:
        """Look, and send what is due; return the seconds to the next turn."""
        now, view = self._clock.mono(), self._latest_view()
        due = self._again_at is not None and now >= self._again_at
        if view is not None and (view is not self._view or due or self._reaped):
            if self._view is None:
                self._log_object()
            self._view = view
            reaped = [self._reaped.popleft() for _ in range(len(self._reaped))]
            self._state, messages, self._again_at = decide_events(
                now, self._state, view, reaped=reaped, limits=self._limits
            )
            for message in messages:
                self._queue.append((secrets.token_hex(8), message, self._clock.wall()))
        while len(self._queue) > MAX_QUEUED:
            self._metrics.event(self._queue.popleft()[1].kind.value, sent=False)
        if self._queue and self._retry.due(now):
            self._send()
        return TURN

    def _log_object(self) -> None:
        with suppress(ApiError):
            about = self._about()
            if about is not None:
                LOG.info("Events about the hosts are attached to %s %s/%s", about.kind, about.namespace, about.name)

    def _send(self) -> None:
        try:
            about = self._about()
            if about is None:
                why = "neither the job nor the daemon's own pod may be read, so there is no object for them"
                self._retry.wait(FORBIDDEN_PAUSE, why, level=logging.INFO)
                return
            while self._queue:
                self._send_one(about, *self._queue[0])
                self._queue.popleft()
            self._retry.clear_problem()
        except ApiError as error:
            self._retry.failed(error, forbidden=error.reason is Reason.FORBIDDEN)

    def _send_one(self, about: EventObject, name: str, message: Message, at: float) -> None:
        """Send one Event. Raises :class:`ApiError` if it may succeed later."""
        body = event_body(about, message, name=name, at=at, instance=self._instance)
        try:
            self._sender.send("POST", path_of("v1", "events", about.namespace), body)
        except ApiError as error:
            arrived = error.reason is Reason.CONFLICT  # an earlier request has arrived, and its answer was lost
            if not arrived and _may_succeed_later(error):
                raise
            if not arrived:
                LOG.warning("an Event was refused: %s", error)
            self._metrics.event(message.kind.value, sent=arrived)
        else:
            self._retry.succeeded()
            self._metrics.event(message.kind.value, sent=True)


def _may_succeed_later(error: ApiError) -> bool:
    return error.transient or error.reason in (Reason.UNAUTHORIZED, Reason.FORBIDDEN)


def event_body(about: EventObject, message: Message, *, name: str, at: float, instance: str) -> dict[str, Any]:
    """Return an Event as an API object. ``at`` is in Unix seconds; ``name`` makes the Event's name unique. Pure."""
    moment = datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name[:220]}.{name}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "type": message.kind.type,
        "reason": message.kind.value,
        "message": message.text,
        "source": {"component": COMPONENT, "host": instance},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }

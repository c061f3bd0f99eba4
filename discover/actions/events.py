"""Kubernetes Events about the job: what the daemon has to say reaches who describes the job with kubectl."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, Protocol

from discover.actions.event_policy import EventLimits, EventState, Message, PodNote, decide_events
from discover.actions.picture import ClusterView
from discover.common.background import Aside
from discover.kube.backoff import Backoff
from discover.kube.changes import CONFLICT, NOT_ALLOWED, NOT_YET, Sender, lacks_right, path_of, said
from discover.kube.transport import Failure, RequestFailed
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

TURN: Final = 1.0
"""Seconds from one look to the next."""

MAX_QUEUED: Final = 16
"""Events that wait for the server; when there are more, the oldest are given up."""

NOT_ALLOWED_PAUSE: Final = 60.0
"""Seconds after which a right may have been given, or a quota has room again."""

COMPONENT: Final = "hvd-discover"

KINDS: Final = {
    "mpijobs": "MPIJob",
    "trainingjobs": "TrainingJob",
    "pytorchjobs": "PyTorchJob",
    "statefulsets": "StatefulSet",
}
"""Of the objects above the pods, by their plurals."""


@dataclass(frozen=True, slots=True)
class EventObject:
    """The object that Events are about."""

    version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Counters(Protocol):
    """Who counts."""

    def event(self, reason: str, *, sent: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """``scene``: the latest look, None before the first; another object after each. ``regarding``: what Events are
    about, None if there is nothing; may raise :class:`RequestFailed`. ``instance``: who tells, a machine's name."""

    scene: Callable[[], ClusterView | None]
    regarding: Callable[[], EventObject | None]
    instance: str


class EventWriter:
    """Tells, in a thread of its own, and at its leisure: what cannot be sent is kept for a while, and then given up.

    A server that does not allow it is asked once in a minute.
    """

    def __init__(
        self,
        sender: Sender,
        context: Context,
        *,
        counters: Counters,
        clock: Clock,
        draw: Callable[[], float],
        limits: EventLimits | None = None,
    ) -> None:
        self._sender = sender
        self._context = context
        self._counters = counters
        self._clock = clock
        self._draw = draw
        self._limits = limits or EventLimits()
        self._told = EventState()
        self._scene: ClusterView | None = None
        self._again_at: float | None = None
        self._reaped: deque[PodNote] = deque()
        self._queue: deque[tuple[str, Message, float]] = deque()
        self._backoff = Backoff()
        self._not_before = 0.0
        self._trouble = ""
        self._allowed = False
        self._aside = Aside("events", self.turn, clock=clock, interrupt=sender.interrupt, farewell=sender.close)

    def start(self) -> None:
        self._aside.start()

    def hurry(self) -> None:
        self._aside.hurry()

    def stop(self) -> None:
        self._aside.stop()

    def reaped(self, item: PodNote) -> None:
        """A pod was deleted; from any thread."""
        self._reaped.append(item)

    def turn(self) -> float:
        """Look, and tell what there is to be told; return after how many seconds to look again."""
        now, scene = self._clock.mono(), self._context.scene()
        due = self._again_at is not None and now >= self._again_at
        if scene is not None and (scene is not self._scene or due or self._reaped):
            if self._scene is None:
                self._say_where()
            self._scene = scene
            reaped = [self._reaped.popleft() for _ in range(len(self._reaped))]
            self._told, messages, self._again_at = decide_events(
                now, self._told, scene, reaped=reaped, limits=self._limits
            )
            for message in messages:
                self._queue.append((secrets.token_hex(8), message, self._clock.wall()))
        while len(self._queue) > MAX_QUEUED:
            self._counters.event(self._queue.popleft()[1].kind.value, sent=False)
        if self._queue and now >= self._not_before:
            self._send(now)
        return TURN

    def _say_where(self) -> None:
        """From now on there is news."""
        with suppress(RequestFailed):
            about = self._context.regarding()
            if about is not None:
                LOG.info("Events about the hosts stand with %s %s/%s", about.kind, about.namespace, about.name)

    def _send(self, now: float) -> None:
        try:
            about = self._context.regarding()
            if about is None:
                line = "Events wait: there is neither a job that may be read nor a pod of this daemon's for them"
                self._wait(NOT_ALLOWED_PAUSE, line, line, level=logging.INFO)
                return
            while self._queue:
                self._send_one(about, *self._queue[0])
                self._queue.popleft()
            self._trouble = ""
        except RequestFailed as error:
            self._failed(now, error)

    def _failed(self, now: float, error: RequestFailed) -> None:
        if self._allowed and lacks_right(error):
            self._allowed, self._not_before = False, now + NOT_YET
            return
        if said(error, NOT_ALLOWED):
            remedy = "; docker/manifests/rbac.yaml gives the right" if lacks_right(error) else ""
            line = f"Events wait: {error}{remedy}"
            self._wait(NOT_ALLOWED_PAUSE, remedy or "not allowed", line, level=logging.WARNING)
            return
        self._backoff, pause = self._backoff.failed(now, self._draw())
        pause = max(pause, min(error.retry_after or 0.0, 30.0))
        self._wait(pause, str(error), f"Events wait: {error}", level=logging.WARNING)

    def _wait(self, pause: float, trouble: str, line: str, *, level: int) -> None:
        """The same ``trouble`` is told once, until something was sent."""
        self._not_before = self._clock.mono() + pause
        if self._trouble != trouble:
            self._trouble = trouble
            LOG.log(level, "%s", line)

    def _send_one(self, about: EventObject, name: str, message: Message, at: float) -> None:
        """Raises :class:`RequestFailed` if it may be sent later."""
        body = body_of(about, message, name=name, at=at, instance=self._context.instance)
        try:
            self._sender.send("POST", path_of("v1", about.namespace, "events"), body)
        except RequestFailed as error:
            arrived = said(error, CONFLICT)  # the first time, whose answer did not come
            if not arrived and _for_now(error):
                raise
            if not arrived:
                LOG.warning("an Event was refused: %s", error)
            self._counters.event(message.kind.value, sent=arrived)
        else:
            self._allowed = True
            self._counters.event(message.kind.value, sent=True)


def _for_now(error: RequestFailed) -> bool:
    """Whether the same may succeed later, or tells us not to go on."""
    return error.failure is not Failure.ANSWERED or error.code in (401, NOT_ALLOWED, 429) or error.code >= 500


def body_of(about: EventObject, message: Message, *, name: str, at: float, instance: str) -> dict[str, Any]:
    """Write an Event; ``at`` is in Unix seconds, ``name`` makes its own name unique. Pure."""
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

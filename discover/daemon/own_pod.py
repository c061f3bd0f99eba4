"""Finds out whether the daemon runs as an init container that is not a sidecar, so that its pod waits for its end.

This happens to a native sidecar if the cluster, or the operator that makes the pod, does not know the field
``restartPolicy`` of init containers and drops it. Then the launcher never starts, and no message gives the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from discover.threads import PeriodicThread
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError

LOG = logging.getLogger("hvd-discover")


PAUSE: Final = 2.0
"""Seconds between two checks. A pod's status is up to two seconds late."""


CHECKS: Final = 30


CONFIRMATIONS: Final = 6
"""How many checks in a row must find it, because a pod's status may still show an ended container as running."""


class Placement(Enum):
    """UNKNOWN: the pod's status does not show it yet. RIGHT: the pod does not wait for the daemon, or has sidecars.
    BLOCKING: the pod waits for the daemon to end.
    """

    UNKNOWN = 1
    RIGHT = 2
    BLOCKING = 3


def placement_of(pod: Mapping[str, Any]) -> tuple[Placement, str]:
    """Return the daemon's placement in its own ``pod`` (an API object), and the name of the container that the pod
    waits for.

    The daemon does not know in which container it runs. But in a pod without sidecars, no other container runs while
    an init container runs.
    """
    inits = [each for each in _list(pod, "spec", "initContainers") if isinstance(each, Mapping)]
    if not inits or any(each.get("restartPolicy") == "Always" for each in inits):
        return Placement.RIGHT, ""
    for status in _list(pod, "status", "initContainerStatuses"):
        if isinstance(status, Mapping) and isinstance(state := status.get("state"), Mapping) and "running" in state:
            return Placement.BLOCKING, str(status.get("name", ""))
    conditions = [each for each in _list(pod, "status", "conditions") if isinstance(each, Mapping)]
    done = any(each.get("type") == "Initialized" and each.get("status") == "True" for each in conditions)
    return (Placement.RIGHT if done else Placement.UNKNOWN), ""


class InitContainerCheck:
    """Reads the daemon's own pod until its placement is clear, and calls ``end`` if it blocks the pod.

    ``read`` returns the pod, and may raise :class:`ApiError`. If the daemon may not read it, there is no check.
    ``where``: how messages name the pod.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], where: str, *, end: Callable[[str, int], None], clock: Clock
    ) -> None:
        self._read = read
        self._where = where
        self._end = end
        self._left = CHECKS
        self._found = 0
        self._thread = PeriodicThread("init-container", self._turn, clock=clock, finish_timeout=0.2, grace=0.0)
        self.start, self.begin_stop, self.stop = self._thread.start, self._thread.begin_stop, self._thread.stop

    def _turn(self) -> float | None:
        self._left -= 1
        if self._settled() or not self._left:
            self._thread.begin_stop()
        return PAUSE

    def _settled(self) -> bool:
        try:
            place, name = placement_of(self._read())
        except ApiError as error:
            LOG.debug("%s: %s", self._where, error)
            return not error.transient
        self._found = self._found + 1 if place is Placement.BLOCKING else 0
        if self._found == CONFIRMATIONS and not self._thread.stopping:
            self._end(
                f"{self._where}: all other containers wait for init container {name}, which is this one, to end; "
                "this cluster or operator does not keep restartPolicy: Always of init containers: "
                "make it an ordinary container, with --exit-with-container",
                2,
            )
        return place is Placement.RIGHT or self._found == CONFIRMATIONS


def _list(body: Mapping[str, Any], *path: str) -> list[Any]:
    found: Any = body
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, list) else []

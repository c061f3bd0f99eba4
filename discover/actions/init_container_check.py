"""Whether the daemon stands where its pod waits for it to end: as an init container that is no sidecar.

That is what becomes of a native sidecar where the cluster, or the operator that makes the pod, does not know
``restartPolicy`` of init containers and drops it: the launcher never starts, and nothing says why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from discover.common.grace import Leave
from discover.kube.transport import Failure, RequestFailed
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

PAUSE: Final = 2.0
"""Seconds between two looks: a pod's status is told a second or two after it is so."""

CHECKS: Final = 30

CONFIRMATIONS: Final = 6
"""Looks in a row that have to find the same. An init container that has ended may be told to run for a moment still,
while the containers that waited for it start."""


class Placement(Enum):
    """UNKNOWN: not told yet. RIGHT: the pod waits for nobody, or has sidecars. IN_THE_WAY: it waits for us."""

    UNKNOWN = 1
    RIGHT = 2
    BLOCKING = 3


def placement_of(pod: Mapping[str, Any]) -> tuple[Placement, str]:
    """Say where the daemon stands in its own ``pod`` (an API object), and the container that everybody waits for.

    It cannot know which container it is. But if an init container runs that is no sidecar, and there are no sidecars,
    no other container of the pod can be running: so that is the one.
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
    """Looks at the daemon's own pod until it is clear where it stands, and calls ``end`` if that is in the way.

    ``read`` returns the pod, and may raise :class:`RequestFailed`: who may not look goes without.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], where: str, *, end: Callable[[str, int], None], clock: Clock
    ) -> None:
        self._read = read
        self._where = where
        self._end = end
        self._clock = clock
        self._found = 0
        self._stop = threading.Event()
        self._leave = Leave(0.2)
        self._thread = threading.Thread(target=self._run, name="own-place", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Begin to stop, and do not wait for it."""
        self._leave.begin()
        self._stop.set()

    def stop(self) -> None:
        """May be repeated, and come before :meth:`start`."""
        self.hurry()
        if self._thread.is_alive():
            self._thread.join(self._leave.left)

    def _run(self) -> None:
        for _ in range(CHECKS):
            if self._settled() or self._clock.wait(self._stop, PAUSE):
                return

    def _settled(self) -> bool:
        try:
            place, name = placement_of(self._read())
        except RequestFailed as error:
            LOG.debug("%s: %s", self._where, error)
            return error.failure is Failure.ANSWERED and 400 <= error.code < 500 and error.code != 429
        self._found = self._found + 1 if place is Placement.BLOCKING else 0
        if self._found == CONFIRMATIONS and not self._stop.is_set():
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

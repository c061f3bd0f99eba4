"""The daemon's own pod: when it ends the daemon, and whether it waits for the daemon by mistake.

As an ordinary container, the daemon ends when another container of its pod ends (``--exit-with-container``). Otherwise
the pod would never complete, and so neither would the job.

As an init container it is meant to be a native sidecar. If the cluster, or the operator that makes the pod, does not
know the field ``restartPolicy`` of init containers and drops it, the pod waits for the daemon's end: the launcher never
starts, and no message gives the reason. So the daemon finds that out, and says it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from discover.metrics import ClusterMetrics
from discover.pods.views import PodView, pod_view
from discover.threads import PeriodicThread
from discover.watch.collection import Collection
from discover.watch.reflector import Reflector, Resource
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError

LOG = logging.getLogger("hvd-discover")

OWN_POD: Final[Resource[PodView]] = Resource("own-pod", pod_view)

End = Callable[[str, int], None]
"""Called with the reason why the daemon ends, and with its exit code."""


def ending(pod: PodView, container: str) -> tuple[str, int] | None:
    """Return why the daemon ends, and its exit code; None while it continues.

    The exit code does not depend on that of the container.
    """
    found = next((each for each in pod.containers if each.name == container), None)
    if found is None:
        names = ", ".join(each.name for each in pod.containers)
        return f"--exit-with-container {container}: there is no such container in pod {pod.key}; it has {names}", 2
    if found.finished is None:
        return None
    return f"container {container} has ended with exit code {found.finished}", 0


class ContainerWatch:
    """Watches the daemon's own pod, the only object of ``collection``. When ``container`` ends, or is not in the pod,
    it calls ``end`` once.
    """

    def __init__(
        self,
        collection: Collection,
        container: str,
        *,
        end: End,
        clock: Clock,
        draw: Callable[[], float],
        metrics: ClusterMetrics,
    ) -> None:
        self._where = collection.where
        self._container = container
        self._end = end
        self._ended = False
        self._reflector = Reflector(collection, OWN_POD, self._look, clock=clock, draw=draw, metrics=metrics)
        self.start, self.begin_stop = self._reflector.start, self._reflector.begin_stop
        self.stop = self._reflector.stop

    def _look(self, news: bool) -> None:
        known, _ = self._reflector.known()
        if news and not known:
            LOG.warning("%s: not found, so the end of container %s will not be noticed; "
                        "give its name with --own-pod", self._where, self._container)  # fmt: skip
        for pod in known.values():
            why = ending(pod, self._container)
            if why is not None and not self._ended:
                self._ended = True
                self._end(*why)


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

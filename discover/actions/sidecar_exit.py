"""``--exit-with-container``: as an ordinary container, the daemon ends when another container of its pod ends.

Otherwise the pod would never complete, and so neither would the job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from discover.metrics import ClusterMetrics
from discover.pods.views import pod_view
from discover.selection.objects import PodView
from discover.watch.collection import Collection
from discover.watch.reflector import Reflector, Resource
from hvd_elastic_ext.core.clock import Clock

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

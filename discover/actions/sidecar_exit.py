"""The daemon as an ordinary container beside another one of its pod, for clusters that know no sidecars: it ends when
the other has ended, or the pod (and the job with it) would go on for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from discover.kube.reflector import Reflector, Resource, Witness
from discover.kube.transport import Collection
from discover.kube.views import pod_view
from discover.selection.objects import ClusterEvent, PodGone, PodSeen, PodsListed, PodView
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

OWN_POD: Final[Resource[PodView]] = Resource("own-pod", pod_view, PodsListed, PodSeen, PodGone)

End = Callable[[str, int], None]
"""Told why the daemon is to end, and with which exit code."""


def ending(pod: PodView, container: str) -> tuple[str, int] | None:
    """Why the daemon ends, and its exit code; None while it goes on. It does not matter how the other one ended."""
    found = next((each for each in pod.containers if each.name == container), None)
    if found is None:
        names = ", ".join(each.name for each in pod.containers)
        return f"--exit-with-container {container}: there is no such container in pod {pod.key}; it has {names}", 2
    if found.finished is None:
        return None
    return f"container {container} has ended with exit code {found.finished}", 0


class ContainerWatch:
    """Watches the daemon's own pod, which is all that ``collection`` holds, and calls ``end`` once."""

    def __init__(
        self,
        collection: Collection,
        container: str,
        *,
        end: End,
        clock: Clock,
        draw: Callable[[], float],
        witness: Witness,
    ) -> None:
        self._where = collection.where
        self._container = container
        self._end = end
        self._ended = False
        self._reflector = Reflector(collection, OWN_POD, self._take, clock=clock, draw=draw, witness=witness)

    def start(self) -> None:
        self._reflector.start()

    def hurry(self) -> None:
        """Begin to stop, and do not wait for it."""
        self._reflector.hurry()

    def stop(self) -> None:
        """May be repeated, and come before :meth:`start`."""
        self._reflector.stop()

    def _take(self, events: tuple[ClusterEvent, ...]) -> None:
        for event in events:
            match event:
                case PodsListed(()):
                    LOG.warning("%s: not found, so the end of container %s will not be noticed; "
                                "give its name with --own-pod", self._where, self._container)  # fmt: skip
                case PodsListed((pod,)) | PodSeen(pod):
                    self._consider(pod)

    def _consider(self, pod: PodView) -> None:
        told = ending(pod, self._container)
        if told is not None and not self._ended:
            self._ended = True
            self._end(*told)

"""A source that shows nothing before it is known what an earlier run of the daemon published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from discover.common.source import Observation, Unsettled
from discover.publishing.configmap import BackgroundConfigMap
from discover.selection.explain import FollowsPods


class ResumedSource:
    """Shows ``source`` once ``configmap`` knows what was published before. Until then a host that is silent or under an
    advisory would count as new, and be removed from what is published."""

    def __init__(self, source: FollowsPods, configmap: BackgroundConfigMap) -> None:
        self._source = source
        self._configmap = configmap
        self._resumed = False
        self._shown = False

    def start(self, changed: Callable[[], None]) -> None:
        self._source.start(changed)
        self._configmap.recall(changed)

    def read(self) -> Observation | Unsettled:
        earlier = self._configmap.earlier
        if earlier is None:
            why = "what was published before is not known yet"
            return Unsettled(self._configmap.where, ": ".join(filter(None, (why, self._configmap.problem))))
        if not self._resumed:
            self._resumed = True
            self._source.resume(earlier)
        seen = self._source.read()
        if self._shown or isinstance(seen, Unsettled):
            return seen
        self._shown = True
        return replace(seen, earlier=earlier)

    def stop(self) -> None:
        self._source.stop()

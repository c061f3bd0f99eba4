"""A source that shows nothing before it is known what an earlier life of the daemon published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from discover.common.source import Observation, Unsettled
from discover.selection.explain import FollowsPods
from hvd_elastic_ext.core.hosts import HostSet


class Memory(Protocol):
    """What has to be asked for beside the loop; :class:`discover.publishing.configmap.Delegate` is one."""

    @property
    def where(self) -> str:
        """For people."""

    @property
    def problem(self) -> str:
        """Why it is not known, for people; "" if it is, or nothing has gone wrong yet."""

    @property
    def stood(self) -> HostSet | None:
        """What an earlier life published, in its order; None while that is not known."""

    def recall(self, told: Callable[[], None]) -> None:
        """Find it out, however long it takes, and call ``told`` then, from any thread."""


class ResumedSource:
    """Shows what ``source`` does once ``memory`` knows what was published before. Until then a host that is silent or
    under an advisory would be taken for a newcomer, and what is published would shrink."""

    def __init__(self, source: FollowsPods, memory: Memory) -> None:
        self._source = source
        self._memory = memory
        self._resumed = False
        self._shown = False

    def start(self, changed: Callable[[], None]) -> None:
        self._source.start(changed)
        self._memory.recall(changed)

    def read(self) -> Observation | Unsettled:
        stood = self._memory.stood
        if stood is None:
            why = "what was published before is not known yet"
            return Unsettled(self._memory.where, ": ".join(filter(None, (why, self._memory.problem))))
        if not self._resumed:
            self._resumed = True
            self._source.resume(stood)
        seen = self._source.read()
        if self._shown or isinstance(seen, Unsettled):
            return seen
        self._shown = True
        return replace(seen, earlier=stood)

    def stop(self) -> None:
        self._source.stop()

"""Publishes to several places. A place that fails delays no other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from discover.metrics import Metrics
from discover.publish.files import Publisher, PublishFailed
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.publication import Publication

FIRST_PAUSE = 1.0
"""Seconds before a failed publication is repeated. Each further failure doubles them."""

LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class _PublisherState:
    publisher: Publisher
    failures: int = 0
    not_before: float = 0.0
    problem: str = ""


class Publishers:
    """All places. A place that fails delays no other, and is tried again after growing pauses."""

    def __init__(self, publishers: Iterable[Publisher], metrics: Metrics) -> None:
        self._outlets = [_PublisherState(publisher) for publisher in publishers]
        self._metrics = metrics

    def bring_to(self, publication: Publication, *, now: float) -> str:
        """Publish to every place whose pause is over; return why some do not have the publication, or "".

        ``now`` is in monotonic seconds.

        Raises :class:`discover.publishing.file_lock.OwnedByOther` if another process owns a place.
        """
        for outlet in self._outlets:
            if now >= outlet.not_before:
                self._try(outlet, publication, now)
        return "; ".join(outlet.problem for outlet in self._outlets if outlet.problem)

    def close(self) -> None:
        """Release all places, one after another. May be called again."""
        for outlet in self._outlets:
            outlet.publisher.close()

    def _try(self, outlet: _PublisherState, publication: Publication, now: float) -> None:
        try:
            outlet.publisher.publish(publication)
        except PublishFailed as error:
            outlet.failures += 1
            outlet.not_before = now + pause_after(outlet.failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
            outlet.problem = f"{error}; trying again"
            self._metrics.failures.inc()
        else:
            outlet.failures, outlet.not_before, outlet.problem = 0, 0.0, ""

"""Several publishers brought to one publication, each in its own time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from discover.common.metrics import Metrics
from discover.publishing.files import Publisher, PublishFailed
from hvd_elastic_ext.core.publication import Publication

FIRST_PAUSE = 1.0
"""Seconds before a failed publication is tried again; doubled with each further failure."""

LONGEST_PAUSE = 30.0


def pause_after(failures: int) -> float:
    """Seconds to wait after that many failures in a row (at least one)."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))


@runtime_checkable
class Delegating(Publisher, Protocol):
    """A publisher that hands its work to others: it takes each publication at once, and never fails."""

    @property
    def problem(self) -> str:
        """Why what it took is not out, for people; "" if it is, or may be in a moment."""


@dataclass(slots=True)
class _PublisherState:
    publisher: Publisher
    failures: int = 0
    not_before: float = 0.0
    problem: str = ""


class Publishers:
    """All ways out. One that fails holds up no other, and is tried again with growing pauses."""

    def __init__(self, publishers: Iterable[Publisher], metrics: Metrics) -> None:
        self._outlets = [_PublisherState(publisher) for publisher in publishers]
        self._metrics = metrics

    def bring_to(self, publication: Publication, *, now: float) -> str:
        """Publish what is not there yet; return what still is in the way, or ''.

        Raises :class:`discover.publishing.file_lock.Taken` if another process owns a place.
        """
        for outlet in self._outlets:
            if now >= outlet.not_before:
                self._try(outlet, publication, now)
        return "; ".join(outlet.problem for outlet in self._outlets if outlet.problem)

    def close(self) -> None:
        for outlet in self._outlets:
            outlet.publisher.close()

    def _try(self, outlet: _PublisherState, publication: Publication, now: float) -> None:
        try:
            outlet.publisher.publish(publication)
        except PublishFailed as error:
            outlet.failures += 1
            outlet.not_before = now + pause_after(outlet.failures)
            outlet.problem = str(error)
            self._metrics.failed()
        else:
            outlet.failures, outlet.not_before, outlet.problem = 0, 0.0, ""
            if isinstance(outlet.publisher, Delegating):
                outlet.problem = outlet.publisher.problem

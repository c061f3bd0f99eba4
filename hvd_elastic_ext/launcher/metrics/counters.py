"""Counts what has happened since the launcher began, from the events of the journal."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from hvd_elastic_ext.core.events import EVENTS, RESIZES
from hvd_elastic_ext.core.goodput import Accounting
from hvd_elastic_ext.launcher.exports.prometheus import JobMetric, Samples
from hvd_elastic_ext.launcher.health.causes import Cause

_CAUSES: Final = tuple(map(str, Cause))


def _causes(event: str) -> tuple[str, ...]:
    """The causes that an event may have."""
    return tuple(RESIZES) if event == "resized" else _CAUSES


class Counters:
    """Counts events, from any thread. ``wall`` gives the time in Unix seconds, ``mono`` the monotonic one."""

    def __init__(self, wall: Callable[[], float], mono: Callable[[], float]) -> None:
        self._wall, self._mono = wall, mono
        self._lock = threading.Lock()
        self._goodput = Accounting()
        self._redone_s = defaultdict[str, float](float)
        """Seconds of steps that are done again, by the cause of the world that does them."""
        self._commits = 0
        self._commit: int | None = None
        """The number of the newest commit."""
        # From 0, for every cause: Prometheus sees no increase in a series that begins with more.
        self._counts = {
            count.name: Counter({(cause,): 0 for cause in _causes(kind.name)} if count.by_cause else {(): 0})
            for kind in EVENTS.values()
            for count in kind.counts
        }
        self._sealed: tuple[float, float] | None = None
        self._names: tuple[str, ...] = ()

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of the journal."""
        with self._lock:
            for count in EVENTS[event].counts:
                key = (str(fields.get("cause")),) if count.by_cause else ()
                amount = 1 if count.field is None else fields.get(count.field)
                self._counts[count.name][key] += amount or 0
            self._goodput.note(event, fields, self._mono())
            if event == "resized":
                lost = fields.get("steps_lost")
                self._redone_s[str(fields.get("cause"))] += (lost or 0) * self._goodput.step_s()
            if event == "committed":
                self._committed(fields.get("number"))
            elif event == "sealed":
                self._sealed = self._wall(), float(fields["step"])
            elif event == "started":
                self._names = tuple(str(fields[name]) for name in ("job", "run", "version"))

    def _committed(self, number: int | None) -> None:
        """A commit was sealed. Not every commit is reported, but all are numbered. A world may continue from an older
        commit.
        """
        if number is not None:
            self._commits += max(1, number - self._commit) if self._commit is not None else 1
            self._commit = number

    def metrics(self) -> list[JobMetric]:
        """The counters."""
        with self._lock:
            return list(self._metrics())

    def _metrics(self) -> Iterator[JobMetric]:
        if self._names:
            words = "The job, its run, and the version of the launcher"
            yield JobMetric("job_info", words, {self._names: 1}, ("name", "run", "version"))
        for count in (count for kind in EVENTS.values() for count in kind.counts):
            labels = ("cause",) if count.by_cause else ()
            yield JobMetric(count.name, count.help, dict(self._counts[count.name]), labels, counter=True)
        yield JobMetric("commits", "Commits made in memory", {(): self._commits}, counter=True)
        again: Samples = {(cause,): self._redone_s[cause] for cause in RESIZES}
        words = "Time of the steps that were lost with a world, by the cause of the next"
        yield JobMetric("redone_seconds", words, again, ("cause",), counter=True)
        good = self._goodput.goodput(self._mono())
        if good.ratio is not None:
            words = (
                "Useful steps over what the listed hosts could have done since this launcher listed the first of them"
            )
            yield JobMetric("goodput_ratio", words, {(): good.ratio})
            words = "Slot-seconds of the steps that are not done again"
            yield JobMetric("useful_slot_seconds", words, {(): good.useful_s})
            words = "Slot-seconds that the listed hosts had since this launcher listed the first of them"
            yield JobMetric("possible_slot_seconds", words, {(): good.possible_s})
        if self._sealed is not None:
            when, step = self._sealed
            yield JobMetric("checkpoint_timestamp_seconds", "When the newest checkpoint was completed", {(): when})
            yield JobMetric("checkpoint_step", "Step of the newest checkpoint", {(): step})

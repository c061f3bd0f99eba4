"""Journal lines of a training process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.io.append_file import AppendFile
from hvd_elastic_ext.worker.process.link import Link
from hvd_elastic_ext.worker.state.settings import WorkerSettings

LONGEST_TEXT = 200
"""Longer strings of the State are left out of the journal."""


class Recorder(Protocol):
    """Where lines go: a journal, or the link to the agent."""

    def record(self, event: str, /, *, generation: int, **fields: Any) -> None: ...


class OverLink:
    """Has the launcher write the lines: it knows the generation, and there need be no shared file."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def record(self, event: str, /, *, generation: int, **fields: Any) -> None:
        self._link.say("record", event=event, fields=fields)


class Reporter:
    """Writes what happens to the State, each kind of frequent event at most once in ``sample`` seconds.

    Without a journal it does nothing, and no failure of a journal reaches training.
    """

    def __init__(self, journal: Recorder | None, clock: Clock, *, sample: float, host: str) -> None:
        self._journal = journal
        self._clock = clock
        self._sample = sample
        self._host = host
        self._last: dict[str, float] = {}

    @property
    def active(self) -> bool:
        """True if there is a journal."""
        return self._journal is not None

    def due(self, event: str) -> bool:
        """True if a frequent ``event`` may be written now; whoever asks then writes."""
        if self._journal is None:
            return False
        now = self._clock.mono()
        if now - self._last.get(event, -math.inf) < self._sample:
            return False
        self._last[event] = now
        return True

    def record(self, event: str, **fields: Any) -> None:
        """Append one event. The generation is 0 in a file: Horovod's own driver does not tell it to workers."""
        if self._journal is not None:
            self._journal.record(event, generation=0, host=self._host, **fields)


def reporter_for(settings: WorkerSettings, clock: Clock, link: Link) -> Reporter:
    """Report over the link; without one to the journal the launcher made, if it is on this machine, else nowhere."""
    journal: Recorder | None = OverLink(link) if link.connected else None
    if journal is None and settings.journal is not None:
        try:
            journal = Journal(AppendFile(settings.journal, create=False), clock)
        except OSError:
            journal = None
    return Reporter(journal, clock, sample=settings.sample, host=settings.host)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the values that a journal line can hold: numbers, switches and short strings."""
    return {name: _plain(value) for name, value in values.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    return isinstance(value, bool | int | float)


def _plain(value: Any) -> Any:
    # JSON has no word for these, and a diverged loss is worth reading about.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

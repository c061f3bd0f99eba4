"""Journal lines of a training process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.io.append_file import AppendFile
from hvd_elastic_ext.worker.process.link import Link

if TYPE_CHECKING:
    from hvd_elastic_ext.worker.state.keeper import WorkerSettings

LONGEST_TEXT = 200
"""Longer strings of the State are left out of the journal."""


Record = Callable[..., None]
"""A function that appends one line: the event, and its fields by name."""


class Reporter:
    """Writes the events of a State to the journal: each kind of frequent event at most once in ``sample`` seconds.

    Without a journal it does nothing. A failure of the journal never reaches training.
    """

    def __init__(self, record: Record | None, clock: Clock, *, sample: float, host: str) -> None:
        self._append = record
        self._clock = clock
        self._sample = sample
        self._host = host
        self._last: dict[str, float] = {}

    @property
    def active(self) -> bool:
        """Whether there is a journal."""
        return self._append is not None

    def due(self, event: str) -> bool:
        """Return whether a frequent ``event`` may be written now; if so, the caller must write it."""
        if self._append is None:
            return False
        now = self._clock.mono()
        if now - self._last.get(event, -math.inf) < self._sample:
            return False
        self._last[event] = now
        return True

    def record(self, event: str, **fields: Any) -> None:
        """Append one event."""
        if self._append is not None:
            self._append(event, host=self._host, **fields)


def reporter_for(settings: WorkerSettings, clock: Clock, link: Link) -> Reporter:
    """Return a reporter over the link. Without a link, it writes to the launcher's journal if that is on this machine,
    else nowhere."""

    def over_link(event: str, **fields: Any) -> None:
        """Let the launcher write the line: it knows the generation, and this needs no shared file."""
        link.send("record", event=event, fields=fields)

    record: Record | None = over_link if link.connected else None
    if record is None and settings.journal is not None:
        with contextlib.suppress(OSError):
            # Generation 0: Horovod's own driver does not send the generation to workers.
            record = partial(Journal(AppendFile.existing(settings.journal), clock).record, generation=0)
    return Reporter(record, clock, sample=settings.sample, host=settings.host)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a journal line can contain: numbers, booleans and short strings."""
    return {
        name: _plain(value)
        for name, value in values.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= LONGEST_TEXT)
    }


def _plain(value: Any) -> Any:
    # JSON has no NaN and no infinity; a diverged loss should be in the journal.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

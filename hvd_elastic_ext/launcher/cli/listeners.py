"""The receivers of a job's journal events, by its settings and environment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.journal import Sink
from hvd_elastic_ext.io.threads.follower import Follower
from hvd_elastic_ext.launcher.exports import spans as spans_of
from hvd_elastic_ext.launcher.exports.prometheus import Counters
from hvd_elastic_ext.launcher.exports.tensorboard import EventFile, ScalarWriter
from hvd_elastic_ext.launcher.exports.webhook import Notifier, Webhook
from hvd_elastic_ext.launcher.options.settings import RunSettings

log = logging.getLogger(__name__)

Note = Callable[[str, Mapping[str, Any]], None]
"""Takes an event and its fields."""


class Listeners(NamedTuple):
    """All receivers; None for one that is off."""

    counters: Counters | None = None
    notifier: Notifier | None = None
    board: ScalarWriter | None = None
    spans: Follower[spans_of.Line] | None = None

    def notes(self) -> list[Note]:
        """Those that take events. An error in one does not end the job: events of processes may hold anything."""
        return [_guarded(each.note) for each in (self.counters, self.notifier, self.board) if each is not None]

    def tee(self, sink: Sink, clock: Clock) -> Sink:
        """The journal's sink, whose lines also go to the spans."""
        return sink if self.spans is None else spans_of.Tee(sink, self.spans, clock.mono)

    def close(self) -> None:
        """Send what is left. Takes some seconds at most."""
        for each in (self.board, self.spans, self.notifier):
            if each is not None:
                each.close()


def _guarded(note: Note) -> Note:
    logged = set[str]()

    def noted(event: str, fields: Mapping[str, Any]) -> None:
        try:
            note(event, fields)
        except Exception as error:  # noqa: BLE001
            if event not in logged:
                logged.add(event)
                log.warning("figures of %r are left out: %s: %s", event, type(error).__name__, error)

    return noted


def listeners(settings: RunSettings, clock: Clock, about: Mapping[str, Any], environ: Mapping[str, str]) -> Listeners:
    """``about``: the names of the job and its run. Raises :class:`UsageError`."""
    board = None
    if settings.tensorboard is not None:
        folder = settings.tensorboard / settings.job / str(about["run"])
        board = ScalarWriter(EventFile(folder, clock.wall, given=settings.tensorboard), clock)
    return Listeners(
        None if settings.metrics is None else Counters(clock.wall, clock.mono),
        None if settings.notify is None else Notifier(Webhook(settings.notify, about), clock),
        board,
        spans_of.followed(environ, {name: str(about[name]) for name in ("job", "run")}),
    )

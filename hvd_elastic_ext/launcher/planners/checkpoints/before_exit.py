"""A job that is told to end: what was trained is made durable first, for a while."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.core.errors import Interrupted, JobFailed
from hvd_elastic_ext.launcher.planners.checkpoints.before_sleep import Bedtime
from hvd_elastic_ext.launcher.planners.checkpoints.coordinator import Sealing
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.worlds import Worlds

log = logging.getLogger(__name__)

LAST_CHECKPOINT_S: Final = 20.0
"""How long the end of a job that is told to end waits for a last checkpoint: pods have 30 s in all."""


class LastWords:
    """See the module's docstring. To be asked at every look."""

    def __init__(self, station: Station, worlds: Worlds, sealing: Sealing, bedtime: Bedtime) -> None:
        self._station = station
        self._worlds = worlds
        self._sealing = sealing
        self._bedtime = bedtime
        self._why: JobFailed | None = None
        self.until: float | None = None
        """When it ends at the latest (mono); None if it was not told to."""

    def hold(self, why: JobFailed) -> bool:
        """Whether the end has to wait. Told again, it does not."""
        if self._why is not None or not isinstance(why, Interrupted) or not self._anything_to_save():
            return False
        self._why, self.until = why, self._station.now() + LAST_CHECKPOINT_S
        log.warning("%s: a last checkpoint is made first; a second signal ends the job without it", why)
        return True

    def said(self, now: float) -> JobFailed | None:
        """With what the job ends now: all is saved, or it was waited for long enough. None if it is to wait."""
        if self._why is None or self.until is None:
            return None
        saving = self._sealing.asked or not self._worlds.standing
        if saving and now < self.until:
            return None
        if saving:
            log.warning("no last checkpoint in %g s; what was trained since the newest one is lost", LAST_CHECKPOINT_S)
        return self._why

    @property
    def at_rest(self) -> bool:
        """Whether it was told to end and nobody trains: then no other world is formed."""
        return self._why is not None and not self._worlds.standing

    def save(self, now: float) -> JobFailed | None:
        """Go on saving what memory holds, as nobody trains; with what the job ends if that is done."""
        self._sealing.rests("the world is lost")
        return self._why if self._bedtime.look(now, short=str(self._why), hurry=True) is not None else None

    def _anything_to_save(self) -> bool:
        at_rest = self._station.rules.durability is not None and not self._worlds.standing
        return self._sealing.now_please() or (at_rest and bool(self._station.roster.holders()))

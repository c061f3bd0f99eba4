"""What a session takes from the last one and leaves to the next one, and its writer, which does not wait for a disk."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.launcher.driver import options
from hvd_elastic_ext.launcher.driver import options as job_options
from hvd_elastic_ext.launcher.folder import state_json
from hvd_elastic_ext.launcher.folder.state_json import Saved, job_of
from hvd_elastic_ext.launcher.health import ledger_json

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState

log = logging.getLogger(__name__)


CLOSE_S: Final = 30.0
"""How long the end of a job waits until its last state is written."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What a session takes over from those before it.

    ``last_hosts``: the last host list that was not empty. ``woken``: the job has slept, or failed after it had trained.
    ``expects``: path of a checkpoint that exists.
    """

    saved: Saved
    last_hosts: HostSet = field(default_factory=HostSet)
    woken: bool = False
    expects: str | None = None


def start_of(saved: Saved, job: JobState, *, wall: float, expects: str | None) -> dict[str, Any]:
    """The input with which :func:`state_at_start` makes the state that ``job`` began with, for a recording."""
    own = {"mono": job.now, "wall": wall, "helper_number": job.helper_number, "expects": expects}
    return {**own, "options": options.to_json(job.options), "saved": state_json.to_json(saved)}


def state_at_start(start: Mapping[str, Any]) -> JobState:
    """The state with which a recorded launcher began. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    saved, options = state_json.from_json(start["saved"]), job_options.from_json(start["options"])
    now, wall = start["mono"], start["wall"]
    return job_of(saved, options, now=now, wall=wall, helper_number=start["helper_number"], expects=start["expects"])


def write_noted_change(saved: Saved, *, journal: Journal, clock: Clock) -> None:
    """Write the journal line of a change whose cost the last launcher awaited; how long it took is unknown."""
    if saved.change is not None:
        generation, at, fields = saved.change
        ago = max(0.0, clock.wall() - at)
        journal.record("resized", generation=generation, at_mono=clock.mono() - ago, **fields, downtime_s=None)


class StateWriter:
    """Calls ``save`` in a thread, one call at a time; ``save`` may be slow and reports its own errors.

    Of states that wait, only the newest is written. The state is taken after the present event, so it never holds half
    of a change.
    """

    def __init__(self, save: Callable[[Saved], bool]) -> None:
        self._save = save
        self._calls = BackgroundCalls()
        self._next: Callable[[], Saved] | None = None
        self._task: asyncio.Task[None] | None = None

    def soon(self, state: Callable[[], Saved]) -> None:
        """Write ``state()`` in the background, unless a newer one comes first. Call it in the loop."""
        self._next = state
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> bool:
        """Wait for the last state; return whether it is written."""
        if self._task is not None and not (await asyncio.wait([self._task], timeout=CLOSE_S))[0]:
            log.warning("the job's last state is not written after %g s: the disk does not answer", CLOSE_S)
            return False
        return True

    async def _work(self) -> None:
        while (state := self._next) is not None:
            self._next = None
            try:
                await self._calls.call(functools.partial(self._save, state()))
            except Exception:
                log.exception("a defect of hvd-elastic: the job's state is not written")


# --- which run this is


def name_of(wall: float, random: int) -> str:
    """A run's name: when it began (UTC), and a random part. Names sort by time."""
    thousandths = int(wall % 1.0 * 1000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(wall))}.{thousandths:03d}-{random & 0xFFFF:04x}"


def started(saved: Saved | None, *, fresh: str, resume: bool) -> Saved:
    """The saved state with which a launcher starts now, with the name of its run: ``fresh`` if it is a new run.

    ``resume``: continue the last run even if it has ended.
    """
    if saved is None:
        return Saved(run=fresh)
    if resume or not saved.ended:
        return replace(saved, run=saved.run or fresh, ended=False)
    # These are valid for any run: blocks by hand, where checkpoints are, and where the launcher listened.
    return Saved(
        saved.incarnation,
        run=fresh,
        at=saved.at,
        ledger=ledger_json.by_hand(saved.ledger),
        ports=saved.ports,
        only_here=saved.only_here,
        stored=saved.stored,
    )

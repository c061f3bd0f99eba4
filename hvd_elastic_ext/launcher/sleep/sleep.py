"""The launcher of a job that sleeps: it waits for hosts, without a port, an agent or a process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Asleep
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.pace import WAIT, Lines
from hvd_elastic_ext.launcher.driver.words import Wait, line
from hvd_elastic_ext.launcher.health.pace import next_line_hint
from hvd_elastic_ext.launcher.sleep import sleep_policy
from hvd_elastic_ext.launcher.sleep.sleep_policy import SleepAction, SleepFacts

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.health.ledger import HealthLedger
    from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
    from hvd_elastic_ext.launcher.sleep.releaser import PodReleases
    from hvd_elastic_ext.launcher.sources.hosts import HostFeed

log = logging.getLogger(__name__)


MAX_PAUSE_S: Final = 60.0
"""Longest time between two looks: the clock may have stopped with the machine."""
WAKES: Final = "it goes on by itself when those slots may work; Ctrl-C ends this launcher"


class SleepingJob:
    """One sleep. ``ledger`` returns the present health of hosts; it may change meanwhile.

    ``idle_wakes``: wakes in a row after which the job slept again before it trained. Each delays the next wake by the
    same hosts: their agents may know of a preemption that the host list does not show. New hosts wake it as usual.
    ``lines_s``: ``--wait-lines``.
    """

    def __init__(
        self,
        feed: HostFeed,
        ledger: Callable[[], HealthLedger],
        limits: WorldLimits,
        *,
        journal: Journal,
        clock: Clock,
        releases: PodReleases | None,
        max_wait_s: float | None,
        generation: int,
        idle_wakes: int = 0,
        lines_s: float,
    ) -> None:
        self._ledger, self._lines_s = ledger, lines_s
        self._feed, self._limits, self._max_wait_s = feed, limits, max_wait_s
        self._journal, self._clock, self._releases = journal, clock, releases
        self._generation, self._idle_wakes = generation, idle_wakes
        self._known = frozenset[str]()
        """Hosts that are listed since the sleep began."""
        self._soon = asyncio.Event()
        self._since = clock.mono()
        self._lines = Lines(self._since)
        self._lacks = "for hosts"
        self._enough_since: float | None = None
        self._end_reason: str | None = None

    def end(self, why: str) -> None:
        """End the sleep. Call it in the loop's thread."""
        self._end_reason = why
        self._soon.set()

    def changed(self) -> None:
        """Hosts or health may have changed. Call it in the loop's thread."""
        self._soon.set()

    async def sleep(self, asleep: Asleep, hosts_before: HostSet) -> None:
        """Wait until the job goes on. Raises :class:`Asleep` if it should not wait any longer."""
        held = {} if asleep.path is None else {"path": asleep.path, "step": asleep.step}
        kept = "" if asleep.path is None else f"; step {asleep.step} is in {asleep.path}"
        ends = "" if self._max_wait_s is None else f"; it waits {self._max_wait_s:g} s at most (--max-wait-time)"
        wakes = f"it goes on by itself when {self._limits.least} slots may work"
        log.warning("asleep: %s%s; %s%s", asleep, kept, wakes, ends)
        self._record("slept", reason=str(asleep), **held)
        _release_memory()
        self._known = frozenset(hosts_before.names)
        if self._releases is not None:
            await self._releases.asleep(hosts_before)
        decision = await self._wait()
        slept_s = round(self._clock.mono() - self._since, 3)
        if decision.act is SleepAction.END:
            raise Asleep(f"stopped while asleep ({decision.reason}); the same command goes on")
        self._record("woke", reason=decision.reason, slept_s=slept_s)
        if self._releases is not None:
            await self._releases.woke()

    def wait(self) -> Wait:
        """What the job waits for, and until when."""
        ends = None if self._max_wait_s is None else self._since + self._max_wait_s
        return Wait(f"asleep: {self._lacks}", ends, ", then this launcher ends (--max-wait-time)", ends=WAKES)

    def status(self) -> str:
        """The same in one line."""
        return line(self.wait(), self._clock.mono())

    def _log_wait(self, now: float) -> float:
        """Log the wait, if that is due. Returns when it is due next (mono)."""
        most_s = self._lines_s
        if self._lines.due(now, self._lacks, most_s=most_s):
            again = next_line_hint(self._lines.next_at(self._lacks, most_s=most_s) - now)
            log.info("%s%s", self.status(), again, extra=WAIT)
        return self._lines.next_at(self._lacks, most_s=most_s)

    async def _wait(self) -> sleep_policy.SleepDecision:
        while True:
            self._soon.clear()
            now = self._clock.mono()
            decision = sleep_policy.decide(now, self._facts(now), self._limits_now(), self._max_wait_s)
            if decision.act is not SleepAction.SLEEP_ON:
                return decision
            self._lacks = decision.reason
            say_at = self._log_wait(now)
            if self._releases is not None:
                await self._releases.look(enough=self._enough_since is not None)
            at = min(time for time in (now + MAX_PAUSE_S, decision.again_at, say_at) if time is not None)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._soon.wait(), max(0.0, at - self._clock.mono()))

    def _limits_now(self) -> WorldLimits:
        here = frozenset(self._feed.hosts().names)
        self._known &= here
        idle_wakes = self._idle_wakes if here == self._known else 0
        return replace(self._limits, settle_s=sleep_policy.settle_s(self._limits.settle_s, idle_wakes))

    def _facts(self, now: float) -> SleepFacts:
        slots = sleep_policy.slots_there(now, self._feed.hosts(), self._ledger())
        enough = bool(self._limits.size(slots, begun=True))
        self._enough_since = (self._enough_since or now) if enough else None
        end_reason = self._end_reason
        if end_reason is None and self._feed.failure is not None:
            end_reason = str(self._feed.failure)
        return SleepFacts(self._since, slots, self._enough_since, end_reason, self._ledger().next_release(now))

    def _record(self, event: str, **fields: Any) -> None:
        more: Mapping[str, Any] = {key: value for key, value in fields.items() if value is not None}
        self._journal.record(event, generation=self._generation, **more)


def _release_memory() -> None:
    """Return memory to the system: a sleeping launcher needs little."""
    gc.unfreeze()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)

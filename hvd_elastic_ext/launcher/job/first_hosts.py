"""The wait for the first host list, before the driver decides anything: its lines, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Asleep, JobFailed
from hvd_elastic_ext.core.pace import Lines
from hvd_elastic_ext.launcher.driver.words import Wait, line, log_wait
from hvd_elastic_ext.launcher.options.settings import Sources
from hvd_elastic_ext.launcher.sources.hosts import HostFeed

QUIET_S: Final = 0.5
"""A source that answers within this time causes no line."""
STOP_CHECK_S: Final = 0.25
"""Longest time until a wait for something else notices the end of the job."""
LOOK_S: Final = 1.0
"""Longest pause between two looks."""


async def log_while_waiting(
    work: Awaitable[object], wait: Wait, clock: Clock, *, failed: Callable[[], JobFailed | None]
) -> None:
    """Wait for ``work``, and log the wait at its pace. Raises what ``work`` raises, and what ``failed`` returns."""
    task, lines = asyncio.ensure_future(work), Lines(clock.mono())
    try:
        while not task.done():
            await asyncio.wait([task], timeout=STOP_CHECK_S)
            if (why := failed()) is not None:
                raise why
            if not task.done() and lines.due(now := clock.mono(), wait.why):
                log_wait(wait, now)
        task.result()
    finally:
        task.cancel()


class FirstHosts:
    """Waits until ``feed`` has a host. ``sleep_after_s``: a job that may sleep does so then; None: it fails in time."""

    def __init__(
        self, feed: HostFeed, sources: Sources, clock: Clock, *, elastic_timeout_s: float, sleep_after_s: float | None
    ) -> None:
        self._feed, self._sources, self._clock = feed, sources, clock
        self._sleeps = sleep_after_s is not None
        self._limit_s = elastic_timeout_s if sleep_after_s is None else sleep_after_s
        self._until = clock.mono() + self._limit_s
        self._lines = Lines(clock.mono(), first_s=QUIET_S)

    def look(self) -> float:
        """Log the wait, if that is due; seconds until the next look. Raises how the job ends without a host.

        That is :class:`Asleep`, or :class:`JobFailed`.
        """
        feed, now = self._feed, self._clock.mono()
        if feed.failure is not None:
            raise JobFailed(str(feed.failure))
        if now >= self._until:
            why = feed.reason or "the list of hosts is empty, or none has come"
            if self._sleeps:
                raise Asleep(f"no host in --sleep-after {self._limit_s:g} s: {why}")
            raise JobFailed(f"no host in --elastic-timeout {self._limit_s:g} s: {why}")
        wait = self.wait()
        if self._lines.due(now, wait.why):
            log_wait(wait, now)
        return min(LOOK_S, self._lines.next_at(wait.why) - now)

    def status(self) -> str:
        """The same line for a terminal."""
        return line(self.wait(), self._clock.mono())

    def wait(self) -> Wait:
        """The wait as a value."""
        then = ", then the job sleeps (--sleep-after)" if self._sleeps else ", then the job fails (--elastic-timeout)"
        return Wait(f"for a first host: {self._why()}", self._until, then)

    def _why(self) -> str:
        feed, sources = self._feed, self._sources
        if feed.reason is not None:
            return feed.reason
        if sources.hosts_file is not None:
            return f"no host in {sources.hosts_file}" if feed.answered else f"{sources.hosts_file} is not read yet"
        if sources.script is not None:
            return f"{sources.script!r} names no host" if feed.answered else f"{sources.script!r} has not answered yet"
        if sources.discovery_url is not None:
            daemon = f"the daemon at {sources.discovery_url}"
            return f"{daemon} names no host" if feed.answered else f"{daemon} has not answered yet"
        return "--hosts names none"

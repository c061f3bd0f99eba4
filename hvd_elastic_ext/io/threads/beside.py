"""Tasks that run beside the work itself: whatever one raises, the work goes on.

A task that is not the work (signals, a status line, messages to a webhook) is started with :class:`Beside`. If it
raises, that is a defect of ours: its traceback is logged once, with what is missing now, and it starts again after a
pause that grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from hvd_elastic_ext.core.backoff import pause_after

log = logging.getLogger(__name__)

PAUSES_S: Final = (1.0, 300.0)
"""First and longest pause before a task that has raised starts again."""

Work = Callable[[], Awaitable[None]]
Pause = Callable[[float], Awaitable[None]]


class Beside:
    """The tasks of one loop. ``pause`` sleeps."""

    def __init__(self, pause: Pause = asyncio.sleep) -> None:
        self._pause = pause
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work, *, lacks: str) -> None:
        """Run ``work`` until it returns, again and again if it raises. ``lacks``: what is missing while it does not
        run, as words after "meanwhile", such as "signals are not read".
        """
        self._added(asyncio.get_running_loop().create_task(self._run(work, lacks)))

    def once(self, work: Work, *, failed: Callable[[str], None]) -> asyncio.Task[None]:
        """Run ``work`` once; it may be cancelled. If it raises, ``failed`` gets the reason: the caller does without."""
        return self._added(asyncio.get_running_loop().create_task(self._run_once(work, failed)))

    def _added(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all of them, and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_once(self, work: Work, failed: Callable[[str], None]) -> None:
        try:
            await work()
        except Exception as error:
            why = f"a defect of hvd-elastic: {type(error).__name__}: {error}"
            log.exception("%s; the job goes on", why)
            failed(why)

    async def _run(self, work: Work, lacks: str) -> None:
        failures, known = 0, set[str]()
        while True:
            try:
                await work()
                return
            except Exception as error:  # noqa: BLE001 - a main loop
                failures += 1
                wait_s = pause_after(failures, first=PAUSES_S[0], longest=PAUSES_S[1])
                report(error, known, f"the job goes on; for {wait_s:.0f} s {lacks}")
            await self._pause(wait_s)


def report(error: BaseException, known: set[str], what: str) -> None:
    """Log a defect, and its traceback unless one with the same text is in ``known``, which gets it."""
    text = f"{type(error).__name__}: {error}"
    again = text in known
    known.add(text)
    log.error("a defect of hvd-elastic (%s): %s", text, what, exc_info=None if again else error)

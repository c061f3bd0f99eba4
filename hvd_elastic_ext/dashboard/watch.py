"""Follows journal and launcher of a job while its page is open, and updates the page when they change.

All pages of a job share one reader. The page is made of parts, and only parts that have changed are sent; if only steps
are new, that happens seldom, by how long making the page takes. A long journal gets a first summary from its end before
it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.dashboard.content.model import Facts, page_of
from hvd_elastic_ext.dashboard.content.sentences import initial_verdict
from hvd_elastic_ext.dashboard.jobs import Job, summary
from hvd_elastic_ext.dashboard.launcher_client import LauncherClient
from hvd_elastic_ext.dashboard.logs import Logs
from hvd_elastic_ext.dashboard.reading import Reading
from hvd_elastic_ext.report.timeline import values, whole

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
"""Seconds between two checks of the journal's size."""
SELDOM_S: Final = 2.0
"""Seconds between two updates of the page if only steps are new."""
SHARE: Final = 10.0
"""The pause between two updates for steps alone is at least this many times the duration of one."""
LONG: Final = 2 << 20
"""A longer journal (bytes) gets a first summary before it is read."""
ANSWER_S: Final = 5.0
"""Longest wait for the launcher's first answer: until then the page says nothing about the launcher."""
ALIVE_S: Final = 10.0
"""Seconds between two messages to a browser: sending shows if the browser is gone."""


def facts_of(reading: Reading, job: Job, live: Mapping[str, Any] | None) -> Facts:
    """Return the present data for the page."""
    kept = reading.kept
    return Facts(
        name=job.name,
        records=kept.records(),
        hosts=reading.hosts.known,
        now=time.time(),
        step_s=kept.step_s() if kept.thinned else None,
        live=live,
        newest_step=kept.newest_step,
        runs=reading.runs,
        lines=kept.lines,
        foreign=kept.foreign,
        left_out=kept.left_out,
        accounting=kept.accounting,
    )


def parts_of(reading: Reading, job: Job, live: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the parts of the page as JSON, with the present state of storage."""
    parts = page_of(facts_of(reading, job, live)).parts()
    for each in parts["checkpoints"]["sealed"]:
        each["there"] = on_storage(each["path"])
    return {name: to_text(part, default=str) for name, part in parts.items()}


def _is_long(journal: Path) -> bool:
    """Whether reading the journal takes long."""
    return journal.stat().st_size > LONG


def on_storage(path: str) -> bool | None:
    """Whether a checkpoint on storage is complete; None if this machine cannot see it."""
    if not path or "://" in path or not path.startswith("/"):
        return None
    try:
        return (Path(path) / "manifest.json").exists()
    except OSError:
        return None


class Watch:
    """``parts``: the newest parts of the page, by name; an object of its own for each change."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.parts: dict[str, str] = {}
        self.viewers = 0
        self.launcher = LauncherClient(job.folder)
        self.reading = Reading(job.journal)
        self._one_reader = threading.Lock()
        self._turn = asyncio.Lock()
        """Held while the journal is read and the page is made of it: what is read must not change meanwhile."""
        self._logs: Logs | None = None
        self._logs_of = Path()
        self._changed = asyncio.Event()
        self._live: Mapping[str, Any] | None = None
        self._asked = asyncio.Event()
        """Set once the launcher was asked since somebody looks."""
        self._has_read = False
        self._tasks: list[asyncio.Task[None]] = []
        self._made_at = -SELDOM_S
        self._took = 0.0
        self._made_of: tuple[Any, ...] = ()

    def logs(self, folder: Path) -> Logs:
        """Return the output below a folder; its index is read once."""
        if self._logs is None or self._logs_of != folder:
            self._logs, self._logs_of = Logs(folder), folder
        return self._logs

    async def started(self) -> Record | None:
        """Return the newest start of a launcher. Reads the journal first if none is known. Raises ``OSError``."""
        if self.reading.started is None:
            async with self._turn:
                if self.reading.started is None:
                    await asyncio.to_thread(self._read_all)
        return self.reading.started

    async def stream(self) -> AsyncIterator[str]:
        """Yield changes as server-sent events: the name of a part, and the part."""
        sent: dict[str, str] = {}
        self._begin()
        try:
            while True:
                changed = self._changed
                new = {name: part for name, part in self.parts.items() if sent.get(name) is not part}
                sent.update(new)
                if new:
                    yield "".join(f"event: {name}\ndata: {part}\n\n" for name, part in new.items())
                try:
                    await asyncio.wait_for(changed.wait(), ALIVE_S)
                except (TimeoutError, asyncio.TimeoutError):
                    yield ": alive\n\n"
        finally:
            self._leave()

    def _begin(self) -> None:
        self.viewers += 1
        if not self._tasks:
            # What was shown last is old: nothing looks at journal and launcher while nobody does.
            self.parts, self._made_of, self._asked = {}, (), asyncio.Event()
            self._tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._ask())]

    def _leave(self) -> None:
        self.viewers -= 1
        if not self.viewers:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    async def _ask(self) -> None:
        while True:
            self._live = await asyncio.to_thread(self.launcher.ask, anew=not self._asked.is_set())
            self._asked.set()
            await asyncio.sleep(LOOK_S)

    async def _follow(self) -> None:
        """Read and publish until cancelled. The page shows an error: it must not look up to date."""
        while True:
            try:
                async with self._turn:
                    await self._read_on()
                    with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                        await asyncio.wait_for(self._asked.wait(), ANSWER_S)
                    await self._make()
                self._publish(error="null")
            except OSError as error:
                self._publish(error=to_text(f"{self.job.journal} cannot be read: {error.strerror}"))
            except Exception as error:
                log.exception("the page of %s stops", self.job.name)
                self._publish(error=to_text(f"this page has stopped: {type(error).__name__}: {error}"))
                return
            await asyncio.sleep(LOOK_S)

    async def _read_on(self) -> None:
        if not (self._has_read or self.parts) and await asyncio.to_thread(_is_long, self.job.journal):
            self._publish(glance=to_text(initial_verdict(await asyncio.to_thread(summary, self.job))))
        pieces = self.reading.read_on()
        while (offset := await asyncio.to_thread(self._next, pieces)) is not None:
            if offset < self.reading.size:
                self._publish(reading=f"{offset / max(1, self.reading.size):.3f}")
        self._has_read = True
        self._publish(reading="1", step=to_text(self._newest_step()))

    def _next(self, pieces: Iterator[int]) -> int | None:
        """Read one piece. A thread of viewers that have left may still read the one before: nothing can cancel it."""
        with self._one_reader:
            return next(pieces, None)

    def _read_all(self) -> None:
        with self._one_reader:
            self.reading.read_all()

    def _newest_step(self) -> dict[str, Any] | None:
        """Publish the newest step at once; the whole page follows."""
        record = self.reading.kept.newest_step
        if record is None:
            return None
        shown = {key: value for key, value in values(record).items() if type(value) in (int, float, str)}
        return {"step": whole(record.get("step")), "t": record.t, "values": shown}

    async def _make(self) -> None:
        """Update the page: at once for events, less often for steps and time alone."""
        kept = self.reading.kept
        made_of = (id(kept), kept.counts.total(), None if self._live is None else self._live.get("said"))
        due = time.monotonic() - self._made_at > max(SELDOM_S, SHARE * self._took)
        if made_of == self._made_of and not due:
            return
        began = time.monotonic()
        parts = await asyncio.to_thread(parts_of, self.reading, self.job, self._live)
        self._made_at, self._made_of = time.monotonic(), made_of
        self._took = self._made_at - began
        self._publish(**parts)

    def _publish(self, **parts: str) -> None:
        new = {name: part for name, part in parts.items() if self.parts.get(name) != part}
        if new:
            self.parts.update(new)
            self._changed.set()
            self._changed = asyncio.Event()


class Watches:
    """The watches by job. If there are too many, the one unused for longest is dropped."""

    def __init__(self, most: int, make: Callable[[Job], Watch] = Watch) -> None:
        self._most, self._make = most, make
        self._watches: dict[str, Watch] = {}

    def of(self, job: Job) -> Watch:
        """Return the watch of a job."""
        watch = self._watches.pop(job.name, None)
        if watch is None or watch.job != job:
            watch = self._make(job)
        self._watches[job.name] = watch
        for name in [name for name, each in self._watches.items() if not each.viewers and each is not watch]:
            if len(self._watches) <= self._most:
                break
            del self._watches[name]
        return watch

    async def close(self) -> None:
        """Stop them all."""
        for watch in self._watches.values():
            for task in watch._tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

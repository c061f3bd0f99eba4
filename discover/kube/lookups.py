"""What is asked for one by one, beside lists and watches: the object above the pods, and nodes that nobody has seen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from discover.common.grace import Leave
from discover.kube.backoff import Backoff
from discover.kube.transport import RequestFailed
from discover.kube.watch_policy import Ending, end_of
from discover.selection.operators import JobView
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

REFRESH: Final = 60.0
"""Seconds after which the job is read again, as its labels may change; and after which a right may have been given."""

AskJob = Callable[[], JobView | None]
"""Reads the job; None if there is none to be read. Raises :class:`RequestFailed`."""

AskNode = Callable[[str], bool]
"""Whether a node exists. Raises :class:`RequestFailed`."""


class Lookups:
    """Asks in a thread of its own. ``changed`` is called from there when there is another answer than before.

    ``job`` is None where there is nothing to be asked for.
    """

    def __init__(self, job: AskJob | None, node: AskNode, *, clock: Clock, draw: Callable[[], float]) -> None:
        self._ask_job = job
        self._ask_node = node
        self._clock = clock
        self._draw = draw
        self._changed: Callable[[], None] = lambda: None
        self._job: JobView | None = None
        self._settled = job is None
        self._job_due = clock.mono()
        self._backoff = Backoff()
        self._trouble = ""
        self._missing: frozenset[str] = frozenset()
        self._exists: Mapping[str, bool] = MappingProxyType({})
        self._asked_at: dict[str, float] = {}
        self._nodes_backoff = Backoff()
        self._nodes_trouble = ""
        self._poke = threading.Event()
        self._stopping = False
        self._leave = Leave(0.5)
        self._thread = threading.Thread(target=self._run, name="inquiries", daemon=True)

    @property
    def job(self) -> JobView | None:
        return self._job

    @property
    def settled(self) -> bool:
        """Whether it is known what the job says, or that it will not be known soon."""
        return self._settled

    @property
    def exists(self) -> Mapping[str, bool]:
        """The answers about the nodes that are missing."""
        return self._exists

    def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._thread.start()

    def set_missing(self, missing: Iterable[str]) -> None:
        """These nodes are missing now, and no others."""
        wanted = frozenset(missing)
        if wanted != self._missing:
            self._missing = wanted
            self._poke.set()

    def hurry(self) -> None:
        """Begin to stop, and do not wait for it. May be repeated."""
        self._leave.begin()
        self._stopping = True
        self._poke.set()

    def stop(self) -> None:
        """End the thread, or let it end with its request. May be repeated, and come before :meth:`start`."""
        self.hurry()
        if self._thread.is_alive():
            self._thread.join(self._leave.left)

    def turn(self) -> float | None:
        """Ask what there is to ask now; return how many seconds to wait before the next turn, None for ever."""
        job, pause = self._about_job(), self._about_nodes()
        return min((each for each in (job, pause) if each is not None), default=None)

    def _run(self) -> None:
        while not self._stopping:
            self._poke.clear()
            try:
                pause = self.turn()
            except Exception:
                LOG.exception("inquiries: a defect of hvd-discover; asking again later")
                pause = REFRESH
            if not self._stopping:
                self._clock.wait(self._poke, pause)

    def _about_job(self) -> float | None:
        if self._ask_job is None:
            return None
        now = self._clock.mono()
        if now < self._job_due:
            return self._job_due - now
        before = self._job, self._settled
        self._job_due = now + self._asked(self._ask_job, now)
        if (self._job, self._settled) != before and not self._stopping:
            self._changed()
        return self._job_due - now

    def _asked(self, ask: AskJob, now: float) -> float:
        try:
            self._job = ask() or self._job
        except RequestFailed as error:
            return self._refused(error, now)
        self._settled, self._trouble = True, ""
        return REFRESH

    def _refused(self, error: RequestFailed, now: float) -> float:
        """What was known goes on to hold. A job that may not be read, or is not there, is done without."""
        if self._trouble != str(error):
            self._trouble = str(error)
            LOG.warning("the job cannot be read: %s; doing without it for now", error)
        final = end_of(error) in (Ending.FORBIDDEN, Ending.OTHER)
        self._settled = self._settled or final
        self._backoff, pause = self._backoff.failed(now, self._draw())
        return REFRESH if final else pause

    def _about_nodes(self) -> float | None:
        """A node that is not there is not asked for again: if one comes, its list tells."""
        now, missing = self._clock.mono(), self._missing
        known = {name: self._exists[name] for name in missing if name in self._exists}
        self._asked_at = {name: at for name, at in self._asked_at.items() if name in known}
        trouble = ""
        for name in sorted(missing):
            if self._stopping:
                return None
            if known.get(name) is False or now < self._asked_at.get(name, -REFRESH) + REFRESH:
                continue
            try:
                known[name] = self._ask_node(name)
                self._asked_at[name] = now
            except RequestFailed as error:
                trouble = str(error)
        if known != self._exists:
            self._exists = MappingProxyType(known)
            self._changed()
        return self._ask_again(now, trouble)

    def _ask_again(self, now: float, trouble: str) -> float | None:
        if trouble and trouble != self._nodes_trouble:
            LOG.warning("nodes that the watch does not tell of cannot be asked for: %s", trouble)
        self._nodes_trouble = trouble
        if trouble:
            self._nodes_backoff, pause = self._nodes_backoff.failed(now, self._draw())
            return pause
        return min((at + REFRESH - now for name, at in self._asked_at.items() if self._exists.get(name)), default=None)

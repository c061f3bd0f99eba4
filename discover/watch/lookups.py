"""Single reads beside lists and watches: of the object above the pods, and of nodes that the watch does not show."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from discover.pods.operators import JobView
from discover.threads import PeriodicThread
from discover.watch.policy import Backoff
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason

LOG = logging.getLogger("hvd-discover")

REFRESH: Final = 60.0
"""Seconds after which the job and existing nodes are read again, because labels and rights may have changed."""

ReadJob = Callable[[], JobView | None]
"""Reads the job; returns None if there is none. Raises :class:`ApiError`."""

NodeExists = Callable[[str], bool]
"""Returns whether the node of a name exists. Raises :class:`ApiError`."""


class Lookups:
    """Reads in a thread of its own, and calls ``changed`` there when an answer differs from the previous one.

    ``job`` is None if there is no job to read. ``draw`` returns a random number from [0, 1).
    """

    def __init__(self, job: ReadJob | None, node: NodeExists, *, clock: Clock, draw: Callable[[], float]) -> None:
        self._read_job = job
        self._node_exists = node
        self._clock = clock
        self._draw = draw
        self._changed: Callable[[], None] = lambda: None
        self._job: JobView | None = None
        self._settled = job is None
        self._job_due = clock.mono()
        self._job_backoff = Backoff()
        self._job_problem = ""
        self._missing: frozenset[str] = frozenset()
        self._exists: Mapping[str, bool] = MappingProxyType({})
        self._asked_at: dict[str, float] = {}
        self._nodes_backoff = Backoff()
        self._nodes_problem = ""
        self._thread = PeriodicThread("lookups", self.turn, clock=clock, finish_timeout=0.5, grace=0.0)
        self.begin_stop, self.stop = self._thread.begin_stop, self._thread.stop

    @property
    def job(self) -> JobView | None:
        """The job as it was last read; None before the first time, or if there is no job to read."""
        return self._job

    @property
    def settled(self) -> bool:
        """Whether the job was read, there is none, or the server refuses to show it."""
        return self._settled

    @property
    def exists(self) -> Mapping[str, bool]:
        """Whether a node exists, by its name, for those nodes of :meth:`set_missing` that were looked up."""
        return self._exists

    def start(self, changed: Callable[[], None]) -> None:
        """Start the thread, which calls ``changed``."""
        self._changed = changed
        self._thread.start()

    def set_missing(self, missing: Iterable[str]) -> None:
        """Set the names of the nodes to look up. If they differ from the previous ones, the thread begins at once."""
        wanted = frozenset(missing)
        if wanted != self._missing:
            self._missing = wanted
            self._thread.wake()

    def turn(self) -> float | None:
        """Read what is due; return the seconds to the next turn, None if no read is planned."""
        pauses = (self._look_up_job(), self._look_up_nodes())
        return min((each for each in pauses if each is not None), default=None)

    def _look_up_job(self) -> float | None:
        if self._read_job is None:
            return None
        now = self._clock.mono()
        if now >= self._job_due:
            before = self._job, self._settled
            self._job_due = now + self._refresh_job(self._read_job, now)
            if (self._job, self._settled) != before and not self._thread.stopping:
                self._changed()
        return self._job_due - now

    def _refresh_job(self, read: ReadJob, now: float) -> float:
        """Read the job; return the seconds to the next read. If reading fails, keep the last job. If the server refuses
        it or has none, the job counts as settled.
        """
        try:
            self._job = read() or self._job
        except ApiError as error:
            if self._job_problem != str(error):
                self._job_problem = str(error)
                LOG.warning("the job cannot be read: %s; doing without it for now", error)
            final = error.reason in (Reason.FORBIDDEN, Reason.NOT_FOUND, Reason.CONFLICT, Reason.REFUSED)
            self._settled = self._settled or final
            self._job_backoff, pause = self._job_backoff.failed(now, self._draw())
            return REFRESH if final else pause
        self._settled, self._job_problem = True, ""
        return REFRESH

    def _look_up_nodes(self) -> float | None:
        """Look up the missing nodes; return the seconds to the next look. A node that does not exist is not looked up
        again, because the watch shows it when it comes.
        """
        now, missing = self._clock.mono(), self._missing
        known = {name: self._exists[name] for name in missing if name in self._exists}
        self._asked_at = {name: at for name, at in self._asked_at.items() if name in known}
        problem = ""
        for name in sorted(missing):
            if self._thread.stopping:
                return None
            if known.get(name) is False or now < self._asked_at.get(name, -REFRESH) + REFRESH:
                continue
            try:
                known[name] = self._node_exists(name)
                self._asked_at[name] = now
            except ApiError as error:
                problem = str(error)
        if known != self._exists:
            self._exists = MappingProxyType(known)
            self._changed()
        if problem and problem != self._nodes_problem:
            LOG.warning("nodes that the watch does not show cannot be read: %s", problem)
        self._nodes_problem = problem
        if problem:
            self._nodes_backoff, pause = self._nodes_backoff.failed(now, self._draw())
            return pause
        return min((at + REFRESH - now for name, at in self._asked_at.items() if self._exists.get(name)), default=None)

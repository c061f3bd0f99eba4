"""``--reap-failed``: deletes the pods that :mod:`discover.reap.reaper` chooses, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from discover.common.backoff import LONGEST_PAUSE
from discover.metrics import WriteMetrics
from discover.pods.operators import JobView
from discover.reap.cluster_view import ClusterView
from discover.reap.reaper import SHUTTING_DOWN, Deletion, ReapLimits, ReapState, decide_deletions, deleted, refused
from discover.reap.request_retry import FORBIDDEN_PAUSE, RequestRetry
from discover.selection.objects import Key
from discover.threads import PeriodicThread
from discover.verdicts.signals import Table
from discover.watch.collection import Sender
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

LOG = logging.getLogger("hvd-discover")

TURN: Final = 0.5
"""Seconds between two looks. It is short because a node that shuts down may kill its pods after 15 seconds."""

ReadJob = Callable[[Sender], JobView | None]
"""Reads the job now; returns None if there is none. Raises :class:`ApiError`."""


class Reaper:
    """Deletes pods. ``view`` returns the latest look, None before the first; a new object for each look. ``job`` is
    called before failed pods are deleted. ``own``: the daemon's own pod, which is never deleted. ``draw`` returns a
    random number from [0, 1).
    """

    def __init__(
        self,
        sender: Sender,
        view: Callable[[], ClusterView | None],
        table: Table,
        *,
        job: ReadJob,
        own: Key | None,
        metrics: WriteMetrics,
        clock: Clock,
        draw: Callable[[], float],
        limits: ReapLimits | None = None,
    ) -> None:
        self._sender = sender
        self._latest_view = view
        self._table = table
        self._read_job = job
        self._own = own
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._limits = limits or ReapLimits()
        self._state = ReapState()
        self._view: ClusterView | None = None
        self._again_at: float | None = None
        self._retry = RequestRetry("--reap-failed", manifest="reap.yaml", clock=clock, draw=draw)
        self._refusals: dict[str, str] = {}
        self._finished_job = ""
        self._logged: set[str] = set()
        self._thread = PeriodicThread("reaper", self.turn, clock=clock, interrupt=sender.interrupt, at_end=sender.close)
        self.start, self.begin_stop, self.stop = self._thread.start, self._thread.begin_stop, self._thread.stop

    def turn(self) -> float:
        """Look, and delete what is due; return the seconds to the next turn."""
        now, view = self._clock.mono(), self._latest_view()
        due = self._again_at is not None and now >= self._again_at
        if view is None or not self._retry.due(now) or (view is self._view and not due):
            return TURN
        self._state, chosen, self._again_at = decide_deletions(now, self._state, view, self._table, limits=self._limits)
        self._view = view
        self._logged.intersection_update(self._state.since)
        self._refusals = {uid: why for uid, why in self._refusals.items() if uid in self._state.since}
        finished: bool | None = None
        for deletion in chosen:
            if deletion.cause == SHUTTING_DOWN and self._latest_view() is not view:
                self._view = None  # look again: the deletions took time, and the node may be well by now
                return 0.0
            if deletion.cause != SHUTTING_DOWN:
                finished = self._job_finished(view) if finished is None else finished
                if finished:
                    break  # all remaining pods have failed, too
            try:
                if deletion.key != self._own:
                    self._delete(deletion)
                self._state = deleted(self._clock.mono(), self._state, deletion)
            except ApiError as error:
                self._metrics.reap_failed()
                self._view = None  # so that the next turn requests the remaining deletions
                if _concerns_all(error):
                    if not error.lacks_right:  # a webhook may hang for this pod only: try others first
                        self._state = refused(self._clock.mono(), self._state, deletion, jitter=0.0)
                    self._retry.failed(error, forbidden=error.lacks_right)
                    return TURN
                self._refuse(deletion, error)
        return TURN

    def _job_finished(self, view: ClusterView) -> bool:
        """Whether the job has finished since ``view``: then its failed pods stay, so that people can read their logs.
        A job that cannot be read counts as running, and one that is not found as finished.
        """
        if view.job is None:
            return False
        if view.job.uid != self._finished_job or not self._finished_job:
            try:
                job = self._read_job(self._sender)
            except ApiError as error:
                return error.reason is Reason.NOT_FOUND  # its pods are deleted with it
            if job is None or not job.finished:
                return False
            self._finished_job = job.uid
            LOG.info("--reap-failed: the job has finished; its failed pods stay")
        return view.job.uid == self._finished_job

    def _delete(self, deletion: Deletion) -> None:
        """Delete a pod. Raises :class:`ApiError` if the pod may still exist."""
        if deletion.uid not in self._logged:  # before the deletion, so that the log always has its reason
            self._logged.add(deletion.uid)
            LOG.warning("reaping pod %s (%s): %s", deletion.key, deletion.cause, deletion.why)
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            # The UID protects a new pod of the same name. The pod's own grace period applies: its preStop has to run.
            "preconditions": {"uid": deletion.uid},
        }
        try:
            self._sender.send("DELETE", path_of("v1", "pods", deletion.key.namespace, deletion.key.name), options)
        except ApiError as error:
            if error.reason not in (Reason.NOT_FOUND, Reason.CONFLICT):
                raise
            self._retry.clear_problem()
            LOG.info("pod %s is gone already", deletion.key)
            return
        self._retry.succeeded()
        self._metrics.reaped(deletion.cause)

    def _refuse(self, deletion: Deletion, error: ApiError) -> None:
        """Postpone the deletion of one pod, without a delay for others."""
        forbidden = error.reason is Reason.FORBIDDEN
        least = max(FORBIDDEN_PAUSE if forbidden else 0.0, min(error.retry_after or 0.0, LONGEST_PAUSE))
        self._state = refused(self._clock.mono(), self._state, deletion, jitter=self._draw(), least=least)
        if self._refusals.get(deletion.uid) != str(error):
            self._refusals[deletion.uid] = str(error)
            LOG.warning("--reap-failed: pod %s is not deleted for now: %s", deletion.key, error)


def _concerns_all(error: ApiError) -> bool:
    """Whether the same error is likely for every other pod. An RBAC rule covers all pods, not single ones."""
    return not error.answered or error.reason in (Reason.UNAUTHORIZED, Reason.BUSY) or error.lacks_right

"""``--reap-failed``: deletes pods of the job so that its controller makes new ones.

A controller that keeps failed pods never replaces them, so the daemon deletes them after a short delay. A pod on a node
that shuts down is deleted before the kubelet kills it: a controller replaces deleted pods, but a killed pod stays as a
failed one. What to delete is decided by :func:`decide_deletions`, which is pure; a thread of its own deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from discover.metrics import WriteMetrics
from discover.pods.operators import JobView
from discover.pods.views import Key
from discover.reap.cluster_view import ClusterView
from discover.reap.request_retry import FORBIDDEN_PAUSE, RequestRetry
from discover.threads import PeriodicThread
from discover.verdicts.signals import Table, node_signals
from discover.verdicts.verdicts import Grade, Verdict
from discover.watch.collection import Sender
from discover.watch.policy import LONGEST_PAUSE, Backoff
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

LOG = logging.getLogger("hvd-discover")

SHUTDOWN: Final = ("node-shutdown", "gke-spot-shutdown")
"""Signals of a kubelet that is about to kill all pods of its node. The signals of too little memory or disk are not
among them, because it is not known in advance which pods the kubelet kills then.
"""

FAILED, EVICTED, SHUTTING_DOWN = "failed", "evicted", "shutdown"


@dataclass(frozen=True, slots=True)
class ReapLimits:
    """Times in seconds."""

    linger: float = 5.0
    """How long a failed pod stays before it is deleted, so that people can see it."""
    handed: float = 2.0
    """How long a pod that runs stays, so that its departure is published before."""
    per_minute: int = 20
    """How many pods at most are deleted in a minute."""
    again: float = 10.0
    """The pause between two deletions of pods of one name; each deletion doubles it, up to ``longest``. The count of a
    name's deletions ends after ``2 * longest`` seconds without one.
    """
    longest: float = 300.0


@dataclass(frozen=True, slots=True)
class Deletion:
    """A pod that is to be deleted."""

    key: Key
    uid: str
    cause: str
    """One of FAILED, EVICTED and SHUTTING_DOWN."""
    why: str
    """For people."""


@dataclass(frozen=True, slots=True)
class ReapState:
    """State between looks; times in monotonic seconds."""

    since: Mapping[str, float] = field(default_factory=dict)
    """From when each pod should be deleted, by UID."""
    done: frozenset[str] = frozenset()
    """UIDs of pods whose deletion was requested."""
    recent: tuple[float, ...] = ()
    """The times of the requests within the last minute."""
    names: Mapping[Key, tuple[int, float]] = field(default_factory=dict)
    """For each name of a pod, how often it was deleted and when last."""
    refused: Mapping[str, tuple[Backoff, float]] = field(default_factory=dict)
    """For each pod whose deletion failed, the back-off and when it is requested again, by UID."""


def decide_deletions(
    now: float, reaped: ReapState, view: ClusterView, table: Table, *, limits: ReapLimits = ReapLimits()
) -> tuple[ReapState, tuple[Deletion, ...], float | None]:
    """Decide what to delete now: ``(state, deletions, when to decide again without a new look)``.

    The last value is in monotonic seconds, or None. Pods of nodes that shut down come first; within each kind, those
    that were never refused. Pass each successful deletion to :func:`deleted` and each failed one to :func:`refused`.
    The next call returns all others again.
    """
    worth = list(_worth(view, table))
    since = {each.uid: reaped.since.get(each.uid, now) for each in worth}
    there = {verdict.pod.uid for verdict in view.verdicts} if reaped.done else ()
    memory = replace(
        reaped,
        since=since,
        done=frozenset(uid for uid in reaped.done if uid in there),
        recent=tuple(at for at in reaped.recent if now < at + 60.0),
        names={key: (count, at) for key, (count, at) in reaped.names.items() if now < at + 2 * limits.longest},
        refused={uid: refusal for uid, refusal in reaped.refused.items() if uid in since},
    )
    due = {each.uid: max(_ready_at(each, since[each.uid], limits), _retry_at(memory, each, limits)) for each in worth}
    waiting = [each for each in worth if each.uid not in memory.done]
    ripe = sorted(
        (each for each in waiting if now >= due[each.uid]),
        key=lambda each: (each.cause != SHUTTING_DOWN, each.uid in memory.refused, since[each.uid]),
    )
    chosen = ripe[: max(0, limits.per_minute - len(memory.recent))]
    ends = [due[each.uid] for each in waiting if now < due[each.uid]]
    if len(chosen) < len(ripe) and memory.recent:
        ends.append(memory.recent[0] + 60.0)
    return memory, tuple(chosen), min(ends, default=None)


def deleted(now: float, reaped: ReapState, deletion: Deletion) -> ReapState:
    """Return the state after a pod's deletion was requested at ``now`` (monotonic seconds). The deletion counts for the
    limit of a minute, and for the pause of the pod's name.
    """
    count, _ = reaped.names.get(deletion.key, (0, now))
    return replace(
        reaped,
        done=reaped.done | {deletion.uid},
        recent=(*reaped.recent, now),
        names={**reaped.names, deletion.key: (count + 1, now)},
    )


def refused(now: float, reaped: ReapState, deletion: Deletion, *, jitter: float, least: float = 0.0) -> ReapState:
    """Return the state after a pod's deletion has failed. It is requested again after the back-off's pause, at the
    earliest after ``least`` seconds. ``jitter`` is drawn from [0, 1).
    """
    backoff, _ = reaped.refused.get(deletion.uid, (Backoff(), now))
    backoff, pause = backoff.failed(now, jitter)
    return replace(reaped, refused={**reaped.refused, deletion.uid: (backoff, now + max(pause, least))})


def _worth(view: ClusterView, table: Table) -> Iterator[Deletion]:
    if view.job is not None and view.job.finished:
        return  # no controller makes new pods, and people want to read the logs of the failed ones
    going: dict[str, bool] = {}
    for verdict in view.verdicts:
        pod = verdict.pod
        if pod.phase == "Failed":
            if _ours(verdict, view):
                cause = EVICTED if pod.reason in ("Evicted", "Terminated") else FAILED
                yield Deletion(pod.key, pod.uid, cause, view.reason(verdict))
        elif verdict.grade is Grade.LEAVING and pod.phase == "Running" and _ours(verdict, view):
            if pod.node not in going:
                going[pod.node] = _shuts_down(pod.node, view, table)
            if going[pod.node]:
                yield Deletion(pod.key, pod.uid, SHUTTING_DOWN, view.reason(verdict))


def _ours(verdict: Verdict, view: ClusterView) -> bool:
    """Whether the pod belongs to the job, a controller replaces it, and it is not published."""
    pod = verdict.pod
    deletable = bool(pod.uid and pod.owner) and pod.deleting is None and pod.uid not in view.published
    return deletable and view.owns(verdict)


def _shuts_down(node: str, view: ClusterView, table: Table) -> bool:
    found = None if view.nodes is None else view.nodes.get(node)
    return found is not None and any(each.signal.name in SHUTDOWN for each in node_signals(found, table))


def _ready_at(deletion: Deletion, since: float, limits: ReapLimits) -> float:
    return since + (limits.handed if deletion.cause == SHUTTING_DOWN else limits.linger)


def _retry_at(memory: ReapState, deletion: Deletion, limits: ReapLimits) -> float:
    """Return when the deletion may be requested after a refusal, or after a deletion of another pod of this name. The
    pause limits how often the controller replaces a pod that always fails at once.
    """
    _, retry_at = memory.refused.get(deletion.uid, (None, float("-inf")))
    if deletion.key in memory.names:
        count, at = memory.names[deletion.key]
        retry_at = max(retry_at, at + pause_after(count, first=limits.again, longest=limits.longest))
    return retry_at


# --- the deletions


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

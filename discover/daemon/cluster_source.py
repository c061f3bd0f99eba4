"""Hosts from the pods of a cluster. Reflectors follow pods and nodes, and a selector chooses hosts from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from discover.daemon.admission_probe import TcpProbe
from discover.metrics import ClusterMetrics
from discover.pods.operators import HostRules, JobView, job_view, selector_of
from discover.pods.views import ClusterSnapshot, NodeView
from discover.publish.overlap import RunningHosts
from discover.sources import Observation, Unsettled
from discover.threads import Timer
from discover.verdicts.damping import (
    NO_PROBE,
    DampingFacts,
    DampingLimits,
    DampingResult,
    DampingState,
    ProbeResults,
    decide_published,
)
from discover.verdicts.verdicts import Selection, Selector, warnings_of
from discover.watch.audit import WatchAudit
from discover.watch.lookups import Lookups
from discover.watch.reflector import NODES, PODS, Reflector, WatchStatus
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import SourceUnavailable, UsageError
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.io.kube.errors import ApiError, Reason

if TYPE_CHECKING:
    from discover.watch.cluster import Cluster

DOUBT_AFTER: Final = 10.0
"""After so many seconds of a problem with the server, the known hosts are reported as doubtful. They stay in use."""

CPU_SHARE: Final = 0.15
"""The share of one core that looks at the cluster may use. If changes are faster, one look takes several."""

BURST: Final = 0.5
"""Seconds of computing that are free before that share applies, so that few changes are never delayed."""

MAX_PAUSE: Final = 0.1
"""Most seconds by which that share delays the next look."""

JOB_TIMEOUT: Final = 5.0
"""Seconds that the first look waits for the job to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScope:
    """Which pods are followed and how they become hosts."""

    namespace: str
    job: str
    rules: HostRules
    selector: str = ""
    """The user's own label selector, "" without one."""
    node_selector: str = ""
    """Labels of the nodes to watch, "" for all nodes."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of a look at the cluster, and the verdicts behind it."""

    selection: Selection
    damping: DampingResult
    reason: str


class KubernetesSource:
    """Follows the pods of one job and their nodes. It knows nothing before :meth:`start`.

    ``probe``: None admits every host. ``draw`` returns a random number from [0, 1).
    """

    def __init__(
        self,
        cluster: Cluster,
        scope: PodScope,
        *,
        selector: Selector,
        probe: TcpProbe | None,
        metrics: ClusterMetrics,
        clock: Clock,
        draw: Callable[[], float],
        limits: DampingLimits,
    ) -> None:
        self._scope = scope
        self._cluster = cluster
        self._where = f"pods of namespace {scope.namespace} at {cluster.host}"
        self._selector = selector
        self._probe = probe
        self._metrics = metrics
        self._clock = clock
        self._limits = limits
        self._earlier = HostSet()
        self._snapshot: ClusterSnapshot | None = None
        self._evaluation: Evaluation | None = None
        self._running_hosts: RunningHosts | None = None
        self._looks = _Looks(clock)
        self._begun_at: float | None = None
        self._stopped = False
        asks_job = scope.job and scope.rules.operator.kind
        self._lookups = Lookups(self._read_job if asks_job else None, cluster.node_exists, clock=clock, draw=draw)
        pods = cluster.pods(scope.namespace, self._label_selector)
        nodes = cluster.nodes(scope.node_selector)
        self._pods = Reflector(pods, PODS, self._looks.note, clock=clock, draw=draw, metrics=metrics)
        self._nodes = Reflector(nodes, NODES, self._looks.note, clock=clock, draw=draw, metrics=metrics)
        self._audit = WatchAudit(
            cluster.pods(scope.namespace, self._label_selector),
            self._pods,
            clock=clock,
            store_restored=self._nodes.force_relist,
        )

    def resume(self, earlier: HostSet) -> None:
        """Keep the hosts that an earlier run of the daemon published, without a probe. Call this before :meth:`start`.

        Otherwise a host that is silent or under an advisory would count as new, and would be removed.
        """
        self._earlier = earlier

    def still_there(self, host: Host) -> bool:
        """Whether a process may still run on a host that is no longer published. True if that is not known."""
        latest, running = self._evaluation, self._running_hosts
        if latest is None:
            return True
        if running is None or running.selection is not latest.selection:
            running = self._running_hosts = RunningHosts(latest.selection)
        return host in running

    @property
    def evaluation(self) -> Evaluation | None:
        """The result of the latest :meth:`read`, None before the first; a new object for each."""
        return self._evaluation

    @property
    def nodes(self) -> Mapping[str, NodeView] | None:
        """The nodes by name at the latest :meth:`read`; None before the first, or while they cannot be read."""
        return None if self._snapshot is None else self._snapshot.nodes

    @property
    def job(self) -> JobView | None:
        """The object above the pods as it was last read; None if there is none, or if it is not read yet."""
        return self._lookups.job

    @property
    def job_settled(self) -> bool:
        """Whether the job was read, there is none, or the server refuses to show it."""
        return self._lookups.settled

    def start(self, changed: Callable[[], None]) -> None:
        """Start all watches, the lookups and the probe. Does nothing if called again, or after :meth:`stop`."""
        if self._stopped or self._begun_at is not None:
            return
        self._begun_at = self._clock.mono()
        self._looks.start(changed)
        self._metrics.follow("pods", lambda: self._pods.status.in_sync_at)
        self._metrics.follow("nodes", lambda: self._nodes.status.in_sync_at)
        self._metrics.count_warnings(self._warnings)
        if self._probe is not None:
            self._probe.start(self._looks.notify)
        self._lookups.start(self._looks.notify)
        for each in (self._pods, self._nodes, self._audit):
            each.start()

    def stop(self) -> None:
        """Ask all threads to end, and wait for them."""
        self._stopped = True
        for waiting in (self._pods, self._nodes, self._audit, self._lookups):
            waiting.begin_stop()  # stop all of them at the same time, because each may wait for the server
        self._looks.stop()
        if self._probe is not None:
            self._probe.stop()
        for each in (self._pods, self._nodes, self._audit, self._lookups):
            each.stop()

    def read(self) -> Observation | Unsettled:
        """Look now. Return :class:`Unsettled` until the pods, the nodes and the job are known, and until the first
        decision. The job delays this by :data:`JOB_TIMEOUT` seconds at most.
        """
        if self._begun_at is None:
            return Unsettled(self._where, "it has not been started")
        began = self._clock.mono()
        arrived = self._looks.begin()
        if not (self._pods.status.listed and self._nodes.status.listed):
            return self._not_listed()
        nodes = None if self._nodes.status.hidden else self._nodes.known()[0]
        snapshot = self._snapshot = ClusterSnapshot(self._pods.known()[0], nodes)
        if not self._lookups.settled and began < self._begun_at + JOB_TIMEOUT:
            self._looks.wake_at(self._begun_at + JOB_TIMEOUT)
            return Unsettled(self._where, "the job is being read")
        self._metrics.nodes_read.set(int(snapshot.nodes is not None))
        observation = self._look(began, snapshot, arrived)
        self._looks.end(self._clock.mono() - began)
        return observation

    def _look(self, now: float, snapshot: ClusterSnapshot, arrived: float | None) -> Observation | Unsettled:
        wall = self._clock.wall()
        selection = self._selector.select(wall, snapshot, node_exists=self._lookups.exists, job=self._lookups.job)
        self._lookups.set_missing(selection.missing)
        latest = self._evaluate(now, selection, arrived)
        damping = latest.damping
        self._looks.wake_at(damping.again_at)
        self._looks.wake_at(None if selection.again_at is None else now + max(0.0, selection.again_at - wall))
        if damping.observation is None:
            return Unsettled(self._where, latest.reason)
        doubt = self._doubt(now)
        seen = damping.observation
        return replace(seen, doubt=doubt) if doubt else seen

    def _evaluate(self, now: float, selection: Selection, arrived: float | None) -> Evaluation:
        """Decide what to publish."""
        last = self._evaluation
        results = self._probed(() if last is None else last.damping.to_probe, selection)
        state = DampingState(earlier=self._earlier) if last is None else last.damping.state
        facts = DampingFacts(selection, results, arrived)
        damping, reason = decide_published(now, state, facts, limits=self._limits)
        self._probed(damping.to_probe, selection)
        self._evaluation = Evaluation(selection, damping, reason)
        self._metrics.caused(damping.causes)
        if damping.relist:
            for each in (self._nodes, self._pods):
                each.force_relist("most hosts fell silent at once: listing again")
        return self._evaluation

    def _probed(self, wanted: Iterable[Host], selection: Selection) -> ProbeResults:
        """Return the results of the probe. Without a probe every host is admitted, for launchers that do not connect to
        hosts.
        """
        if self._probe is None:
            return NO_PROBE
        return self._probe.follow(wanted, there={verdict.pod.uid for verdict in selection.verdicts})

    def _not_listed(self) -> Unsettled:
        """Return why there is no first list yet. Raises :class:`SourceUnavailable` if requests for it fail."""
        for each in (self._pods.status, self._nodes.status):
            if each.problem and not each.listed:
                raise SourceUnavailable(self._where, each.problem)
        return Unsettled(self._where, "pods and nodes are being listed for the first time")

    def _doubt(self, now: float) -> str:
        for each in (self._pods, self._nodes):
            since = in_doubt_at(each.status)
            if since is not None and now >= since:
                return f"{each.where}: {each.status.problem}; keeping what was known of them"
            self._looks.wake_at(since)
        return ""

    def _warnings(self) -> Mapping[tuple[str, str], int]:
        latest = self._evaluation
        return warnings_of(() if latest is None else latest.selection.verdicts)

    def _label_selector(self) -> str:
        """Return the label selector of the pods. Raises :class:`ApiError` if it must be read from the object
        above them, and that fails.
        """
        operator, own = self._scope.rules.operator, self._scope.selector
        view = self._lookups.job
        if not own and not operator.labels and view is None:
            view = self._read_job()
        try:
            return selector_of(operator, job=self._scope.job, own=own, view=view)
        except UsageError as error:
            raise ApiError(Reason.FORBIDDEN, str(error)) from None

    def _read_job(self) -> JobView | None:
        operator = self._scope.rules.operator
        if not operator.kind:
            return None
        found = self._cluster.job(operator, namespace=self._scope.namespace, name=self._scope.job)
        try:
            return job_view(found, operator)
        except ValueError as error:
            raise ApiError(Reason.SERVER_ERROR, str(error)) from None


def in_doubt_at(status: WatchStatus) -> float | None:
    """Return when the known objects become doubtful (monotonic seconds); None if there is no problem."""
    if not status.problem or status.hidden or status.in_sync_at is None or status.problem_since is None:
        return None
    return status.problem_since + DOUBT_AFTER


class _Looks:
    """Decides when to look again: once for the changes of several threads, and not too often."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._arrived: float | None = None
        self._notified = False
        self._not_before = self._looked_at = clock.mono()
        self._debt = 0.0
        self._timer = Timer(self._notify_now, clock=clock)

    def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._timer.start()

    def stop(self) -> None:
        self._changed = lambda: None
        self._timer.stop()

    def note(self, news: bool) -> None:
        """Record a change: of objects if ``news``, else only of how well they are followed."""
        with self._lock:
            if news and self._arrived is None:
                self._arrived = self._clock.mono()
        self.notify()

    def notify(self) -> None:
        """Ask for a look, now or as soon as one is allowed."""
        with self._lock:
            due, notified = self._not_before, self._notified
        if notified:
            return
        if self._clock.mono() >= due:
            self._notify_now()
        else:
            self._timer.at(due)

    def wake_at(self, due: float | None) -> None:
        """Ask for a look at ``due`` (monotonic seconds); None asks for none."""
        if due is not None:
            self._timer.at(due)

    def begin(self) -> float | None:
        """Begin a look. Return when the oldest change since the last look came (monotonic seconds), None without
        one.
        """
        with self._lock:
            arrived, self._arrived = self._arrived, None
            self._notified = False
        return arrived

    def end(self, took: float) -> None:
        """End a look that took ``took`` seconds. If looks took much time, the next one is delayed."""
        with self._lock:
            now = self._clock.mono()
            self._debt = max(0.0, self._debt - CPU_SHARE * (now - self._looked_at)) + took
            self._looked_at = now
            self._not_before = now + min(MAX_PAUSE, max(0.0, self._debt - BURST) / CPU_SHARE)

    def _notify_now(self) -> None:
        with self._lock:
            if self._notified:
                return
            self._notified = True
        self._changed()

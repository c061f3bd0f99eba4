"""Hosts from the pods of a cluster."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from discover.common.alarm import Alarm
from discover.common.source import Observation, Unsettled
from discover.kube.lookups import Lookups
from discover.kube.reflector import NODES, PODS, Reflector, WatchStatus, Witness
from discover.kube.transport import Collection, Failure, RequestFailed
from discover.kube.watch_audit import WatchAudit
from discover.publishing.survivor import RunningHosts
from discover.selection.damping import DampingLimits, DampingResult, DampingState, Facts, decide_published, still_holds
from discover.selection.explain import Row, explain, warnings
from discover.selection.objects import ClusterEvent, ClusterSnapshot, NodeView, PodView
from discover.selection.operators import HostRules, JobView, job_view, selector_of
from discover.selection.selection import Selection, Selector, groups_of
from discover.sources.admission_probe import Admission
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import SourceUnavailable, UsageError
from hvd_elastic_ext.core.hosts import Host, HostSet

DOUBT_AFTER: Final = 10.0
"""Seconds without status after which what is known is called doubtful. It goes on to hold."""

CPU_SHARE: Final = 0.15
"""Of one core, for looking. Changes in great number are looked at together."""

BURST: Final = 0.5
"""Seconds of looking that may be done at once before that share counts: a few hundred removals, one by one."""

MAX_REST: Final = 0.1
"""Seconds from one look to the next."""

JOB_TIMEOUT: Final = 5.0
"""Seconds that the first look waits for the job to be read."""


class Cluster(Protocol):
    """An API server, as :class:`discover.kube.client.Cluster` reaches it."""

    @property
    def host(self) -> str: ...

    def pods(self, namespace: str, selector: Callable[[], str]) -> Collection:
        """``selector`` is asked for with each request, and may raise :class:`RequestFailed`."""

    def nodes(self, selector: str) -> Collection: ...

    def job(self, resource: tuple[str, str, str], *, namespace: str, name: str) -> Mapping[str, Any]:
        """Raises :class:`RequestFailed`."""

    def node_exists(self, name: str) -> bool:
        """Raises :class:`RequestFailed`."""


class Counters(Witness, Protocol):
    """Who counts what a cluster does; :class:`discover.common.metrics.ClusterMetrics` is one."""

    def follow(self, resource: str, in_sync_at: Callable[[], float | None]) -> None: ...

    def nodes_read(self, may: bool) -> None: ...

    def caused(self, causes: Iterable[tuple[str, float]]) -> None: ...

    def warnings(self, counts: Mapping[tuple[str, str], int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScope:
    """Whose pods they are and how they become hosts. ``selector`` is the user's own, "" if there is none."""

    namespace: str
    job: str
    rules: HostRules
    selector: str = ""
    node_selector: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the latest look came to, and what of."""

    facts: Facts
    damping: DampingResult
    reason: str

    @property
    def selection(self) -> Selection:
        return self.facts.selection


class KubernetesSource:
    """Follows the pods of one job and the nodes under them.

    ``selector`` judges, ``admission`` probes, ``draw`` gives random numbers from [0, 1). Nothing is seen before
    :meth:`start`.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: PodScope,
        *,
        selector: Selector,
        admission: Admission,
        counters: Counters,
        clock: Clock,
        draw: Callable[[], float],
        limits: DampingLimits,
    ) -> None:
        self._wanted = wanted
        self._cluster = cluster
        self._where = f"pods of namespace {wanted.namespace} at {cluster.host}"
        self._selector = selector
        self._counters = counters
        self._clock = clock
        self._limits = limits
        self._earlier: frozenset[str] = frozenset()
        self._snapshot = ClusterSnapshot()
        self._picture: Evaluation | None = None
        self._living: RunningHosts | None = None
        self._mailbox = _EventQueue(clock)
        self._begun_at: float | None = None
        self._stopped = False
        self._admission = admission
        asks_job = wanted.job and wanted.rules.operator.resource is not None
        self._inquiries = Lookups(self._read_job if asks_job else None, cluster.node_exists, clock=clock, draw=draw)
        pods = cluster.pods(wanted.namespace, self._label_selector)
        self._pods: Reflector[PodView] = Reflector(
            pods, PODS, self._mailbox.put, clock=clock, draw=draw, witness=counters
        )
        self._nodes: Reflector[NodeView] = Reflector(
            cluster.nodes(wanted.node_selector), NODES, self._mailbox.put, clock=clock, draw=draw, witness=counters
        )
        beside = cluster.pods(wanted.namespace, self._label_selector)
        self._recheck = WatchAudit(beside, self._pods, clock=clock, set_back=self._nodes.force_relist)

    def resume(self, earlier: HostSet) -> None:
        """Say before the first look what an earlier life of the daemon published: that is kept without being probed."""
        self._earlier = frozenset(earlier.names)

    def explain(self) -> Sequence[Row]:
        """Say what became of each pod in the last :meth:`read`."""
        picture = self._picture
        return () if picture is None else explain(picture.selection, picture.damping)

    def still_there(self, host: Host) -> bool:
        """Whether something may still run on a host that is published no more. What is not known may."""
        picture, living = self._picture, self._living
        if picture is None:
            return True
        if living is None or living.selection is not picture.selection:
            living = self._living = RunningHosts(picture.selection)
        return host in living

    @property
    def picture(self) -> Evaluation | None:
        """What the latest :meth:`read` came to, None before there is any; another object after each."""
        return self._picture

    @property
    def nodes(self) -> Mapping[str, NodeView] | None:
        return self._snapshot.nodes

    @property
    def job(self) -> JobView | None:
        return self._inquiries.job

    @property
    def job_settled(self) -> bool:
        """Whether ``job`` is all that is to be had for now: it was read, there is none, or it may not be read."""
        return self._inquiries.settled

    def start(self, changed: Callable[[], None]) -> None:
        if self._stopped or self._begun_at is not None:
            return
        self._begun_at = self._clock.mono()
        self._mailbox.start(changed)
        self._counters.follow("pods", lambda: self._pods.status.in_sync_at)
        self._counters.follow("nodes", lambda: self._nodes.status.in_sync_at)
        self._admission.start(self._mailbox.nudge)
        self._inquiries.start(self._mailbox.nudge)
        for each in (self._pods, self._nodes, self._recheck):
            each.start()

    def stop(self) -> None:
        self._stopped = True
        for waiting in (self._pods, self._nodes, self._recheck, self._inquiries):
            waiting.hurry()  # all at once: each may wait for the server
        for each in (self._mailbox, self._admission, self._pods, self._nodes, self._recheck, self._inquiries):
            each.stop()

    def read(self) -> Observation | Unsettled:
        if self._begun_at is None:
            return Unsettled(self._where, "nobody looks yet")
        began = self._clock.mono()
        batches, arrived = self._mailbox.take()
        try:
            if batches:
                self._snapshot = self._snapshot.apply(event for batch in batches for event in batch)
        except BaseException:
            self._mailbox.put_back(batches)  # nobody tells it again
            raise
        if not self._snapshot.whole:
            return self._not_yet()
        if not self._inquiries.settled and began < self._begun_at + JOB_TIMEOUT:
            self._mailbox.wake_at(self._begun_at + JOB_TIMEOUT)
            return Unsettled(self._where, "the job is being read")
        self._counters.nodes_read(not self._snapshot.nodes_hidden)
        observation = self._look(began, arrived, job=self._inquiries.job, exists=self._inquiries.exists)
        self._mailbox.looked(self._clock.mono() - began)
        return observation

    def _look(
        self, now: float, arrived: float | None, *, job: JobView | None, exists: Mapping[str, bool]
    ) -> Observation | Unsettled:
        wall = self._clock.wall()
        selection = self._selector.select(wall, self._snapshot, node_exists=exists, job=job)
        self._inquiries.set_missing(selection.missing)
        picture = self._hold(now, selection, arrived)
        damping = picture.damping
        self._mailbox.wake_at(damping.again_at)
        self._mailbox.wake_at(None if selection.again_at is None else now + max(0.0, selection.again_at - wall))
        if damping.observation is None:
            return Unsettled(self._where, picture.reason)
        doubt = self._doubt(now)
        return (
            Observation(damping.observation.hosts, damping.observation.departing, doubt)
            if doubt
            else damping.observation
        )

    def _hold(self, now: float, selection: Selection, arrived: float | None) -> Evaluation:
        """Decide what is published of it. Most news change nothing of that: then what was decided last stands."""
        last, there = self._picture, groups_of(selection).keys.keys()
        answers = self._admission.follow(() if last is None else last.damping.wanted, there=there)
        facts = Facts(selection, answers, arrived)
        if last is not None and still_holds(now, last.damping, of=last.facts, facts=facts):
            self._picture = Evaluation(facts, last.damping, last.reason)
            return self._picture
        damping, reason = decide_published(
            now, DampingState(earlier=self._earlier) if last is None else last.damping.held, facts, limits=self._limits
        )
        self._admission.follow(damping.wanted, there=there)
        self._picture = Evaluation(facts, damping, reason)
        self._counters.caused(damping.causes)
        self._counters.warnings(warnings(selection))
        if damping.relist:
            for each in (self._nodes, self._pods):
                each.force_relist("most hosts fell silent at once: looking again")
        return self._picture

    def _not_yet(self) -> Unsettled:
        """Raises :class:`SourceUnavailable` if the server is known not to answer."""
        for each in (self._pods.status, self._nodes.status):
            if each.problem and not each.listed:
                raise SourceUnavailable(self._where, each.problem)
        return Unsettled(self._where, "pods and nodes are being listed for the first time")

    def _doubt(self, now: float) -> str:
        for each in (self._pods, self._nodes):
            since = in_doubt_at(each.status)
            if since is not None and now >= since:
                return f"{each.where}: {each.status.problem}; keeping what was known of them"
            self._mailbox.wake_at(since)
        return ""

    def _label_selector(self) -> str:
        """Raises :class:`RequestFailed`: of a StatefulSet only itself knows."""
        operator, own = self._wanted.rules.operator, self._wanted.selector
        view = self._inquiries.job
        if not own and not operator.selector and view is None:
            view = self._read_job()
        try:
            return selector_of(operator, job=self._wanted.job, own=own, view=view)
        except UsageError as error:
            raise RequestFailed(Failure.ANSWERED, str(error), code=403) from None

    def _read_job(self) -> JobView | None:
        operator = self._wanted.rules.operator
        if operator.resource is None:
            return None
        found = self._cluster.job(operator.resource, namespace=self._wanted.namespace, name=self._wanted.job)
        try:
            return job_view(found, operator)
        except ValueError as error:
            raise RequestFailed(Failure.UNREADABLE, str(error)) from None


def in_doubt_at(status: WatchStatus) -> float | None:
    """When what is known becomes doubtful, in monotonic seconds; None if nothing is wrong."""
    if not status.problem or status.hidden or status.in_sync_at is None or status.problem_since is None:
        return None
    return status.problem_since + DOUBT_AFTER


class _EventQueue:
    """News from several threads for the one that reads, which is called once, however many there are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._batches: deque[tuple[float, tuple[ClusterEvent, ...]]] = deque()
        self._called = False
        self._not_before = self._looked_at = clock.mono()
        self._debt = 0.0
        self._alarm = Alarm(self._call, clock=clock)

    def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._alarm.start()

    def stop(self) -> None:
        self._changed = lambda: None
        self._alarm.stop()

    def put(self, batch: tuple[ClusterEvent, ...]) -> None:
        with self._lock:
            self._batches.append((self._clock.mono(), batch))
        self.nudge()

    def nudge(self) -> None:
        """There is something to look at."""
        with self._lock:
            due, called = self._not_before, self._called
        if called:
            return
        if self._clock.mono() >= due:
            self._call()
        else:
            self._alarm.at(due)

    def wake_at(self, due: float | None) -> None:
        """There will be something to look at then (monotonic seconds)."""
        if due is not None:
            self._alarm.at(due)

    def take(self) -> tuple[list[tuple[ClusterEvent, ...]], float | None]:
        """All batches, in order, and when the oldest came; None if there is none."""
        with self._lock:
            taken = list(self._batches)
            self._batches.clear()
            self._called = False
        return [batch for _, batch in taken], min((at for at, batch in taken if batch), default=None)

    def put_back(self, batches: Iterable[tuple[ClusterEvent, ...]]) -> None:
        """They were taken, and could not be taken in: the next look has them again, before what came since."""
        now = self._clock.mono()
        with self._lock:
            self._batches.extendleft((now, batch) for batch in reversed(tuple(batches)))

    def looked(self, took: float) -> None:
        """A look took so many seconds. After many, the next is not to follow at once."""
        with self._lock:
            now = self._clock.mono()
            self._debt = max(0.0, self._debt - CPU_SHARE * (now - self._looked_at)) + took
            self._looked_at = now
            self._not_before = now + min(MAX_REST, max(0.0, self._debt - BURST) / CPU_SHARE)

    def _call(self) -> None:
        with self._lock:
            if self._called:
                return
            self._called = True
        self._changed()

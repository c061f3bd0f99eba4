"""Makes the parts of a Kubernetes source. The client is imported here, and only when needed."""

from __future__ import annotations

import gc
import os
import random
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from discover.actions.cluster_view import ClusterView
from discover.actions.event_policy import PodNote
from discover.actions.events import KINDS, EventObject, EventWriter
from discover.actions.init_container_check import InitContainerCheck
from discover.actions.reaper import ReadJob, Reaper
from discover.actions.sidecar_exit import ContainerWatch, End
from discover.app.settings import KubernetesSettings
from discover.common.metrics import ClusterMetrics, WriteMetrics
from discover.kube.transport import NOT_FOUND, RequestFailed, Sender, object_path
from discover.publishing.configmap import ConfigMap, where_of
from discover.publishing.lease import Lease, LeaseLimits
from discover.selection.damping import DampingLimits
from discover.selection.objects import Key
from discover.selection.operators import JobView, job_view
from discover.selection.selection import Selector
from discover.selection.signal_config import with_rules
from discover.selection.signal_table import BUILT_IN
from discover.selection.signals import Table
from discover.sources.admission_probe import Admission, NoProbe, TcpProbe
from discover.sources.pods import Evaluation, KubernetesSource, PodScope
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.config_file import read_config

if TYPE_CHECKING:
    from discover.kube.client import Cluster

GENERATION: Final = 50_000
"""Objects made before Python's collector looks for cycles."""


def kubernetes_source(
    settings: KubernetesSettings,
    *,
    metrics: ClusterMetrics,
    clock: Clock,
) -> KubernetesSource:
    """Make the source.

    Raises :class:`UsageError` without a way to a cluster, or for a bad file of signals.
    """
    table = _table(settings)
    cluster = _cluster(settings)
    wanted = PodScope(
        namespace=settings.namespace or cluster.namespace,
        job=settings.job,
        rules=settings.rules,
        selector=settings.selector,
        node_selector=settings.node_selector,
    )
    admission: Admission = NoProbe() if settings.probe is None else TcpProbe(settings.probe, clock=clock)
    return KubernetesSource(
        cluster,
        wanted,
        selector=Selector(wanted.rules, table),
        admission=admission,
        metrics=metrics,
        clock=clock,
        draw=random.random,
        limits=DampingLimits(settle=settings.settle),
    )


def own_pod_watch(
    settings: KubernetesSettings,
    *,
    metrics: ClusterMetrics,
    clock: Clock,
    end: End,
) -> ContainerWatch | InitContainerCheck | None:
    """Make what watches the daemon's own pod, if it runs in one, and ends the daemon. Raises :class:`UsageError`."""
    name = _own_pod(settings)
    if not settings.exit_with and not name:
        return None
    cluster, name = _cluster(settings), name or socket.gethostname()
    space = cluster.namespace
    if not settings.exit_with:
        return InitContainerCheck(lambda: cluster.pod_now(space, name), f"own pod {space}/{name}", end=end, clock=clock)
    own = cluster.pod(space, name)
    return ContainerWatch(own, settings.exit_with, end=end, clock=clock, draw=random.random, metrics=metrics)


def configmap(
    settings: KubernetesSettings,
    name: str,
    source: KubernetesSource,
    *,
    life: str,
    metrics: WriteMetrics,
    clock: Clock,
) -> ConfigMap:
    """Make what keeps the hosts in the ConfigMap ``name``. ``life`` names this run. Raises :class:`UsageError`."""
    cluster = _cluster(settings)
    space, sender = settings.namespace or cluster.namespace, cluster.sender()
    lease = Lease(
        sender,
        namespace=space,
        name=name,
        me=f"{socket.gethostname()}_{life}",
        of=where_of(space, name),
        clock=clock,
        limits=LeaseLimits(),
    )
    metrics.configmap()
    return ConfigMap(
        sender,
        lease,
        namespace=space,
        name=name,
        alive=source.still_there,
        clock=clock,
        wrote=metrics.configmap_writes.inc,
    )


def writers(
    settings: KubernetesSettings,
    source: KubernetesSource,
    *,
    stands_by: Callable[[], bool],
    metrics: WriteMetrics,
    clock: Clock,
) -> list[EventWriter | Reaper]:
    """Make what writes Events and deletes pods, as far as that is wanted. ``stands_by``: another daemon does both now.

    Raises :class:`UsageError`.
    """
    made: list[EventWriter | Reaper] = []
    if not settings.events and not settings.reap:
        return made
    cluster, own = _cluster(settings), _own_pod(settings)
    tell: Callable[[PodNote], None] | None = None
    advice = settings.rules.operator.advice
    if settings.events:
        teller = EventWriter(
            cluster.sender(),
            _Views(source, advice, stands_by=stands_by),
            lambda: _event_object(cluster, source, settings, own),
            instance=socket.gethostname(),
            metrics=metrics,
            clock=clock,
            draw=random.random,
        )
        made.append(teller)
        tell = teller.reaped
    if settings.reap:
        reaper = Reaper(
            cluster.sender(),
            # While the job may still become readable, its pods are not guessed by their labels.
            _Views(source, advice, stands_by=lambda: stands_by() or not source.job_settled),
            _table(settings),
            job=_job_reader(cluster, settings),
            own=Key(cluster.namespace, own) if own else None,
            reaped=tell,
            metrics=metrics,
            clock=clock,
            draw=random.random,
        )
        made.append(reaper)
    return made


class _Views:
    """The latest look of ``source``: the same object until the next look; None while nothing is to be done. For one
    thread.
    """

    def __init__(self, source: KubernetesSource, advice: str, *, stands_by: Callable[[], bool]) -> None:
        self._source = source
        self._advice = advice
        self._stands_by = stands_by
        self._latest: Evaluation | None = None
        self._view: ClusterView | None = None

    def __call__(self) -> ClusterView | None:
        latest = self._source.evaluation
        if latest is None or latest.damping.observation is None or self._stands_by():
            return None
        if latest is not self._latest:
            self._latest = latest
            self._view = ClusterView(
                verdicts=latest.selection.verdicts,
                published=latest.damping.state.published,
                notes=latest.damping.notes,
                nodes=self._source.nodes,
                job=self._source.job,
                advice=self._advice,
            )
        return self._view


def _job_reader(cluster: Cluster, settings: KubernetesSettings) -> ReadJob:
    operator, space = settings.rules.operator, settings.namespace or cluster.namespace

    def read(sender: Sender) -> JobView | None:
        if operator.resource is None or not settings.job:
            return None
        group, version, plural = operator.resource
        try:
            return job_view(
                sender.send("GET", object_path(f"{group}/{version}", space, plural, settings.job)), operator
            )
        except ValueError:
            return None

    return read


def _event_object(
    cluster: Cluster, source: KubernetesSource, settings: KubernetesSettings, own: str
) -> EventObject | None:
    """The job, where it may be read, else the daemon's own pod. Raises :class:`RequestFailed`."""
    job, resource = source.job, settings.rules.operator.resource
    if job is not None and job.uid and resource is not None:
        group, version, plural = resource
        space = settings.namespace or cluster.namespace
        return EventObject(f"{group}/{version}", KINDS[plural], space, settings.job, job.uid)
    if not own:
        return None
    try:
        uid = (cluster.pod_now(cluster.namespace, own).get("metadata") or {}).get("uid")
    except RequestFailed as error:
        if error.code == NOT_FOUND:
            return None
        raise
    return EventObject("v1", "Pod", cluster.namespace, own, str(uid)) if uid else None


def _own_pod(settings: KubernetesSettings) -> str:
    """The name of the pod that this runs in; "" without one."""
    elsewhere = settings.kubeconfig is not None or os.environ.get("KUBECONFIG")
    in_a_pod = not elsewhere and os.environ.get("KUBERNETES_SERVICE_HOST")
    return settings.own_pod or (socket.gethostname() if in_a_pod else "")


def _table(settings: KubernetesSettings) -> Table:
    if settings.signals is None:
        return BUILT_IN
    rules = read_config(settings.signals, option="--signals")
    return with_rules(BUILT_IN, rules, where=f"--signals {settings.signals}")


def _cluster(settings: KubernetesSettings) -> Cluster:
    try:
        from discover.kube.client import Cluster
        from hvd_elastic_ext.io.kube_access import Access
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3"):
            raise
        remedy = "pip install 'hvd-elastic-ext[kubernetes]'"
        raise UsageError(f"--source kubernetes needs the package 'kubernetes'; install it: {remedy}") from None
    # The client is a quarter of a million objects that live as long as the process; lists and watches make no cycles.
    gc.freeze()
    gc.set_threshold(GENERATION)
    return Cluster(Access.found(settings.kubeconfig, os.environ))

"""Makes the parts of a Kubernetes source. The client is imported here, and only when needed."""

from __future__ import annotations

import gc
import os
import random
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from discover.actions.cluster_view import ClusterView
from discover.actions.event_policy import PodNote
from discover.actions.events import KINDS, Context, EventObject, EventWriter
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
    environ: Mapping[str, str] = os.environ,
) -> KubernetesSource:
    """Make the source.

    Raises :class:`UsageError` without a way to a cluster, or for a bad file of signals.
    """
    table = _table(settings)
    cluster = _cluster(settings, environ)
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
    environ: Mapping[str, str] = os.environ,
) -> ContainerWatch | InitContainerCheck | None:
    """Make what watches the daemon's own pod, if it runs in one, and ends the daemon. Raises :class:`UsageError`."""
    name = _own_pod(settings, environ)
    if not settings.exit_with and not name:
        return None
    cluster, name = _cluster(settings, environ), name or socket.gethostname()
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
    environ: Mapping[str, str] = os.environ,
) -> ConfigMap:
    """Make what keeps the hosts in the ConfigMap ``name``. ``life`` names this run. Raises :class:`UsageError`."""
    cluster = _cluster(settings, environ)
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
        sender, lease, namespace=space, name=name, alive=source.still_there, clock=clock, wrote=metrics.wrote
    )


def writers(
    settings: KubernetesSettings,
    source: KubernetesSource,
    *,
    stands_by: Callable[[], bool],
    metrics: WriteMetrics,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> list[EventWriter | Reaper]:
    """Make what writes Events and deletes pods, as far as that is wanted. ``stands_by``: another daemon does both now.

    Raises :class:`UsageError`.
    """
    made: list[EventWriter | Reaper] = []
    if not settings.events and not settings.reap:
        return made
    cluster, own = _cluster(settings, environ), _own_pod(settings, environ)
    tell: Callable[[PodNote], None] = _untold
    advice = settings.rules.operator.advice
    if settings.events:
        context = Context(
            _Views(source, advice, stands_by=stands_by),
            _EventObject(cluster, source, settings, own),
            socket.gethostname(),
        )
        teller = EventWriter(cluster.sender(), context, metrics=metrics, clock=clock, draw=random.random)
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


def _untold(_item: PodNote) -> None:
    """The log is enough."""


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


class _EventObject:
    """What Events are about: the job, where it may be read, else the daemon's own pod."""

    def __init__(self, cluster: Cluster, source: KubernetesSource, settings: KubernetesSettings, own: str) -> None:
        self._cluster = cluster
        self._source = source
        self._settings = settings
        self._own = own

    def __call__(self) -> EventObject | None:
        """Raises :class:`RequestFailed`."""
        job, resource = self._source.job, self._settings.rules.operator.resource
        if job is not None and job.uid and resource is not None:
            group, version, plural = resource
            space = self._settings.namespace or self._cluster.namespace
            return EventObject(f"{group}/{version}", KINDS[plural], space, self._settings.job, job.uid)
        if not self._own:
            return None
        space = self._cluster.namespace
        try:
            uid = (self._cluster.pod_now(space, self._own).get("metadata") or {}).get("uid")
        except RequestFailed as error:
            if error.answered(NOT_FOUND):
                return None
            raise
        return EventObject("v1", "Pod", space, self._own, str(uid)) if uid else None


def _own_pod(settings: KubernetesSettings, environ: Mapping[str, str]) -> str:
    """The name of the pod that this runs in; "" without one."""
    elsewhere = settings.kubeconfig is not None or environ.get("KUBECONFIG")
    in_a_pod = not elsewhere and environ.get("KUBERNETES_SERVICE_HOST")
    return settings.own_pod or (socket.gethostname() if in_a_pod else "")


def _table(settings: KubernetesSettings) -> Table:
    """Raises :class:`UsageError`."""
    if settings.signals is None:
        return BUILT_IN
    rules = read_config(settings.signals, option="--signals")
    return with_rules(BUILT_IN, rules, where=f"--signals {settings.signals}")


def _cluster(settings: KubernetesSettings, environ: Mapping[str, str]) -> Cluster:
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
    return Cluster(Access.found(settings.kubeconfig, environ))

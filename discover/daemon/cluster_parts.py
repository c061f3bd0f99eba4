"""Makes the parts of a Kubernetes source. It imports the client only when needed."""

from __future__ import annotations

import gc
import os
import random
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from discover.daemon.admission_probe import TcpProbe
from discover.daemon.cluster_source import Evaluation, KubernetesSource, PodScope
from discover.daemon.own_pod import ContainerWatch, End, InitContainerCheck
from discover.daemon.settings import KubernetesSettings
from discover.metrics import Metrics
from discover.pods.operators import JobView, job_view
from discover.pods.views import Key
from discover.reap.cluster_view import ClusterView
from discover.reap.events import EventObject, EventWriter
from discover.reap.reaper import Reaper
from discover.verdicts.damping import DampingLimits
from discover.verdicts.signal_config import with_rules
from discover.verdicts.signals import BUILT_IN, Table
from discover.verdicts.verdicts import Selector
from discover.watch.collection import Sender
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.config_file import read_config
from hvd_elastic_ext.io.kube.errors import ApiError, Reason, client_needed
from hvd_elastic_ext.io.kube.paths import path_of

if TYPE_CHECKING:
    from discover.watch.cluster import Cluster

GENERATION: Final = 50_000
"""So many new objects start a run of Python's garbage collector."""


class KubeParts:
    """The parts of one daemon that use a cluster: its source, the parts that read its own pod, and those that write.
    They use the same API server.

    Raises :class:`UsageError` if no access to a cluster is configured, or if the file of signals is bad.
    """

    def __init__(self, settings: KubernetesSettings, *, metrics: Metrics, clock: Clock) -> None:
        self._settings = settings
        self._table = _table(settings)
        self._cluster = _cluster(settings)
        self._namespace = settings.namespace or self._cluster.namespace
        self._own = _own_pod(settings)
        self._metrics = metrics
        self._clock = clock
        scope = PodScope(
            namespace=self._namespace,
            job=settings.job,
            rules=settings.rules,
            selector=settings.selector,
            node_selector=settings.node_selector,
        )
        self.source = KubernetesSource(
            self._cluster,
            scope,
            selector=Selector(scope.rules, self._table),
            probe=None if settings.probe is None else TcpProbe(settings.probe, clock=clock),
            metrics=metrics.for_cluster(),
            clock=clock,
            draw=random.random,
            limits=DampingLimits(settle=settings.settle),
        )

    def own_pod_watch(self, end: End) -> list[ContainerWatch | InitContainerCheck]:
        """Return the part that watches the daemon's own pod and calls ``end``; none if it does not run in a pod."""
        cluster, space, container = self._cluster, self._cluster.namespace, self._settings.exit_with
        if container:
            pod = cluster.pod(space, self._own or socket.gethostname())
            metrics = self._metrics.for_cluster()
            return [ContainerWatch(pod, container, end=end, clock=self._clock, draw=random.random, metrics=metrics)]
        if self._own:
            where = f"own pod {space}/{self._own}"
            return [InitContainerCheck(lambda: cluster.pod_now(space, self._own), where, end=end, clock=self._clock)]
        return []

    def writers(self) -> list[EventWriter | Reaper]:
        """Return the parts that write Events and delete pods, as the settings ask for."""
        made: list[EventWriter | Reaper] = []
        metrics = self._metrics.for_writes()
        advice = self._settings.rules.operator.advice
        if self._settings.events:
            events = EventWriter(
                self._cluster.sender(),
                ViewOf(self.source, advice),
                self.event_object,
                instance=socket.gethostname(),
                metrics=metrics,
                clock=self._clock,
                draw=random.random,
            )
            made.append(events)
        if self._settings.reap:
            reaper = Reaper(
                self._cluster.sender(),
                # Delete no pod while the job may still become readable: labels alone do not identify its pods.
                ViewOf(self.source, advice, only_if=lambda: self.source.job_settled),
                self._table,
                job=self._read_job,
                own=Key(self._cluster.namespace, self._own) if self._own else None,
                metrics=metrics,
                clock=self._clock,
                draw=random.random,
            )
            made.append(reaper)
        return made

    def event_object(self) -> EventObject | None:
        """Return the object that Events are about: the job if it can be read, else the daemon's own pod, else None.

        Raises :class:`ApiError`.
        """
        job, operator = self.source.job, self._settings.rules.operator
        if job is not None and job.uid and operator.kind:
            return EventObject(operator.api_version, operator.kind, self._namespace, self._settings.job, job.uid)
        if not self._own:
            return None
        space = self._cluster.namespace
        try:
            uid = (self._cluster.pod_now(space, self._own).get("metadata") or {}).get("uid")
        except ApiError as error:
            if error.reason is Reason.NOT_FOUND:
                return None
            raise
        return EventObject("v1", "Pod", space, self._own, str(uid)) if uid else None

    def _read_job(self, sender: Sender) -> JobView | None:
        """Read the job now. Raises :class:`ApiError`."""
        operator = self._settings.rules.operator
        if not operator.kind or not self._settings.job:
            return None
        path = path_of(operator.api_version, operator.plural, self._namespace, self._settings.job)
        try:
            return job_view(sender.send("GET", path), operator)
        except ValueError:
            return None


class ViewOf:
    """Returns the latest look of ``source``: the same object until the next look. Returns None before the first
    observation, and while ``only_if`` returns False. For one thread.
    """

    def __init__(self, source: KubernetesSource, advice: str, *, only_if: Callable[[], bool] = lambda: True) -> None:
        self._source = source
        self._advice = advice
        self._only_if = only_if
        self._latest: Evaluation | None = None
        self._view: ClusterView | None = None

    def __call__(self) -> ClusterView | None:
        latest = self._source.evaluation
        if latest is None or latest.damping.observation is None or not self._only_if():
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


def _own_pod(settings: KubernetesSettings) -> str:
    """Return the name of the pod that the daemon runs in; "" outside a cluster."""
    elsewhere = settings.kubeconfig is not None or os.environ.get("KUBECONFIG")
    in_a_pod = not elsewhere and os.environ.get("KUBERNETES_SERVICE_HOST")
    return settings.own_pod or (socket.gethostname() if in_a_pod else "")


def _table(settings: KubernetesSettings) -> Table:
    if settings.signals is None:
        return BUILT_IN
    rules = read_config(settings.signals, option="--signals")
    return with_rules(BUILT_IN, rules, where=f"--signals {settings.signals}")


def _cluster(settings: KubernetesSettings) -> Cluster:
    with client_needed("--source kubernetes"):
        from discover.watch.cluster import Cluster
        from hvd_elastic_ext.io.kube.access import Access
    # The client has about 250,000 objects that live as long as the process. Lists and watches make no cycles.
    gc.freeze()
    gc.set_threshold(GENERATION)
    return Cluster(Access.found(settings.kubeconfig, os.environ))

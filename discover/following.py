"""A Kubernetes source, put together: which part gets which. The client is loaded here, and only when it is wanted."""

from __future__ import annotations

import gc
import os
import random
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from discover.admission import Admission, TcpProbe, Unprobed
from discover.companion import Companion, End
from discover.holds import HoldLimits
from discover.metrics import ClusterMetrics
from discover.placement import PlaceCheck
from discover.selection import Selector
from discover.settings import KubernetesSettings
from discover.signal_rules import with_rules
from discover.signal_table import BUILT_IN
from discover.sources.cluster import KubernetesSource, Wanted
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.edges.configfile import read_config

if TYPE_CHECKING:
    from discover.sources.kubernetes import Cluster

GENERATION: Final = 50_000
"""Objects made before Python's collector looks for cycles among them."""


def kubernetes_source(
    settings: KubernetesSettings,
    *,
    metrics: ClusterMetrics,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> KubernetesSource:
    """Make the source.

    Raises :class:`UsageError` if there is no way to a cluster, or a file of signals is none.
    """
    table = BUILT_IN
    if settings.signals is not None:
        rules = read_config(settings.signals, option="--signals")
        table = with_rules(table, rules, where=f"--signals {settings.signals}")
    cluster = _cluster(settings, environ)
    wanted = Wanted(
        namespace=settings.namespace or cluster.namespace,
        job=settings.job,
        rules=settings.rules,
        selector=settings.selector,
        node_selector=settings.node_selector,
    )
    admission: Admission = Unprobed() if settings.probe is None else TcpProbe(settings.probe, clock=clock)
    return KubernetesSource(
        cluster,
        wanted,
        selector=Selector(wanted.rules, table),
        admission=admission,
        counters=metrics,
        clock=clock,
        draw=random.random,
        limits=HoldLimits(settle=settings.settle),
    )


def companion(
    settings: KubernetesSettings,
    *,
    metrics: ClusterMetrics,
    clock: Clock,
    end: End,
    environ: Mapping[str, str] = os.environ,
) -> Companion | PlaceCheck | None:
    """Make what looks at the daemon's own pod, if it runs in one, and ends it in due time.

    Raises :class:`UsageError`.
    """
    in_a_pod = settings.kubeconfig is None and environ.get("KUBERNETES_SERVICE_HOST")
    if not (settings.exit_with or settings.own_pod or in_a_pod):
        return None
    cluster, name = _cluster(settings, environ), settings.own_pod or socket.gethostname()
    space = cluster.namespace
    if not settings.exit_with:
        return PlaceCheck(lambda: cluster.pod_now(space, name), f"own pod {space}/{name}", end=end, clock=clock)
    own = cluster.pod(space, name)
    return Companion(own, settings.exit_with, end=end, clock=clock, draw=random.random, witness=metrics)


def _cluster(settings: KubernetesSettings, environ: Mapping[str, str]) -> Cluster:
    try:
        from discover.sources.kubernetes import Access, Cluster
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3"):
            raise
        remedy = "pip install 'hvd-elastic-ext[kubernetes]'"
        raise UsageError(f"--source kubernetes needs the package 'kubernetes'; install it: {remedy}") from None
    # The client is a quarter of a million objects, which live as long as we do and need no looking through again and
    # again; what comes of lists and watches has no cycles.
    gc.freeze()
    gc.set_threshold(GENERATION)
    return Cluster(Access.found(settings.kubeconfig, environ))

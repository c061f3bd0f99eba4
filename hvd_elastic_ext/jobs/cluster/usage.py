"""Asks a cluster's metrics server what the pods of a job use."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.io.kube.paths import version_path
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.cluster.changes import pods_of, root_of
from hvd_elastic_ext.jobs.reading.usage import PodUsage, used
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL

METRICS: Final = "metrics.k8s.io/v1beta1"


def of_job(cluster: Cluster, name: str = "") -> list[PodUsage]:
    """Return the resource usage of each pod of a job, or of all jobs. Raises :class:`UsageError` for a job that does
    not exist, and :class:`Permanent` if the cluster has no metrics server."""
    root = root_of(cluster, name) if name else None
    if cluster.read(version_path(METRICS)) is None:
        raise Permanent(
            f"this cluster has no metrics server ({METRICS}), so the usage of pods is unknown; ask an administrator"
        )
    pods = cluster.listed("v1", "pods", JOB_LABEL) if root is None else pods_of(cluster, root)
    # Of a job that was made by hand, pods may lack the label.
    labels = JOB_LABEL if all(JOB_LABEL in (each["metadata"].get("labels") or {}) for each in pods) else ""
    return used(pods, cluster.listed(METRICS, "pods", labels))

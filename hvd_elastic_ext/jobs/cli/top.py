"""``hvd-elastic top``: what the pods of a job use of processors and memory, beside what they may have.

The metrics server of a cluster measures; limits, GPUs and nodes are in the pods themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.io import tables
from hvd_elastic_ext.io.kube.paths import version_path
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.cluster.changes import pods_of, root_of
from hvd_elastic_ext.jobs.reading.findings import amount
from hvd_elastic_ext.jobs.reading.states import pod
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, Body
from hvd_elastic_ext.jobs.spec.job import GPU

# --- what pods use


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What one pod uses, and what it may use."""

    name: str
    role: str
    cpu: float | None
    """Cores that all its containers use; None if unknown."""
    cpu_limit: float
    """Its limit, or else its request, or else 0."""
    memory: float | None
    """Bytes that all its containers use; None if unknown."""
    memory_limit: float
    """As :attr:`cpu_limit`."""
    gpus: int
    """Number of GPUs of the pod."""
    node: str


def used(pods: Sequence[Body], metrics: Sequence[Body]) -> list[PodUsage]:
    """``metrics``: ``PodMetrics`` of the cluster's metrics server."""
    by_name = {each["metadata"]["name"]: each.get("containers") or [] for each in metrics}
    return [_usage(each, by_name.get(each["metadata"]["name"])) for each in pods]


def _usage(body: Body, measured: Sequence[Body] | None) -> PodUsage:
    seen = pod(body)
    granted = _granted(body["spec"])
    return PodUsage(
        name=seen.name,
        role=seen.role,
        cpu=_sum(measured, "cpu"),
        cpu_limit=granted.get("cpu", 0.0),
        memory=_sum(measured, "memory"),
        memory_limit=granted.get("memory", 0.0),
        gpus=int(granted.get(GPU, 0.0)),
        node=seen.node,
    )


def _sum(measured: Sequence[Body] | None, resource: str) -> float | None:
    if measured is None:
        return None
    return sum(amount((each.get("usage") or {}).get(resource)) for each in measured)


def _granted(spec: Body) -> Mapping[str, float]:
    """Return the limits of all containers together. Of init containers only sidecars count; others have ended."""
    stay = [each for each in spec.get("initContainers") or [] if each.get("restartPolicy") == "Always"]
    total: dict[str, float] = {}
    for container in (*stay, *spec["containers"]):
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            total[name] = total.get(name, 0.0) + amount(value)
    return total


# --- asked of a cluster


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


# --- the command


COLUMNS: Final = ("POD", "ROLE", "CPU", "CPU%", "MEMORY", "MEMORY%", "GPUS", "NODE")
RIGHT: Final = ("CPU", "CPU%", "MEMORY", "MEMORY%", "GPUS")


def main(argv: Sequence[str]) -> int:
    """Print the table. Raises :class:`Permanent` if the cluster has no metrics server."""
    parser = Parser(
        prog="hvd-elastic top",
        description="Show what the pods of a job use of processors and memory, and how much that is of what they may "
        "have. GPUS is the number that a pod has; the metrics server does not say how busy they are.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the job (default: all of the namespace)")
    add_cluster(parser)
    options = parser.parse_args(argv)
    cluster = cluster_of(options)
    usage = of_job(cluster, options.name)
    if not usage:
        what = f"{options.name} has no pods" if options.name else "no job has pods"
        sys.stderr.write(f"{what} in namespace {cluster.namespace}\n")
        return 0
    sys.stdout.write(tables.plain(COLUMNS, map(row, usage), right=RIGHT))
    return 0


def row(pod: PodUsage) -> tuple[str, ...]:
    """Return the cells of one pod, formatted like kubectl's; ``?`` for an unknown value. Pure."""
    cpu = "?" if pod.cpu is None else f"{pod.cpu * 1000:.0f}m"
    memory = "?" if pod.memory is None else f"{pod.memory / (1 << 20):.0f}Mi"
    shares = (_share(pod.cpu, pod.cpu_limit), _share(pod.memory, pod.memory_limit))
    return (pod.name, pod.role, cpu, shares[0], memory, shares[1], str(pod.gpus), pod.node)


def _share(part: float | None, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if part is not None and whole else ""

"""``hvd-elastic top``: what the pods of a job use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.io import tables
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of
from hvd_elastic_ext.jobs.cluster import usage
from hvd_elastic_ext.jobs.reading.usage import PodUsage

COLUMNS: Final = ("POD", "ROLE", "CPU", "CPU%", "MEMORY", "MEMORY%", "GPUS", "NODE")
RIGHT: Final = ("CPU", "CPU%", "MEMORY", "MEMORY%", "GPUS")


def main(argv: Sequence[str]) -> int:
    """Print the table. Raises :class:`Permanent` if the cluster has no metrics server."""
    parser = Parser(
        prog="hvd-elastic top",
        description="Show what the pods of a job use of processors and memory, and how much that is of what they may "
        "have. GPUS counts those that a pod has; how busy they are the metrics server does not say.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the job (default: all of the namespace)")
    add_cluster(parser)
    options = parser.parse_args(argv)
    cluster = cluster_of(options)
    found = usage.of_job(cluster, options.name)
    if not found:
        what = f"{options.name} has no pods" if options.name else "no job has pods"
        sys.stderr.write(f"{what} in namespace {cluster.namespace}\n")
        return 0
    sys.stdout.write(tables.plain(COLUMNS, map(row, found), right=RIGHT))
    return 0


def row(pod: PodUsage) -> tuple[str, ...]:
    """Return the cells of one pod, formatted like kubectl's; ``?`` for an unknown value. Pure."""
    cpu = "?" if pod.cpu is None else f"{pod.cpu * 1000:.0f}m"
    memory = "?" if pod.memory is None else f"{pod.memory / (1 << 20):.0f}Mi"
    shares = (_share(pod.cpu, pod.cpu_limit), _share(pod.memory, pod.memory_limit))
    return (pod.name, pod.role, cpu, shares[0], memory, shares[1], str(pod.gpus), pod.node)


def _share(part: float | None, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if part is not None and whole else ""

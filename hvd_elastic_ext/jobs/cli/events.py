"""``hvd-elastic events NAME -n NAMESPACE``: what happened to a job on a cluster.

Two sources are read and put in one order: Kubernetes Events of the job's pods, and the journal in its launcher's pod,
or the launcher's output where the journal cannot be read. A source that fails is named, and the other one is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

from hvd_elastic_ext.core.errors import ElasticError, Permanent
from hvd_elastic_ext.core.journal import read
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import tables
from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of
from hvd_elastic_ext.jobs.cluster import terminal
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster
from hvd_elastic_ext.jobs.cluster.changes import pods_of, root_of
from hvd_elastic_ext.jobs.reading import job_events
from hvd_elastic_ext.jobs.reading.job_events import EventLine
from hvd_elastic_ext.jobs.reading.states import pod
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, main_container
from hvd_elastic_ext.launcher.cli.run_options import split

# --- read from a cluster


MAX_READ_BYTES: Final = 8 << 20
"""Bytes that are read from the end of a journal."""


class JobEvents(NamedTuple):
    """What happened to a job."""

    lines: list[EventLine]
    """The oldest first."""
    missing: list[str]
    """Which sources could not be read, and why."""


def of_job(cluster: Cluster, name: str) -> JobEvents:
    """Return the events of a job. Raises :class:`NoSuchJob` if it does not exist."""
    bodies = pods_of(cluster, root_of(cluster, name))
    launchers = [each for each in bodies if pod(each).role == LAUNCHER]
    missing: list[str] = []
    of_cluster: list[EventLine] = []
    try:
        events = cluster.listed("v1", "events")
        of_cluster = job_events.of_cluster(events, name, [each["metadata"]["name"] for each in bodies])
    except ElasticError as error:
        missing.append(f"events of the cluster: {error}")
    of_launcher: list[EventLine] = []
    if launchers:
        newest = max(launchers, key=lambda each: str(each["metadata"].get("creationTimestamp")))
        of_launcher = _of_launcher(cluster, newest, name, missing)
    return JobEvents(job_events.in_order(of_cluster, of_launcher), missing)


def _of_launcher(cluster: Cluster, body: Body, job: str, missing: list[str]) -> list[EventLine]:
    """Return the events in the launcher's journal. If the pod does not run, or commands in it are forbidden, take the
    launcher's lines from the pod's output instead."""
    if pod(body).phase == "Running":
        try:
            return job_events.of_journal(list(read(_journal(cluster, body, job).splitlines())))
        except ElasticError as error:
            missing.append(f"the journal: {error}")
    else:
        missing.append(f"the journal: the pod {body['metadata']['name']} does not run; its output has less")
    query = {"container": main_container(body)["name"], "timestamps": "true"}
    path = cluster.path("v1", "pods", body["metadata"]["name"], "log")
    try:
        return job_events.of_output(cluster.client.lines(path, query=query))
    except ElasticError as error:
        missing.append(f"the output: {error}")
        return []


def _journal(cluster: Cluster, body: Body, job: str) -> str:
    container = main_container(body)
    options, _ = split([str(word) for word in container.get("args") or []])
    path = job_events.journal_of(options, job)
    taken, problem = bytearray(), bytearray()

    def write(channel: int, data: bytes) -> None:
        (problem if channel == pods.STDERR else taken).extend(data)

    code = terminal.run(cluster, body, ["tail", "-c", str(MAX_READ_BYTES), "--", path], source=None, write=write)
    if code:
        why = " ".join(problem.decode("utf-8", "replace").split())[:300]
        raise Permanent(f"tail of {path} ended with {code}: {why}")
    return taken.decode("utf-8", "replace")


# --- the command


COLUMNS: Final = ("TIME", "FROM", "EVENT", "WHO", "WHY")


def main(argv: Sequence[str]) -> int:
    """Print the table. Raises :class:`UsageError` for a job that is not there."""
    parser = Parser(
        prog="hvd-elastic events",
        description="Show what happened to a job on a cluster: events of its pods and lines of its journal, by time.",
    )
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.add_argument("-o", "--output", choices=("json",), default="", help="for programs")
    add_cluster(parser)
    options = parser.parse_args(argv)
    events = of_job(cluster_of(options), options.name)
    for each in events.missing:
        sys.stderr.write(f"note: not read: {each}\n")
    if options.output:
        sys.stdout.write(to_text([each._asdict() for each in events.lines]) + "\n")
    else:
        sys.stdout.write(tables.plain(COLUMNS, map(row, events.lines)))
    return 0


def row(line: EventLine) -> tuple[str, ...]:
    """The cells of one line. Pure."""
    moment = datetime.fromtimestamp(line.at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (moment, line.source, line.event, line.who, line.why)

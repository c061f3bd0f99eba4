"""``hvd-elastic events NAME -n NAMESPACE``: what happened to a job on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import tables
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of
from hvd_elastic_ext.jobs.cluster import job_events
from hvd_elastic_ext.jobs.reading.job_events import EventLine

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
    found = job_events.of_job(cluster_of(options), options.name)
    for each in found.missing:
        sys.stderr.write(f"note: not read: {each}\n")
    if options.output:
        sys.stdout.write(to_text([each._asdict() for each in found.lines]) + "\n")
    else:
        sys.stdout.write(tables.plain(COLUMNS, map(row, found.lines)))
    return 0


def row(line: EventLine) -> tuple[str, ...]:
    """The cells of one line. Pure."""
    moment = datetime.fromtimestamp(line.at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (moment, line.source, line.event, line.who, line.why)

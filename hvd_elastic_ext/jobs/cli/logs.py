"""``hvd-elastic logs``: the output of a job, of all its ranks or of one."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.wait_line import WaitLine
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of, patient
from hvd_elastic_ext.jobs.cluster import logs

STAMP: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def main(argv: Sequence[str]) -> int:
    """Print lines. Raises :class:`UsageError` for a job without output."""
    parser = Parser(prog="hvd-elastic logs", description="Print the output of a job, of all its ranks or of one.")
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the job has ended")
    parser.add_argument("--rank", metavar="N", type=int, help="only lines of this rank")
    parser.add_argument("-p", "--previous", action="store_true", help="output before the last restart of the launcher")
    parser.add_argument("-t", "--tail", metavar="N", type=int, default=-1, help="only the last N lines (-1: all)")
    since = parser.add_mutually_exclusive_group()
    since.add_argument("--since", metavar=durations.METAVAR, type=durations.time, help="only lines this new")
    since.add_argument(
        "--since-time", metavar="TIMESTAMP", default="", help="only lines since a time such as 2026-01-31T07:00:00Z"
    )
    parser.add_argument("--timestamps", action="store_true", help="print the time of each line")
    parser.add_argument("-i", "--instance", metavar="POD", default="", help="output of another pod of the job")
    parser.add_argument("-c", "--container", metavar="NAME", default="", help="output of another container of that pod")
    add_cluster(parser)
    options = parser.parse_args(argv)
    waits = WaitLine(sys.stderr)

    def sleep(seconds: float) -> None:
        waits.show(f"waiting for output of {options.name}; hvd-elastic get {options.name} shows its pods")
        time.sleep(seconds)

    patience = patient("logs", waits)
    try:
        for line in logs.lines(cluster_of(options), options.name, _wanted(options), sleep=sleep, patience=patience):
            waits.clear()
            sys.stdout.write(line)
            if options.follow:
                sys.stdout.flush()
    finally:
        waits.clear()
    return 0


def _wanted(options: argparse.Namespace) -> logs.LogOptions:
    """Read the options. Raises :class:`UsageError` for an invalid number or time."""
    if options.tail < -1:
        raise UsageError(f"--tail {options.tail}: it must be greater than or equal to -1")
    if options.rank is not None and options.rank < 0:
        raise UsageError(f"--rank {options.rank}: ranks count from 0")
    if options.since_time and not STAMP.fullmatch(options.since_time):
        raise UsageError(f"--since-time {options.since_time!r} is not a time; write it as 2026-01-31T07:00:00Z")
    if options.since == 0:
        raise UsageError("--since 0: it must be greater than 0")
    return logs.LogOptions(
        options.follow,
        options.rank,
        options.previous,
        None if options.tail < 0 else options.tail,
        since_s=None if options.since in (None, math.inf) else math.ceil(options.since),
        since=options.since_time,
        stamped=options.timestamps,
        pod=options.instance,
        container=options.container,
    )

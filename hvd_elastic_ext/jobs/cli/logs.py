"""``hvd-elastic logs``: the output of a job, of all its ranks or of one."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of
from hvd_elastic_ext.jobs.cluster import logs


def main(argv: Sequence[str]) -> int:
    """Print lines. Raises :class:`UsageError` for a job without output."""
    parser = Parser(prog="hvd-elastic logs", description=__doc__.partition(": ")[2])
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until its pods have ended")
    parser.add_argument("--rank", metavar="N", type=int, help="only lines of this rank")
    parser.add_argument("-p", "--previous", action="store_true", help="of the launcher before its last restart")
    parser.add_argument("--tail", metavar="N", type=int, help="only the last N lines")
    add_cluster(parser)
    options = parser.parse_args(argv)
    wanted = logs.Wanted(options.follow, options.rank, options.previous, options.tail)
    for line in logs.lines(cluster_of(options), options.name, wanted):
        sys.stdout.write(line)
        if options.follow:
            sys.stdout.flush()
    return 0

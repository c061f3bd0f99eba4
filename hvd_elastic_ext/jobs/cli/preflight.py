"""``hvd-elastic preflight``: whether a cluster can run a job, before it is submitted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of
from hvd_elastic_ext.jobs.cli.submit_options import add_job, job_of, read, settle
from hvd_elastic_ext.jobs.cluster import making, preflight

MARKS: Final = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM", "unknown": "?"}
COMMAND: Final = ("python", "train.py")
"""The command of the job if none is given; the checks do not depend on it."""
NO_IMAGE: Final = "example.com/image"


def main(argv: Sequence[str]) -> int:
    """Print a line for each finding. Returns 1 if one is a problem. Raises :class:`UsageError`."""
    parser = Parser(
        prog="hvd-elastic preflight",
        description="Ask a cluster whether it can run a job. The options are those of submit; nothing is made.",
    )
    add_job(parser)
    add_cluster(parser)
    options, command = read(parser, argv)
    if not (options.name or options.named):
        options.named = "preflight"
    settle(options)
    named = options.image
    options.image = named or NO_IMAGE
    cluster = cluster_of(options)
    options.kind = options.kind or making.kind_for(cluster, command)
    worst = 0
    for finding in preflight.look(cluster, job_of(options, command or COMMAND)):
        if not named and finding.what == "images" and NO_IMAGE in finding.found:
            continue
        remedy = f"\n{'':17}-> {finding.remedy}" if finding.remedy else ""
        sys.stdout.write(f"{MARKS[finding.level]:8} {finding.what:8} {finding.found}{remedy}\n")
        worst = max(worst, int(finding.level == "problem"))
    if not named:
        sys.stdout.write(f"{MARKS['unknown']:8} {'images':8} --image says which one is to be looked for\n")
    return worst

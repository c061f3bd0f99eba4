"""``hvd-elastic sync``: send a job's code to a launcher's pod that waits for it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.wait_line import WaitLine
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of, patient
from hvd_elastic_ext.jobs.cluster import code, sending
from hvd_elastic_ext.jobs.cluster.api import Cluster


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises :class:`UsageError` if the pod waits for no code, or for other code."""
    parser = Parser(
        prog="hvd-elastic sync",
        description="Send a folder to the launcher's pod of a job that was submitted with it (--sync): after a submit "
        "that was interrupted, or when the launcher has a new pod.",
    )
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder with the files that were submitted")
    add_cluster(parser)
    options = parser.parse_args(argv)
    archive = code.packed(options.folder)
    summary = hand_over(cluster_of(options), options.name, archive, folder=str(options.folder))
    sys.stdout.write(f"{summary}\n")
    return 0


def hand_over(cluster: Cluster, name: str, archive: bytes, *, folder: str) -> str:
    """Send the code, and print what it waits for. Returns a line about the result. After a failure the job still
    waits."""
    line = WaitLine(sys.stderr)
    try:
        sent = sending.send(cluster, name, archive, report=line.show, patience=patient("sync", line))
    except (ElasticError, KeyboardInterrupt) as error:
        line.clear()
        if not isinstance(error, UsageError):
            again = f"hvd-elastic sync {name} {shlex.quote(folder)} -n {cluster.namespace}"
            sys.stderr.write(f"{name} waits for its code; to send it: {again}\n")
        raise
    line.clear()
    return f"{name}: {len(archive):,} bytes of code sent" if sent else f"{name} has its code"

"""``hvd-elastic attach``: a shell, or another command, in a pod of a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of
from hvd_elastic_ext.jobs.cli.submit_options import parted
from hvd_elastic_ext.jobs.cluster import terminal
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, WrongState
from hvd_elastic_ext.jobs.cluster.changes import pods_of, root_of
from hvd_elastic_ext.jobs.cluster.logs import container_of, pod_named
from hvd_elastic_ext.jobs.reading.states import pod
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER

SHELL: Final = ("sh",)


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code. Raises :class:`UsageError` if the job has no such pod."""
    parser = Parser(
        prog="hvd-elastic attach",
        usage="hvd-elastic attach NAME [-i POD] [-c CONTAINER] [-- COMMAND]",
        see="`hvd-elastic attach --help` lists all options; a command comes after --, with all that is its own: "
        "hvd-elastic attach NAME -- ls -l",
        surplus="a command comes after --",
        description="Run a shell, or COMMAND, in the launcher's pod or in another one of a job.",
    )
    parser.add_argument("name", metavar="NAME", help="the job")
    parser.add_argument("-i", "--instance", metavar="POD", default="", help="another pod of the job (arena's option)")
    parser.add_argument("-c", "--container", metavar="NAME", default="", help="another container of that pod")
    add_cluster(parser)
    words, command = parted(parser, argv)
    options = parser.parse_args(words)
    cluster = cluster_of(options)
    body = pod_of(cluster, options.name, options.instance)
    source = _descriptor(sys.stdin)
    with_terminal = source is not None and os.isatty(source) and os.isatty(sys.stdout.fileno())
    if len(command) == 1 and " " in command[0]:  # as with arena, one word with spaces is a shell line
        command = [*SHELL, "-c", command[0]]
    return terminal.run(
        cluster,
        body,
        command or SHELL,
        source=source,
        write=_written,
        terminal=with_terminal,
        container=container_of(body, options.container),
    )


def _descriptor(stream: TextIO | None) -> int | None:
    """Return None if standard input is closed or has no file descriptor."""
    try:
        return None if stream is None else stream.fileno()
    except ValueError:
        return None


def _written(channel: int, data: bytes) -> None:
    descriptor = 2 if channel == pods.STDERR else 1
    while data:
        data = data[os.write(descriptor, data) :]


def pod_of(cluster: Cluster, name: str, instance: str = "") -> Body:
    """Return the pod ``instance``, or else the newest launcher, or else the first worker. Raises :class:`UsageError` if
    the job has no such pod, or none runs."""
    root = root_of(cluster, name)
    bodies = [pod_named(cluster, root, instance)] if instance else pods_of(cluster, root)
    running = [each for each in bodies if pod(each).phase == "Running"]
    if not running:
        raise WrongState(
            f"{f'{instance} does not run' if instance else f'no pod of {name} runs'}; hvd-elastic get {name} says why"
        )
    running.sort(key=lambda each: str(each["metadata"].get("creationTimestamp")), reverse=True)
    launchers = [each for each in running if pod(each).role == LAUNCHER]
    return launchers[0] if launchers else min(running, key=lambda each: str(each["metadata"]["name"]))

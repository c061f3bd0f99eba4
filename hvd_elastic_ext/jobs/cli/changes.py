"""``hvd-elastic suspend``, ``resume``, ``delete``, ``wait``, and ``scale`` of a job on a cluster."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, cluster_of, name_of
from hvd_elastic_ext.jobs.cluster import changes
from hvd_elastic_ext.jobs.reading.states import stores_checkpoints, waits_for_code
from hvd_elastic_ext.jobs.sdk import STATES

NO_STORE: Final = (
    "note: its launcher has no --checkpoint-dir; unless another place keeps what it saved, training begins from the "
    "start when the job is resumed\n"
)

NO_LAUNCHER: Final = (
    "note: a PyTorchJob has no launcher that makes a checkpoint; unless the script stores what it needs, training "
    "begins from the start when the job is resumed\n"
)


def suspend(argv: Sequence[str]) -> int:
    """Run ``suspend``. Raises :class:`UsageError` where a job cannot be suspended."""
    options = _parsed("suspend", "Let all pods of a job go; the launcher makes a checkpoint first.", argv)
    root = changes.suspend(cluster_of(options), options.name)
    if not stores_checkpoints(root):
        sys.stderr.write(NO_LAUNCHER if root["kind"] == "PyTorchJob" else NO_STORE)
    sys.stdout.write(f"{name_of(root)} suspended\n")
    return 0


def resume(argv: Sequence[str]) -> int:
    """Run ``resume``."""
    options = _parsed("resume", "Let a suspended job go on, from its newest checkpoint.", argv)
    root = changes.resume(cluster_of(options), options.name)
    if waits_for_code(root):
        sys.stderr.write(f"note: its new launcher waits for its code: hvd-elastic sync {options.name} FOLDER\n")
    sys.stdout.write(f"{name_of(root)} resumed\n")
    return 0


def delete(argv: Sequence[str]) -> int:
    """Run ``delete``. Raises :class:`UsageError` if nothing is there, unless told that this may be."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ignore-not-found", action="store_true", help="no error if there is no such job")

    options = _parsed("delete", "Delete a job and all that was made for it.", argv, add)
    cluster = cluster_of(options)
    deleted = changes.delete(cluster, options.name)
    if not deleted and not options.ignore_not_found:
        changes.root_of(cluster, options.name)
    sys.stdout.writelines(f"{name} deleted\n" for name in deleted)
    return 0


def wait(argv: Sequence[str]) -> int:
    """Run ``wait``. Raises :class:`NotReached`, exit code 1, if the job ends otherwise or takes too long."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--for", dest="wanted", choices=STATES, default="succeeded", help="(succeeded)")
        parser.add_argument("--timeout", metavar="TIME", type=seconds, help="such as 90s, 10m or 2h (no limit)")

    options = _parsed("wait", "Wait for a job.", argv, add)
    state = changes.wait_for(cluster_of(options), options.name, STATES[options.wanted], within_s=options.timeout)
    sys.stdout.write(f"{options.name}: {state}\n")
    return 0


def scale(argv: Sequence[str]) -> int:
    """Run ``scale`` for a job on a cluster. Raises :class:`UsageError` for a number outside its limits."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("workers", metavar="N", type=int, help="so many workers")

    options = _parsed("scale", "Ask for another number of workers.", argv, add)
    changes.scale(cluster_of(options), options.name, options.workers)
    sys.stdout.write(f"{options.name} scaled to {options.workers}\n")
    return 0


def seconds(text: str) -> float:
    """A time as kubectl takes it, or plain seconds. Raises :class:`UsageError`. Pure."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text, re.ASCII)
    if not found:
        raise UsageError(f"{text!r} is no time; write 90s, 10m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _parsed(
    name: str,
    description: str,
    argv: Sequence[str],
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> argparse.Namespace:
    parser = Parser(prog=f"hvd-elastic {name}", description=description)
    parser.add_argument("name", metavar="NAME", help="the job")
    add(parser)
    add_cluster(parser)
    return parser.parse_args(argv)

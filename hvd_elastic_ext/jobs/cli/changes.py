"""``hvd-elastic suspend``, ``resume``, ``delete``, ``wait``, and ``scale`` of a job on a cluster.

What they change is decided in ``cluster/changes``; here are their options, and what they say. ``delete`` and ``wait``
take several names: each is acted on, even if it failed for an earlier one.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.core.workload_kinds import ROOTS
from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.wait_line import WaitLine
from hvd_elastic_ext.jobs.cli.options import (
    PROCESSES,
    add_cluster,
    add_labels,
    bare_last,
    cluster_of,
    name_of,
    names_of,
    patient,
)
from hvd_elastic_ext.jobs.cluster import changes
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.reading.states import FINISHED, leftover_note, stores_checkpoints, waits_for_code

NO_STORE: Final = (
    "note: its launcher has no --checkpoint-dir; unless the script stores checkpoints itself, training begins from the "
    "start when the job is resumed\n"
)

NO_LAUNCHER: Final = (
    "note: a {} has no launcher that makes a checkpoint; unless the script stores what it needs, training "
    "begins from the start when the job is resumed\n"
)


def suspend(argv: Sequence[str]) -> int:
    """Run ``suspend``. Raises :class:`UsageError` where a job cannot be suspended."""
    options = _parsed("suspend", "Delete all pods of a job; the launcher makes a checkpoint first.", argv)
    root = changes.suspend(cluster_of(options), options.name, patience=patient("suspend"))
    if not stores_checkpoints(root):
        sys.stderr.write(NO_STORE if ROOTS[root["kind"]].has_launcher else NO_LAUNCHER.format(root["kind"]))
    sys.stdout.write(f"{name_of(root)} suspended\n")
    return 0


def resume(argv: Sequence[str]) -> int:
    """Run ``resume``."""
    options = _parsed("resume", "Continue a suspended job from its newest checkpoint.", argv)
    root = changes.resume(cluster_of(options), options.name)
    if waits_for_code(root):
        sys.stderr.write(f"note: its new launcher waits for its code: hvd-elastic sync {options.name} FOLDER\n")
    sys.stdout.write(f"{name_of(root)} resumed\n")
    return 0


def delete(argv: Sequence[str]) -> int:
    """Run ``delete``. Raises :class:`UsageError` if nothing exists, unless ``--ignore-not-found`` is given."""

    def add(parser: argparse.ArgumentParser) -> None:
        add_labels(parser)
        parser.add_argument("--ignore-not-found", action="store_true", help="no error if there is no such job")

    options = _parsed("delete", "Delete jobs and all objects that were made for them.", argv, add, several=True)
    cluster = cluster_of(options)
    names = names_of(options, cluster)
    if not names:
        sys.stderr.write(f"no job has the labels {options.selector} in namespace {cluster.namespace}\n")
    return _of_each("delete", names, lambda name: _delete(cluster, name, may_lack=options.ignore_not_found))


def _delete(cluster: Cluster, name: str, *, may_lack: bool) -> None:
    deleted = changes.delete(cluster, name)
    if not deleted and not may_lack:
        changes.root_of(cluster, name)
    sys.stdout.writelines(f"{each} deleted\n" for each in deleted)


def wait(argv: Sequence[str]) -> int:
    """Run ``wait``. Raises :class:`NotReached`, exit code 1, if a job ends otherwise or takes too long."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--for",
            dest="wanted",
            type=_state,
            choices=changes.STATES,
            default="succeeded",
            help="awaited state (succeeded)",
        )
        parser.add_argument("--timeout", metavar=durations.METAVAR, type=durations.time, help="longest wait (no limit)")
        add_labels(parser)

    options = _parsed("wait", "Wait for jobs.", argv, add, several=True)
    cluster = cluster_of(options)
    names = names_of(options, cluster)
    if not names:
        raise changes.NoSuchJob(f"no job has the labels {options.selector} in namespace {cluster.namespace}")
    ends = None if options.timeout is None else time.monotonic() + options.timeout
    line = WaitLine(sys.stderr)
    patience = patient("wait", line)

    def waited(name: str) -> None:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        try:
            state = changes.wait_for(
                cluster, name, changes.STATES[options.wanted], within_s=left, report=line.show, patience=patience
            )
        finally:
            line.clear()
        sys.stdout.write(f"{name}: {state}\n")
        sys.stdout.flush()
        if state in FINISHED:
            with contextlib.suppress(changes.NoSuchJob):
                sys.stderr.write(leftover_note(changes.look(cluster, name)))

    return _of_each("wait", names, waited)


def _of_each(command: str, names: Sequence[str], act: Callable[[str], object]) -> int:
    """Act on each job, even if it failed for an earlier one. Return the exit code."""
    if len(names) == 1:
        act(names[0])
        return 0
    code = 0
    for name in names:
        try:
            act(name)
        except ElasticError as error:
            if isinstance(error, ApiError) and not error.answered:
                raise
            sys.stderr.write(f"hvd-elastic {command}: {error}\n")
            code = max(code, error.exit_code)
    return code


def _state(text: str) -> str:
    """Return the state that an option names, in our words or kubectl's."""
    word = text.removeprefix("condition=").partition("=")[0].lower()
    return {"delete": "deleted", "complete": "succeeded"}.get(word, word)


def scale(argv: Sequence[str]) -> int:
    """Run ``scale`` for a job on a cluster. Raises :class:`UsageError` for a number outside its limits."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("workers", metavar="N", type=int, help="number of workers")

    options = _parsed("scale", "Ask for another number of workers.", argv, add)
    changes.scale(cluster_of(options), options.name, options.workers)
    sys.stdout.write(f"{options.name} scaled to {options.workers}\n")
    return 0


def _parsed(
    name: str,
    description: str,
    argv: Sequence[str],
    add: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    *,
    several: bool = False,
) -> argparse.Namespace:
    parser = Parser(prog=f"hvd-elastic {name}", description=description)
    if name == "scale":
        parser.elsewhere[PROCESSES] = "is an option of `hvd-elastic run`; write NAME N, with N workers"
    if several:
        parser.add_argument("names", metavar="NAME", nargs="*", help="the jobs")
    else:
        parser.add_argument("name", metavar="NAME", help="the job")
    add(parser)
    add_cluster(parser)
    return parser.parse_args(bare_last(parser, argv) if several else argv)

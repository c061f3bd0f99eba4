"""Options that commands about jobs share, and how objects are printed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.printable import printable
from hvd_elastic_ext.io.config_file import to_documents
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.wait_line import WaitLine
from hvd_elastic_ext.jobs.cluster import api, changes
from hvd_elastic_ext.jobs.cluster.api import Patience

PROCESSES: Final = r"-np\d*|--num-proc"
"""Options of ``hvd-elastic run`` for a number of processes. ``argparse`` reads -np as namespace p."""


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options for cluster and namespace."""
    if isinstance(parser, Parser):
        parser.elsewhere.setdefault(PROCESSES, "is an option of `hvd-elastic run`; for a namespace write -n NAME")
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help="namespace (default: of your kubeconfig)")
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: as kubectl finds it")


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects jobs by the labels of ``submit --label``."""
    parser.add_argument(
        "-l", "--selector", metavar="LABELS", default="", help="jobs with these, such as team=a,tier!=b"
    )


def bare(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[int]:
    """Return the places of the words that are neither options nor values of options."""
    places: list[int] = []
    takes: Callable[[str], bool] = _never
    for number, word in enumerate(argv):
        option, equals, _ = word.partition("=")
        if word.startswith("-") and word != "-":
            action = parser._option_string_actions.get(option)
            takes = _never if action is None or equals else partial(_is_value, action)
        else:
            places += [] if takes(word) else [number]
            takes = _never
    return places


def _is_value(action: argparse.Action, word: str) -> bool:
    """Whether a word after an option is its value. If the value is optional, it must be one of the option's choices."""
    return word in (action.choices or ()) if action.nargs == "?" else action.nargs != 0


def _never(_: str) -> bool:
    return False


def bare_last(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return the same words with all names after the options: ``argparse`` takes names from one place only."""
    names = bare(parser, argv)
    return [*(word for number, word in enumerate(argv) if number not in names), *(argv[number] for number in names)]


def names_of(options: argparse.Namespace, cluster: api.Cluster) -> list[str]:
    """Return the given names, or those of the jobs with the given labels. Raises :class:`UsageError` for both or
    neither."""
    if options.names and options.selector:
        raise UsageError("name cannot be provided when a selector is specified")
    if not options.names and not options.selector:
        raise UsageError("NAME is missing; name jobs, or give --selector LABELS")
    if options.selector:
        return list(dict.fromkeys(job.name for job in changes.all_of(cluster, options.selector)))  # of any kind
    return list(dict.fromkeys(options.names))


def cluster_of(options: argparse.Namespace) -> api.Cluster:
    """Return the cluster that the options name. Raises :class:`UsageError` without one."""
    return api.found(options.kubeconfig, os.environ, options.namespace)


def patient(command: str, waits: WaitLine | None = None) -> Patience:
    """Return how a long command waits for an API server that is away; it says so on standard error.

    ``waits``: what the command shows of its own waits, cleared before such a line.
    """

    def say(line: str) -> None:
        if waits is not None:
            waits.clear()
        sys.stderr.write(f"hvd-elastic {command}: {printable(line)}\n")

    return Patience(say=say)


def printed(objects: Sequence[Mapping[str, Any]], form: str) -> str:
    """Return objects as text: ``yaml``, ``json`` (several as one List) or ``name``. Pure."""
    if form == "name":
        return "".join(f"{name_of(each)}\n" for each in objects)
    if form == "yaml":
        return to_documents(objects)
    whole = objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return to_text(whole) + "\n"


def name_of(body: Mapping[str, Any]) -> str:
    """Return kubectl's name of an object: ``mpijob.kubeflow.org/digits``. Pure."""
    group = body["apiVersion"].rpartition("/")[0]
    return f"{body['kind'].lower()}{'.' if group else ''}{group}/{body['metadata']['name']}"

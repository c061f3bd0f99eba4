"""Options that commands about jobs share, and how objects are printed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.config_file import to_documents
from hvd_elastic_ext.jobs.cluster import api, changes

FORMATS: Final = ("yaml", "json", "name", "wide")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Which cluster and namespace."""
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help="namespace (default: of your kubeconfig)")
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: as kubectl finds it")


def add_labels(parser: argparse.ArgumentParser) -> None:
    """Which jobs, by their labels: those of ``submit --label``."""
    parser.add_argument(
        "-l", "--selector", metavar="LABELS", default="", help="jobs with these, such as team=a,tier!=b"
    )


def bare(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[int]:
    """Which words are neither options nor their values."""
    found: list[int] = []
    takes: Callable[[str], bool] = _never
    for number, word in enumerate(argv):
        option, equals, _ = word.partition("=")
        if word.startswith("-") and word != "-":
            action = parser._option_string_actions.get(option)
            takes = _never if action is None or equals else partial(_is_value, action)
        else:
            found += [] if takes(word) else [number]
            takes = _never
    return found


def _is_value(action: argparse.Action, word: str) -> bool:
    """Whether a word after an option is its value; where it need not have one, only one that it may have."""
    return word in (action.choices or ()) if action.nargs == "?" else action.nargs != 0


def _never(_: str) -> bool:
    return False


def bare_last(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """The same words, names after options: ``argparse`` takes names from one place only."""
    names = bare(parser, argv)
    return [*(word for number, word in enumerate(argv) if number not in names), *(argv[number] for number in names)]


def names_of(options: argparse.Namespace, cluster: api.Cluster) -> list[str]:
    """Names that are given, or those of jobs with the labels that are. Raises :class:`UsageError` for both or none."""
    if options.names and options.selector:
        raise UsageError("name cannot be provided when a selector is specified")
    if not options.names and not options.selector:
        raise UsageError("NAME is missing; name jobs, or give --selector LABELS")
    if options.selector:
        return list(dict.fromkeys(job.name for job in changes.all_of(cluster, options.selector)))  # of any kind
    return list(dict.fromkeys(options.names))


def cluster_of(options: argparse.Namespace) -> api.Cluster:
    """The cluster that is meant. Raises :class:`UsageError` if there is none."""
    return api.found(options.kubeconfig, os.environ, options.namespace)


def printed(objects: Sequence[Mapping[str, Any]], form: str) -> str:
    """Objects as text: ``yaml``, ``json`` (one List of several) or ``name``. Pure."""
    if form == "name":
        return "".join(f"{name_of(each)}\n" for each in objects)
    if form == "yaml":
        return to_documents(objects)
    whole = objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return to_text(whole) + "\n"


def name_of(body: Mapping[str, Any]) -> str:
    """As kubectl names an object: ``mpijob.kubeflow.org/digits``. Pure."""
    group = body["apiVersion"].rpartition("/")[0]
    return f"{body['kind'].lower()}{'.' if group else ''}{group}/{body['metadata']['name']}"

"""Options that commands about jobs share, and how objects are printed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.config_file import to_documents
from hvd_elastic_ext.jobs.cluster import api

FORMATS: Final = ("yaml", "json", "name", "wide")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Which cluster and namespace."""
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help="namespace (default: of your kubeconfig)")
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: as kubectl finds it")


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

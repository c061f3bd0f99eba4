"""``hvd-elastic status``: what a job does at this moment, in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.launcher.cli import hosts


def main(argv: Sequence[str]) -> int:
    """Print the line; 1 if no launcher of the job runs. Raises :class:`UsageError` if there is no such job."""
    parser = Parser(prog="hvd-elastic status", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="its name (default: the job here that runs, else the newest)"
    )
    parser.add_argument("--state-dir", metavar="DIR", type=Path, help="the job's folder (default: ./.hvd-elastic/JOB)")
    options = parser.parse_args(argv, argparse.Namespace(do="status"))
    folder = hosts.folder_of(options, os.environ)
    hosts.check(folder)
    answer = hosts.asked(folder, {"do": "status"})
    if answer is None:
        sys.stdout.write(f"{folder.name}: no launcher runs; `hvd-elastic events {folder.name}` shows how it ended\n")
        return 1
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    sys.stdout.write(f"{folder.name}: {answer['said']}\n")
    return 0

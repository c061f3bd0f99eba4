"""``hvd-elastic scale``: how many hosts a running job asks for, by hand or by its policy (``--autoscale``)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.io.job_folders import one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.launcher.cli import hosts

AUTO: Final = "auto"
"""The policy decides again."""


def main(argv: Sequence[str]) -> int:
    """Ask the launcher. Raises :class:`UsageError` for what makes no sense, :class:`Permanent` without a launcher."""
    parser = Parser(
        prog="hvd-elastic scale",
        description="Say how many hosts a running job asks for, by hand or by its policy (--autoscale).",
        epilog="With -n NAMESPACE or --kubeconfig FILE, NAME N sets the workers of a submitted job (docs/submit.md).",
    )
    parser.add_argument("named", metavar="JOB", nargs="?", help="its name (default: the job here that runs)")
    parser.add_argument("size", metavar="N|auto", help="this many hosts; auto: as many as the policy says")
    parser.add_argument("--job", metavar="NAME", help="the same as JOB")
    parser.add_argument("--state-dir", metavar="DIR", type=Path, help="the job's folder (default: ./.hvd-elastic/JOB)")
    options = parser.parse_args(argv, argparse.Namespace(do="scale"))
    options.job = one_job(options.named, options.job)
    size = None if options.size == AUTO else _number(options.size)
    try:
        folder = hosts.folder_of(options, os.environ)
    except UsageError as error:
        raise UsageError(f"{error}; for a job on a cluster give -n NAMESPACE") from None
    hosts.check(folder)
    answer = hosts.ask_launcher(folder, {"do": "scale", "hosts": size})
    if answer is None:
        raise Permanent(f"{folder.name}: no launcher runs; `hvd-elastic run --autoscale` begins with its policy")
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    sys.stdout.write(f"{answer['said']}\n")
    return 0


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1 or len(text) > 6:
        raise UsageError(f"{text!r} is not a number of hosts; write a whole number above 0, or {AUTO}")
    return int(text)

"""``hvd-elastic submit``, ``preflight`` and ``sync``: make an elastic job on a cluster.

``preflight`` takes the options of ``submit``, and only asks whether the job could run. ``sync`` is the last part of a
``submit`` with a large folder of code, for when that was interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.io.config_file import to_documents
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.wait_line import WaitLine
from hvd_elastic_ext.jobs.cli.options import PROCESSES, add_cluster, cluster_of, name_of, patient, printed
from hvd_elastic_ext.jobs.cli.submit_options import add_job, job_of, read, settle
from hvd_elastic_ext.jobs.cluster import making
from hvd_elastic_ext.jobs.cluster import preflight as checks
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.cluster.making import rendered_of, with_key
from hvd_elastic_ext.jobs.reading.findings import amount
from hvd_elastic_ext.jobs.rendering.render import Rendered
from hvd_elastic_ext.jobs.spec.job import Job

# --- submit


FAILED: Final = 2
"""Exit code of a diff that could not be made. As with kubectl, 1 means that something differs."""
_SIZES: Final = ("requests", "limits", "sizeLimit")
"""Fields of a pod with quantities."""
LIMITS: Final = ("min", "max")
EPILOG: Final = "docs/submit.md says more, and which rights you need."


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 1 if ``--diff`` finds a difference, as kubectl does. Raises :class:`UsageError`."""
    parser = Parser(
        prog="hvd-elastic submit",
        usage="hvd-elastic submit NAME --image IMAGE [options] -- [NAME=VALUE …] COMMAND",
        see="`hvd-elastic submit --help` lists all options; the command comes after --, with all that is its own: "
        "hvd-elastic submit NAME --image IMAGE -- python train.py --lr 1",
        surplus="the command comes after --",
        description="Make an elastic job on a cluster: its pods, and an account, rights and a key of its own.",
        epilog=EPILOG,
    )
    for pattern, name in ((PROCESSES, "--workers"), *((f"--{m}-np|--{m}-num-proc", f"--{m}-workers") for m in LIMITS)):
        parser.elsewhere[pattern] = f"is an option of `hvd-elastic run`; here it is {name} N, with --slots N for each"
    add_job(parser)
    add_cluster(parser)
    parser.add_argument(
        "--dry-run",
        nargs="?",
        const="client",
        default="none",
        choices=("none", "client", "server"),
        help="make nothing",
    )
    parser.add_argument("-o", "--output", choices=("yaml", "json", "name"), help="print the objects")
    parser.add_argument("--diff", action="store_true", help="show how the objects differ from those that are there")
    options, command = read(parser, argv)
    settle(options)
    # No cluster is needed if the kind is given and the objects are only printed.
    cluster = None if options.dry_run == "client" and options.kind and not options.diff else cluster_of(options)
    if cluster is not None and not options.kind:
        options.kind = making.kind_for(cluster, command, say=lambda line: sys.stderr.write(f"note: {line}\n"))
    job = job_of(options, command)
    rendered = rendered_of(job)
    for note in rendered.notes:
        sys.stderr.write(f"note: {note}\n")
    if options.diff and cluster is not None:
        try:
            return _differences(cluster, rendered)
        except ElasticError as error:
            error.exit_code = FAILED
            raise
    return _act(options, cluster, job, rendered)


def _act(options: argparse.Namespace, cluster: Cluster | None, job: Job, rendered: Rendered) -> int:
    objects: Sequence[Mapping[str, Any]] = with_key(rendered, job)
    how = {"client": " (dry run)", "server": " (server dry run)"}.get(options.dry_run, "")
    if cluster is not None and options.dry_run == "server":
        objects = making.try_out(cluster, list(map(dict, objects)))
    elif cluster is not None and options.dry_run == "none":
        making.create(cluster, list(map(dict, objects)))
    if options.output:
        sys.stdout.write(printed(objects, options.output))
    else:
        sys.stdout.writelines(f"{name_of(each)} created{how}\n" for each in objects)
    sys.stdout.flush()
    if cluster is not None and not how and rendered.archive:
        summary = hand_over(cluster, job.name, rendered.archive, folder=job.sync)
        (sys.stderr if options.output else sys.stdout).write(f"{summary}\n")
    if cluster is not None and not how and not options.output:
        sys.stdout.write(f"its output: hvd-elastic logs -f {job.name} -n {cluster.namespace}\n")
    return 0


def _differences(cluster: Cluster, rendered: Rendered) -> int:
    """Print how the cluster's objects differ from those that would be made. Returns 1 if they differ."""
    differs = False
    for body in rendered.objects:
        live = cluster.read(cluster.path_of(body))
        lines = difference(live, body)
        sys.stdout.writelines(lines)
        differs = differs or bool(lines)
    return int(differs)


def difference(live: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> list[str]:
    """Return the diff of one object. Fields that only the server has set do not count. Pure."""
    old = "" if live is None else to_documents([asked_for(live, wanted)])
    texts = (old.splitlines(keepends=True), to_documents([wanted]).splitlines(keepends=True))
    return list(difflib.unified_diff(*texts, f"live {name_of(wanted)}", f"submit {name_of(wanted)}"))


def asked_for(live: Any, wanted: Any, *, sizes: bool = False) -> Any:
    """Return the fields of ``there`` that ``wanted`` also has, in the order of ``wanted``, with equal quantities as
    ``wanted`` writes them: a server writes 0.5 as 500m. ``sizes``: the fields are quantities. Pure."""
    if isinstance(live, Mapping) and isinstance(wanted, Mapping):
        return {
            key: asked_for(live[key], each, sizes=sizes or key in _SIZES) for key, each in wanted.items() if key in live
        }
    if isinstance(live, list) and isinstance(wanted, list) and len(live) == len(wanted):
        return [asked_for(old, new) for old, new in zip(live, wanted, strict=True)]
    return wanted if sizes and amount(live) == amount(wanted) != 0 else live


# --- sync


def sync(argv: Sequence[str]) -> int:
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
    archive = making.packed_code(options.folder)
    summary = hand_over(cluster_of(options), options.name, archive, folder=str(options.folder))
    sys.stdout.write(f"{summary}\n")
    return 0


def hand_over(cluster: Cluster, name: str, archive: bytes, *, folder: str) -> str:
    """Send the code, and print what it waits for. Returns a line about the result. After a failure the job still
    waits."""
    line = WaitLine(sys.stderr)
    try:
        sent = making.send(cluster, name, archive, report=line.show, patience=patient("sync", line))
    except (ElasticError, KeyboardInterrupt) as error:
        line.clear()
        if not isinstance(error, UsageError):
            again = f"hvd-elastic sync {name} {shlex.quote(folder)} -n {cluster.namespace}"
            sys.stderr.write(f"{name} waits for its code; to send it: {again}\n")
        raise
    line.clear()
    return f"{name}: {len(archive):,} bytes of code sent" if sent else f"{name} has its code"


# --- preflight


MARKS: Final = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM", "unknown": "?"}
COMMAND: Final = ("python", "train.py")
"""The command of the job if none is given; the checks do not depend on it."""
NO_IMAGE: Final = "example.com/image"


def preflight(argv: Sequence[str]) -> int:
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
    for finding in checks.look(cluster, job_of(options, command or COMMAND)):
        if not named and finding.what == "images" and NO_IMAGE in finding.found:
            continue
        remedy = f"\n{'':17}-> {finding.remedy}" if finding.remedy else ""
        sys.stdout.write(f"{MARKS[finding.level]:8} {finding.what:8} {finding.found}{remedy}\n")
        worst = max(worst, int(finding.level == "problem"))
    if not named:
        sys.stdout.write(f"{MARKS['unknown']:8} {'images':8} not checked; give --image\n")
    return worst

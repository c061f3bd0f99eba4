"""``hvd-elastic manifest``: list the manifests for a cluster, or print one."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.install import files
from hvd_elastic_ext.io.kube.paths import is_label
from hvd_elastic_ext.io.option_parser import Parser, nearest

FOLDERS = ("docker/manifests", "docker/monitoring")
EXAMPLE = "digits"
"""The name of the job in the manifests."""
HPA = "hpa"
HPA_IS = "HorizontalPodAutoscaler for a job: --for, --autoscale, --max-np"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises :class:`UsageError` for an unknown manifest."""
    parser = Parser(
        prog="hvd-elastic manifest",
        description="List the manifests for a cluster, or print one: hvd-elastic manifest rbac | kubectl apply -f -",
        epilog="docs/kubernetes.md says when to use which.",
    )
    parser.elsewhere[r"-np\d*|--num-proc"] = "is an option of `hvd-elastic run`; here are --min-np and --max-np"
    parser.add_argument("name", nargs="?", help="the manifest to print; all are listed by default")
    parser.add_argument("--job", metavar="NAME", help=f"the job's name, instead of {EXAMPLE}")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="the job's namespace, where a manifest names one")
    group = parser.add_argument_group(f"for {HPA}, which is made for a job")
    group.add_argument(
        "--for", dest="target", metavar="KIND/NAME", help="workload to scale, such as statefulset/digits-worker"
    )
    group.add_argument("--autoscale", metavar="threshold:…", help="the policy, as for `hvd-elastic run`")
    group.add_argument("--min-np", metavar="N", type=int, default=1, help="fewest processes (1)")
    group.add_argument("--max-np", metavar="N", type=int, help="most processes")
    group.add_argument("--slots", metavar="N", type=int, default=1, help="slots of each pod (1)")
    group.add_argument("--uid", metavar="UID", help="its metadata.uid: the autoscaler is deleted with it")
    options = parser.parse_args(argv)
    wanted = options.name
    if wanted == HPA:
        sys.stdout.write(_autoscaler(options))
        return 0
    found = (file for folder in FOLDERS for file in files.find(folder).glob("*.*"))
    there = {file.stem: file for file in sorted(found, key=lambda file: file.stem)}
    if wanted is None:
        from hvd_elastic_ext.io import tables  # to print one needs no rich

        rows = [*((name, _what(file)) for name, file in there.items()), (HPA, HPA_IS)]
        sys.stdout.write(tables.plain(("NAME", "WHAT"), sorted(rows)))
        return 0
    name = wanted.removesuffix(".yaml").removesuffix(".json")
    if name not in there:
        raise UsageError(f"there is no manifest {wanted}; {nearest(name, sorted((*there, HPA)))}")
    sys.stdout.write(of_job(there[name].read_text(encoding="utf-8"), options.job, options.namespace))
    return 0


def of_job(text: str, job: str | None, namespace: str | None) -> str:
    """Return a manifest with the name of a job instead of the example's, and a namespace instead of the default one.
    Raises :class:`UsageError` for invalid names. Pure."""
    for option, name in (("--job", job), ("--namespace", namespace)):
        if name is not None and not is_label(name):
            raise UsageError(f"{option} {name!r}: small letters, digits and '-'")
    if job is not None:  # the folder of the example that is trained has the name, too
        text = re.sub(rf"(?<![a-z0-9])(?<!01-){EXAMPLE}(?![a-z0-9])", job, text)
    return text if namespace is None else re.sub(r"namespace: default\b", f"namespace: {namespace}", text)


def _autoscaler(options: argparse.Namespace) -> str:
    """Return the generated manifest. Raises :class:`UsageError`."""
    from hvd_elastic_ext.install import hpa
    from hvd_elastic_ext.io.config_file import to_yaml

    needed = {"--for": options.target, "--autoscale": options.autoscale, "--max-np": options.max_np}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise UsageError(
            f"{HPA} needs {', '.join(missing)}; such as hvd-elastic manifest {HPA} --for statefulset/digits-worker "
            "--autoscale threshold:cpu=0.8 --max-np 16"
        )
    if options.slots < 1:
        raise UsageError(f"--slots is {options.slots}; a pod has at least 1")
    return to_yaml(
        hpa.autoscaler(
            options.target,
            options.autoscale,
            least=options.min_np,
            most=options.max_np,
            slots=options.slots,
            namespace=options.namespace,
            uid=options.uid,
            job=options.job,
        )
    )


def _what(file: Path) -> str:
    """Return the first sentence of a manifest's first comment, or the description in a JSON file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return str(json.loads(text)["description"])
    lines = text.splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"\.(?: |$)", comment, maxsplit=1)[0]

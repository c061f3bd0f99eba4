"""``hvd-elastic manifest``: list the manifests for a cluster, or print one.

One of them is made and not stored: a HorizontalPodAutoscaler (``autoscaling/v2``) for a job, from the text of a policy
``--autoscale threshold:…``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import NAMED, WORKERS_SUFFIX
from hvd_elastic_ext.install import files
from hvd_elastic_ext.io.kube.paths import is_label
from hvd_elastic_ext.io.option_parser import Parser, nearest
from hvd_elastic_ext.launcher.scaling.policies import TOTALS, Mark, Threshold, parse

# --- the command


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
    parser.elsewhere[r"-np\d*|--num-proc"] = "is an option of `hvd-elastic run`; here, give --min-np and --max-np"
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
    paths = (file for folder in FOLDERS for file in files.find(folder).glob("*.*"))
    manifests = {file.stem: file for file in sorted(paths, key=lambda file: file.stem)}
    if wanted is None:
        from hvd_elastic_ext.io import tables  # to print one needs no rich

        rows = [*((name, _what(file)) for name, file in manifests.items()), (HPA, HPA_IS)]
        sys.stdout.write(tables.plain(("NAME", "WHAT"), sorted(rows)))
        return 0
    name = wanted.removesuffix(".yaml").removesuffix(".json")
    if name not in manifests:
        raise UsageError(f"there is no manifest {wanted}; {nearest(name, sorted((*manifests, HPA)))}")
    sys.stdout.write(of_job(manifests[name].read_text(encoding="utf-8"), options.job, options.namespace))
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
        autoscaler(
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


# --- a HorizontalPodAutoscaler, made for a job


SCALABLE: Final = {name: kind for name, kind in NAMED.items() if kind.scale}
"""Kinds with a scale subresource, which also says the selector. MPIJob has none in any version."""
LONGEST_S: Final = 3600
"""The longest window that the API accepts."""
RESOURCES: Final = ("cpu", "memory")
"""Signals that Kubernetes measures, as a share of a pod's request."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
PREFIX: Final = "hvd_elastic_"
"""Prefix of the names of all other metrics."""


def autoscaler(
    target: str,
    policy: str,
    *,
    least: int,
    most: int,
    slots: int = 1,
    namespace: str | None = None,
    uid: str | None = None,
    job: str | None = None,
) -> dict[str, Any]:
    """Return the object for ``target`` (KIND/NAME). ``least`` and ``most``: processes; ``slots``: of each pod. ``job``:
    what its metrics are labelled with; by default the name of the target, without what ``submit`` adds to it.

    ``uid``: of the target, which then owns the object, so that it is deleted with it.

    Raises :class:`UsageError` for a kind that no autoscaler can scale, and for a policy that is not of signals.
    """
    kind, slash, name = target.partition("/")
    if not slash or not _NAME.fullmatch(name):
        raise UsageError(f"--for {target!r}: write KIND/NAME, such as statefulset/digits")
    if kind not in SCALABLE:
        raise UsageError(
            f"--for {target!r}: an autoscaler needs a kind with a scale subresource and a selector: "
            f"{', '.join(SCALABLE)}; others are scaled by `hvd-elastic run --autoscale`"
        )
    chosen = parse(policy)
    signals = chosen.policy(0.0)
    if not isinstance(signals, Threshold):
        raise UsageError(f"--autoscale {policy!r}: an autoscaler looks at signals; write threshold:SIGNAL=TARGET")
    low, high = math.ceil(least / slots), most // slots
    if not 1 <= low <= high:
        raise UsageError(
            f"--min-np {least}, --max-np {most}, --slots {slots}: no number of pods fits: "
            "the minimum is rounded up, the maximum down"
        )
    scaled = {"apiVersion": SCALABLE[kind].api_version, "kind": SCALABLE[kind].kind, "name": name}
    up_s = min(LONGEST_S, int(chosen.limits.get("up_s", 0)))
    down_s = min(LONGEST_S, int(chosen.limits.get("down_s", 300)))
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": name,
            **({} if namespace is None else {"namespace": namespace}),
            **({} if uid is None else {"ownerReferences": [{**scaled, "uid": _checked(uid, target)}]}),
        },
        "spec": {
            "scaleTargetRef": scaled,
            "minReplicas": low,
            "maxReplicas": high,
            "metrics": [_metric(mark, job or name.removesuffix(WORKERS_SUFFIX)) for mark in signals.marks],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": up_s},
                "scaleDown": {
                    "stabilizationWindowSeconds": down_s,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": max(15, min(1800, down_s))}],
                },
            },
        },
    }


def _checked(uid: str, target: str) -> str:
    if not _UID.fullmatch(uid):
        raise UsageError(f"--uid {uid!r}: write the metadata.uid of {target}, as `kubectl get -o yaml` shows it")
    return uid


def _metric(mark: Mark, job: str) -> dict[str, Any]:
    target = mark.high if mark.low is None else (mark.low + mark.high) / 2
    if mark.signal in RESOURCES:
        share = {"type": "Utilization", "averageUtilization": max(1, round(100 * target))}
        return {"type": "Resource", "resource": {"name": mark.signal, "target": share}}
    average = mark.signal in TOTALS
    value = {"type": "AverageValue" if average else "Value", "averageValue" if average else "value": _quantity(target)}
    metric = {"name": PREFIX + mark.signal, "selector": {"matchLabels": {"job": job}}}
    return {"type": "External", "external": {"metric": metric, "target": value}}


def _quantity(number: float) -> str:
    """Format a number as a Kubernetes quantity: whole, or in thousandths."""
    return str(int(number)) if number == int(number) else f"{max(1, round(number * 1000))}m"

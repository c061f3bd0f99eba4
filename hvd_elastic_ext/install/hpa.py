"""A HorizontalPodAutoscaler (``autoscaling/v2``) for an elastic job, from ``--autoscale threshold:…``. Pure."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import NAMED, WORKERS_SUFFIX
from hvd_elastic_ext.launcher.scaling.policies import TOTALS, Mark, Threshold, parse

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
            f"--min-np {least}, --max-np {most}, --slots {slots}: no number of pods fits; "
            "the minimum rounds up, the maximum down"
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

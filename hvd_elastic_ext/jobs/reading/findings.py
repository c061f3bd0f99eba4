"""Whether a cluster can run a job, by its nodes, quotas and claims. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from hvd_elastic_ext.jobs.rendering.objects import Body
from hvd_elastic_ext.jobs.spec.job import GPU

Level = Literal["ok", "warning", "problem", "unknown"]

_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(n|u|m|k|[MGTPE]|[KMGTPE]i|[eE]\d+|)", re.ASCII)
_UNITS: Final = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    **{unit: 1e3 ** (power + 2) for power, unit in enumerate("MGTPE")},
}
_BINARY: Final = {f"{unit}i": 1024.0 ** (power + 1) for power, unit in enumerate("KMGTPE")}
_HARD: Final = ("NoSchedule", "NoExecute")
_READY_TAINTS: Final = ("node.kubernetes.io/",)
"""Taints of nodes that are not ready or are full: Kubernetes removes them later."""


class Finding(NamedTuple):
    """``what`` was checked, what was ``found``, and the ``remedy``, "" if none is needed."""

    level: Level
    what: str
    found: str
    remedy: str = ""


def amount(quantity: object) -> float:
    """Return a Kubernetes quantity as a number; 0 for an invalid one."""
    found = _QUANTITY.fullmatch(str(quantity))
    if not found:
        return 0.0
    unit = found[2]
    return float(found[1]) * (10.0 ** int(unit[1:]) if unit[1:].isdecimal() else {**_UNITS, **_BINARY}[unit])


def quantity(value: float) -> str:
    """Format a number as a Kubernetes quantity, in the unit that gives the shortest text: 2Gi, 500m, 16G."""
    if value != int(value):
        return f"{math.ceil(value * 1000)}m"
    texts = [f"{value:.0f}"]
    for unit, size in {**_UNITS, **_BINARY}.items():
        if size > 1 and value >= size and value % size == 0:
            texts.append(f"{value / size:.0f}{unit}")
    return min(texts, key=len)


def requests_of(template: Body) -> dict[str, float]:
    """Return the requests of a pod; a limit where there is no request. Pure."""
    return _of_pod(template, lambda resources: {**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def limits_of(template: Body) -> dict[str, float]:
    """Return the limits of a pod. Pure."""
    return _of_pod(template, lambda resources: resources.get("limits") or {})


def _of_pod(template: Body, part: Callable[[Body], Mapping[str, Any]]) -> dict[str, float]:
    """Return the sums over all containers that run together, sidecars included, or what one earlier init container
    needs, if that is more."""
    spec = template["spec"]
    init = spec.get("initContainers") or []
    together = [*spec["containers"], *(each for each in init if each.get("restartPolicy") == "Always")]
    total: dict[str, float] = {}
    for container in together:
        for name, value in part(container.get("resources") or {}).items():
            total[name] = total.get(name, 0.0) + amount(value)
    for container in (each for each in init if each.get("restartPolicy") != "Always"):
        for name, value in part(container.get("resources") or {}).items():
            total[name] = max(total.get(name, 0.0), amount(value))
    return total


def of_nodes(nodes: Sequence[Body] | None, worker: Body, *, least: int) -> list[Finding]:
    """Whether nodes have room for ``least`` workers, by labels, taints and the size of nodes. The present use of nodes
    is not known."""
    if nodes is None:
        return [Finding("unknown", "nodes", "they may not be read", "an administrator can tell which ones fit")]
    wanted, selector = requests_of(worker), worker["spec"].get("nodeSelector") or {}
    labelled = [node for node in nodes if selector.items() <= _labels(node).items()]
    if not nodes:
        return [Finding("problem", "nodes", "there are none", "add nodes")]
    if not labelled:
        labels = ",".join(f"{name}={value}" for name, value in selector.items())
        return [Finding("problem", "nodes", f"none of {len(nodes)} has the labels {labels}", "change --selector")]
    large = [node for node in labelled if _room(node, wanted) > 0]
    if not large:
        asked = ", ".join(f"{name} {quantity(value)}" for name, value in wanted.items())
        return [Finding("problem", "nodes", f"none has room for a worker, even empty: {asked}", _smaller(wanted))]
    open_ = [node for node in large if not _hard_taints(node, worker)]
    found = [_of_taints(large, worker)] if len(open_) < len(large) else []
    room = sum(_room(node, wanted) for node in open_)
    text = f"{len(open_)} of {len(nodes)} take a worker; {room} workers fit if they are empty"
    if room >= least:
        return [Finding("ok", "nodes", text), *found]
    remedy = "tolerate the taints below" if found else "lower --min-workers, or add nodes"
    return [Finding("problem", "nodes", f"{text}, and --min-workers is {least}", remedy), *found]


def _smaller(wanted: Mapping[str, float]) -> str:
    return "lower --gpus, --cpu or --memory" if GPU in wanted else "lower --cpu or --memory"


def _of_taints(nodes: Sequence[Body], worker: Body) -> Finding:
    counts: dict[str, int] = {}
    for node in nodes:
        for taint in _hard_taints(node, worker):
            text = f"{taint['key']}{'=' * bool(taint.get('value'))}{taint.get('value') or ''}:{taint['effect']}"
            counts[text] = counts.get(text, 0) + 1
    named = ", ".join(f"{text} ({count} nodes)" for text, count in sorted(counts.items()))
    wanted = [text for text in sorted(counts) if not text.startswith(_READY_TAINTS)]
    remedy = " ".join(f"--toleration {text}" for text in wanted)
    return Finding("warning", "taints", f"nodes that fit are closed to the job: {named}", remedy)


def _hard_taints(node: Body, worker: Body) -> list[Body]:
    taints = [each for each in (node.get("spec") or {}).get("taints") or [] if each.get("effect") in _HARD]
    given = worker["spec"].get("tolerations") or []
    return [each for each in taints if not any(_tolerates(toleration, each) for toleration in given)]


def _tolerates(toleration: Body, taint: Body) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _labels(node: Body) -> Mapping[str, str]:
    found: Mapping[str, str] = node["metadata"].get("labels") or {}
    return found


def _room(node: Body, wanted: Mapping[str, float]) -> int:
    """Return how many workers fit onto an empty node."""
    has = (node.get("status") or {}).get("allocatable") or {}
    fits = [int(amount(has.get(name)) // value) for name, value in {"pods": 1.0, **wanted}.items() if value]
    return min(fits)


def of_quotas(
    quotas: Sequence[Body], worker: Body, *, least: int, workers: int, launcher: Body | None = None
) -> list[Finding]:
    """Whether quotas of the namespace leave room for the launcher, if the kind has one, and for workers."""
    wanted, before = _counted(worker), {} if launcher is None else _counted(launcher)
    found = []
    for quota in quotas:
        status = quota.get("status") or {}
        for name, hard in (status.get("hard") or {}).items():
            left = amount(hard) - amount((status.get("used") or {}).get(name)) - before.get(name, 0.0)
            what = f"{quota['metadata']['name']}: {name} has room for"
            if left < 0 and before.get(name):
                found.append(Finding("problem", "quota", f"{what} no launcher", "lower the sizes, or ask for more"))
            elif wanted.get(name) and (fits := int(left // wanted[name])) < workers:
                text = f"{what} {max(fits, 0)} workers{' beside the launcher' * (launcher is not None)}"
                level: Level = "problem" if fits < least else "warning"
                found.append(Finding(level, "quota", text, "lower the sizes, or ask for more"))
    return found or [Finding("ok", "quota", f"{len(quotas)} of the namespace, with room for {workers} workers")]


def _counted(template: Body) -> dict[str, float]:
    """Return what quotas count of a pod, by their names for it."""
    counted = {"pods": 1.0}
    for name, value in requests_of(template).items():
        counted |= {f"requests.{name}": value, name: value}
    return counted | {f"limits.{name}": value for name, value in limits_of(template).items()}

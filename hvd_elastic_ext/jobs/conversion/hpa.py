"""HorizontalPodAutoscaler ``v2beta1`` and ``v2beta2`` as ``v2``. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.core.workload_kinds import KINDS
from hvd_elastic_ext.jobs.conversion.document import Body, Conversion

NEW: Final = "autoscaling/v2"
OLD: Final = ("autoscaling/v2beta1", "autoscaling/v2beta2")
TARGETS: Final[Mapping[str, tuple[str, str]]] = {
    "targetAverageUtilization": ("Utilization", "averageUtilization"),
    "targetAverageValue": ("AverageValue", "averageValue"),
    "averageValue": ("AverageValue", "averageValue"),
    "targetValue": ("Value", "value"),
}
"""Fields of ``v2beta1`` and their type and target field in ``v2``. The first that exists counts."""


def convert(body: Body) -> Conversion:
    """Convert an autoscaler of one of :data:`OLD`. Fields of ``v2beta1`` occur in both."""
    conversion = Conversion(copy.deepcopy(body))
    conversion.set("apiVersion", NEW, "older versions are gone since Kubernetes 1.26 (v2beta1: 1.25)")
    conversion.drop("status", "its controller writes it")
    for number, metric in enumerate(conversion.get("spec.metrics") or []):
        kind = str(metric.get("type"))
        source = metric.get(kind[:1].lower() + kind[1:])
        if isinstance(source, dict):
            _metric(conversion, source, f"spec.metrics[{number}].{kind[:1].lower()}{kind[1:]}")
    _target(conversion)
    return conversion


def _metric(conversion: Conversion, source: Body, where: str) -> None:
    if isinstance(source.get("target"), Mapping) and "kind" in source["target"]:
        source["describedObject"] = source.pop("target")
        conversion.changes.append(f"{where}.target -> describedObject: target is the wanted value now")
    name, labels = source.pop("metricName", None), source.pop("metricSelector", source.pop("selector", None))
    if name is not None:
        source["metric"] = {"name": name, **({} if labels is None else {"selector": labels})}
        conversion.changes.append(f"{where}.metricName -> metric.name")
    for old, (kind, new) in TARGETS.items():
        if old not in source:
            continue
        value = source.pop(old)
        if "target" in source:
            conversion.changes.append(f"{where}.{old} = {value}: left out, since target counts")
            continue
        source["target"] = {"type": kind, new: value}
        conversion.changes.append(f"{where}.{old} -> target.{new}")


def _target(conversion: Conversion) -> None:
    target: Any = conversion.get("spec.scaleTargetRef") or {}
    kind, version = target.get("kind"), str(target.get("apiVersion"))
    scaled = next((each for each in KINDS if each.kind == kind and not each.built_in), None)
    if scaled is None:
        return
    if scaled.scale and version != scaled.api_version:
        conversion.set("spec.scaleTargetRef.apiVersion", scaled.api_version, "the group of the job that is scaled")
    elif not scaled.scale:
        conversion.dropped.append(
            f"spec.scaleTargetRef: {kind} {target.get('name')}: no autoscaler can scale it, because it has no scale "
            "subresource; `hvd-elastic run --autoscale` can"
        )

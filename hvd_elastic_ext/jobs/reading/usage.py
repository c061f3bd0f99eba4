"""What pods use, beside what they may use. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_elastic_ext.jobs.reading.findings import amount
from hvd_elastic_ext.jobs.reading.states import pod
from hvd_elastic_ext.jobs.rendering.objects import Body
from hvd_elastic_ext.jobs.spec.job import GPU


@dataclass(frozen=True, slots=True)
class PodUsage:
    """``cpu`` in cores, ``memory`` in bytes, of all containers together; None where nobody has measured. What a pod may
    have is its limit, or its request where there is none; 0 without both. ``gpus``: that it has for itself."""

    name: str
    role: str
    cpu: float | None
    cpu_limit: float
    memory: float | None
    memory_limit: float
    gpus: int
    node: str


def used(pods: Sequence[Body], metrics: Sequence[Body]) -> list[PodUsage]:
    """``metrics``: ``PodMetrics`` of the cluster's metrics server."""
    by_name = {each["metadata"]["name"]: each.get("containers") or [] for each in metrics}
    return [_of(each, by_name.get(each["metadata"]["name"])) for each in pods]


def _of(body: Body, measured: Sequence[Body] | None) -> PodUsage:
    seen = pod(body)
    granted = _granted(body["spec"])
    return PodUsage(
        name=seen.name,
        role=seen.role,
        cpu=_sum(measured, "cpu"),
        cpu_limit=granted.get("cpu", 0.0),
        memory=_sum(measured, "memory"),
        memory_limit=granted.get("memory", 0.0),
        gpus=int(granted.get(GPU, 0.0)),
        node=seen.node,
    )


def _sum(measured: Sequence[Body] | None, resource: str) -> float | None:
    if measured is None:
        return None
    return sum(amount((each.get("usage") or {}).get(resource)) for each in measured)


def _granted(spec: Body) -> Mapping[str, float]:
    """What containers may have together. Init containers that stay, as sidecars, count; others are over."""
    stay = [each for each in spec.get("initContainers") or [] if each.get("restartPolicy") == "Always"]
    total: dict[str, float] = {}
    for container in (*stay, *spec["containers"]):
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            total[name] = total.get(name, 0.0) + amount(value)
    return total

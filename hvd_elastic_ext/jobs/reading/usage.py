"""Resource usage of pods, and their limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_elastic_ext.jobs.reading.findings import amount
from hvd_elastic_ext.jobs.reading.states import pod
from hvd_elastic_ext.jobs.rendering.objects import Body
from hvd_elastic_ext.jobs.spec.job import GPU


@dataclass(frozen=True, slots=True)
class PodUsage:
    """``cpu`` (cores) and ``memory`` (bytes): used by all containers; None if unknown. ``cpu_limit`` and
    ``memory_limit``: the limit, or else the request, or else 0. ``gpus``: number of GPUs of the pod."""

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
    """Return the limits of all containers together. Of init containers only sidecars count; others have ended."""
    stay = [each for each in spec.get("initContainers") or [] if each.get("restartPolicy") == "Always"]
    total: dict[str, float] = {}
    for container in (*stay, *spec["containers"]):
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            total[name] = total.get(name, 0.0) + amount(value)
    return total

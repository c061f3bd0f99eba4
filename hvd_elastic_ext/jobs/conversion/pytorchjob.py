"""A PyTorchJob of another vendor's group, or of an old version, as ``kubeflow.org/v1``. Pure."""

from __future__ import annotations

import copy
from typing import Any, Final

from hvd_elastic_ext.core.workload_kinds import NAMED
from hvd_elastic_ext.jobs.conversion.document import Body, Conversion, absent

NEW: Final = NAMED["pytorchjob"].api_version
CONTAINER: Final = "pytorch"
RUN_POLICY: Final = (
    "backoffLimit",
    "activeDeadlineSeconds",
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "schedulingPolicy",
)
SPEC: Final = frozenset({"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"})
ELASTIC: Final = frozenset(
    {
        "maxReplicas",
        "maxRestarts",
        "metrics",
        "minReplicas",
        "rdzvBackend",
        "rdzvConf",
        "rdzvHost",
        "rdzvId",
        "rdzvPort",
    }
)


def convert(body: Body) -> Conversion:
    """Convert a job of any group."""
    conversion = Conversion(copy.deepcopy(body))
    group = body["apiVersion"].partition("/")[0]
    conversion.set(
        "apiVersion", NEW, "the training operator's group; fields that only the other operator knows are named below"
    )
    conversion.drop("status", "an operator writes it")
    for name in RUN_POLICY:
        conversion.move(f"spec.{name}", f"spec.runPolicy.{name}", "it is there in kubeflow.org/v1")
    _elastic(conversion)
    conversion.drop_others("spec", SPEC, f"{NEW} has no such field")
    for role, replica in (conversion.get("spec.pytorchReplicaSpecs") or {}).items():
        _container(conversion, role, replica)
    named = {*(conversion.get("metadata.labels") or {}), *(conversion.get("metadata.annotations") or {})}
    for name in sorted(name for name in named if group != "kubeflow.org" and group in name.partition("/")[0]):
        conversion.changes.append(f"metadata: {name} stays; only the other operator reads it")
    return conversion


def _elastic(conversion: Conversion) -> None:
    switch = conversion.take("spec.enableElastic")
    if not absent(switch):
        conversion.changes.append(f"spec.enableElastic = {switch}: elasticPolicy alone says that a job is elastic")
        if not switch:
            conversion.drop("spec.elasticPolicy", "spec.enableElastic was false")
    endpoint = conversion.take("spec.elasticPolicy.rdzvEndpoint")
    if not absent(endpoint):
        host, _, port = str(endpoint).rpartition(":")
        why = f"spec.elasticPolicy.rdzvEndpoint = {endpoint}, in two fields"
        conversion.set("spec.elasticPolicy.rdzvHost", host or str(endpoint), why)
        if host and port.isdecimal():
            conversion.set("spec.elasticPolicy.rdzvPort", int(port), why)
    each: Any = conversion.take("spec.elasticPolicy.nProcPerNode")
    if not absent(each):
        conversion.set("spec.nprocPerNode", str(each), "in elasticPolicy it is deprecated, and both are refused")
    conversion.drop("spec.elasticPolicy.standalone", "the operator's PET_STANDALONE='' stops torchrun")
    conversion.drop_others("spec.elasticPolicy", ELASTIC, f"{NEW} has no such field")


def _container(conversion: Conversion, role: str, replica: Body) -> None:
    containers = ((replica.get("template") or {}).get("spec") or {}).get("containers") or []
    if containers and all(each.get("name") != CONTAINER for each in containers):
        conversion.changes.append(
            f"{role}: container {containers[0].get('name')} is named {CONTAINER}: the operator looks for this name"
        )
        containers[0]["name"] = CONTAINER

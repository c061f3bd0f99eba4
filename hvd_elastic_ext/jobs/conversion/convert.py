"""Chooses what converts a document. Pure."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.core.workload_kinds import ROOTS
from hvd_elastic_ext.jobs.conversion import hpa, mpijob, pytorchjob
from hvd_elastic_ext.jobs.conversion.document import Body, Conversion
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, LAUNCHER, ROLE_LABEL, WORKER, merged

KINDS: Final = ("MPIJob", "HorizontalPodAutoscaler", "PyTorchJob")
"""Kinds of which a version is converted. Others are printed as they are."""


def convert(body: Body) -> Conversion:
    """Return the converted document; unchanged if no module here handles its kind and version."""
    kind, version = body.get("kind"), str(body.get("apiVersion"))
    if kind == "MPIJob" and version in mpijob.OLD:
        return _labelled(mpijob.convert(body))
    if kind == "HorizontalPodAutoscaler" and version in hpa.OLD:
        return hpa.convert(body)
    if kind == "PyTorchJob" and version != pytorchjob.NEW:
        return _labelled(pytorchjob.convert(body))
    return Conversion(body)


def flattened(documents: list[Body]) -> list[Body]:
    """Return the documents, with each List replaced by its items. Raises ``TypeError`` if these are not a list."""
    found: list[Body] = []
    for body in documents:
        items = body.get("items") or [] if isinstance(body, dict) and body.get("kind") == "List" else None
        if items is not None and not isinstance(items, list):
            raise TypeError
        found += [body] if items is None else flattened(items)
    return found


def _labelled(conversion: Conversion) -> Conversion:
    """Label the pods, which ``hvd-elastic get``, ``logs`` and ``attach`` find by that."""
    name = conversion.get("metadata.name")
    if isinstance(name, str):
        replicas = conversion.get(f"spec.{ROOTS[conversion.get('kind')].roles_at}") or {}
        for role, replica in replicas.items():
            labels = {JOB_LABEL: name, ROLE_LABEL: LAUNCHER if role.lower() == LAUNCHER else WORKER}
            merged(replica.setdefault("template", {}).setdefault("metadata", {}), "labels", labels)
        conversion.changes.append(f"pods have the labels {JOB_LABEL} and {ROLE_LABEL}: hvd-elastic get, logs, attach")
    return conversion

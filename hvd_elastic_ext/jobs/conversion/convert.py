"""Chooses what converts a document. Pure."""

from __future__ import annotations

from hvd_elastic_ext.jobs.conversion import hpa, mpijob, pytorchjob
from hvd_elastic_ext.jobs.conversion.document import Body, Conversion


def convert(body: Body) -> Conversion:
    """Return the converted document; unchanged if no module here handles its kind and version."""
    kind, version = body.get("kind"), str(body.get("apiVersion"))
    if kind == "MPIJob" and version in mpijob.OLD:
        return mpijob.convert(body)
    if kind == "HorizontalPodAutoscaler" and version in hpa.OLD:
        return hpa.convert(body)
    if kind == "PyTorchJob" and version != pytorchjob.NEW:
        return pytorchjob.convert(body)
    return Conversion(body)


def flattened(documents: list[Body]) -> list[Body]:
    """Return the documents, with each List replaced by its items."""
    found: list[Body] = []
    for body in documents:
        is_list = isinstance(body, dict) and body.get("kind") == "List"
        found += flattened(list(body.get("items") or [])) if is_list else [body]
    return found

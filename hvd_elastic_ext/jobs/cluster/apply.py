"""Makes the objects of a job, so that either all are there and belong to it, or none is left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, ClusterRefused, WrongState
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL
from hvd_elastic_ext.jobs.rendering.render import BY, MANAGED, owned

FOUND: Final = (
    ("mpijob", "kubeflow.org/v2beta1", "mpijobs"),
    ("trainingjob", "kai.alibabacloud.com/v1alpha1", "trainingjobs"),
)
"""Operators in the order in which they are preferred; without any it is a StatefulSet."""
SIDECARS: Final = (1, 29)
"""The first version of Kubernetes with native sidecars."""


def kind_for(cluster: Cluster, command: Sequence[str]) -> str:
    """What the cluster can make a job of. A command of torchrun becomes a PyTorchJob where there is such a kind."""
    if command[:1] == ["torchrun"] and _has(cluster, "kubeflow.org/v1", "pytorchjobs"):
        return "pytorchjob"
    kind = next((kind for kind, version, plural in FOUND if _has(cluster, version, plural)), "statefulset")
    return "mpijob-older" if kind == "mpijob" and version(cluster) < SIDECARS else kind


def _has(cluster: Cluster, version: str, plural: str) -> bool:
    listed = (cluster.read(f"/apis/{version}") or {}).get("resources") or []
    return any(each.get("name") == plural for each in listed)


def version(cluster: Cluster) -> tuple[int, int]:
    """Of Kubernetes: major and minor."""
    said = cluster.ask("GET", "/version")
    numbers = [int("".join(filter(str.isdigit, str(said.get(name)))) or 0) for name in ("major", "minor")]
    return numbers[0], numbers[1]


def try_out(cluster: Cluster, objects: Sequence[Body]) -> list[Body]:
    """What the server would make of them; it keeps nothing."""
    return [cluster.create(body, dry=True) for body in objects]


def create(cluster: Cluster, objects: Sequence[Body]) -> Body:
    """Make all, the job last, and give the others to it. Returns the job. What was made before a failure is removed.

    What an earlier attempt for this job left, without an owner, is used again. Raises :class:`UsageError` for a job
    that is there already, and for objects of others under a name that is needed.
    """
    *others, root = objects
    if cluster.read(cluster.path_of(root)) is not None:
        name = root["metadata"]["name"]
        raise WrongState(
            f"{root['kind']} {name} is there already in namespace {cluster.namespace}; hvd-elastic delete {name}, "
            "or take another NAME"
        )
    made: list[Body] = []
    asked: list[Body] = []
    try:
        for body in others:
            made += _ensured(cluster, body)
        asked = [root]
        job = cluster.create(root)
        made.append(root)
        give(cluster, others, {**root, "metadata": job["metadata"]})
    except (Permanent, KeyboardInterrupt) as error:
        # Without an answer the job may be there, and would not have what it needs.
        unsure = [] if isinstance(error, ClusterRefused) or root in made else asked
        for body in (*unsure, *reversed(made)):
            with contextlib.suppress(Permanent):
                cluster.delete(cluster.path_of(body))
        raise
    return job


def _ensured(cluster: Cluster, body: Body) -> list[Body]:
    """What had to be made: ``body``, unless it is there, the job's own, from before."""
    try:
        cluster.create(body)
    except ClusterRefused as error:
        if error.code != HTTPStatus.CONFLICT:
            raise
        there = cluster.read(cluster.path_of(body)) or {}
        if not is_left_over(there, body):
            raise WrongState(
                f"{body['kind']} {body['metadata']['name']} is there already and is not this job's; take another NAME"
            ) from None
        cluster.delete(cluster.path_of(body))
        cluster.create(body)
    return [body]


def is_left_over(there: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether an object was made for this job and never given to it."""
    metadata = there.get("metadata") or {}
    labels = metadata.get("labels") or {}
    ours = {name: body["metadata"]["labels"][name] for name in (JOB_LABEL, MANAGED)}
    return not metadata.get("ownerReferences") and ours.items() <= labels.items() and ours[MANAGED] == BY


def give(cluster: Cluster, objects: Sequence[Body], root: Body) -> None:
    """Let objects go with the job."""
    patch = {"metadata": {"ownerReferences": owned(root)}}
    for body in objects:
        cluster.ask("PATCH", cluster.path_of(body), patch)

"""Creates the objects of a job: either all exist and belong to the job, or none remains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.core.commands import leading_variables
from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.core.workload_kinds import ROOTS
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, WrongState, plural
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL
from hvd_elastic_ext.jobs.rendering.render import BY, MANAGED, owned

SIDECARS: Final = (1, 29)
"""The first version of Kubernetes with native sidecars."""


def kind_for(cluster: Cluster, command: Sequence[str], *, say: Callable[[str], object] = lambda line: None) -> str:
    """Choose the kind of object for a job: one that the cluster has, and that this account may create. A torchrun
    command becomes a kind without a launcher if there is one. ``say`` takes a line about a kind that is passed over."""
    _, program = leading_variables(command)
    of_torchrun = program[:1] == ("torchrun",)
    operators = [kind for kind in ROOTS.values() if not kind.built_in and (kind.has_launcher or of_torchrun)]
    for kind in sorted(operators, key=lambda kind: kind.has_launcher):
        if not cluster.has(kind.api_version, kind.plural):
            continue
        if cluster.may("create", kind.group, kind.plural):
            return kind.older_manifest if kind.older_manifest and version(cluster) < SIDECARS else kind.manifest
        say(f"your account may not create {kind.plural}, which this cluster has: another kind is taken")
    return next(kind.manifest for kind in ROOTS.values() if kind.built_in)


def no_such_kind(cluster: Cluster, body: Mapping[str, Any]) -> str:
    """Return what to do about a kind that the cluster does not have; "" if it has it."""
    if cluster.has(body["apiVersion"], plural(body["kind"])):
        return ""
    return f"the cluster has no {body['kind']} ({body['apiVersion']}): install its operator, or take another --kind"


def version(cluster: Cluster) -> tuple[int, int]:
    """Of Kubernetes: major and minor."""
    answer = cluster.ask("GET", "/version")
    numbers = [int("".join(filter(str.isdigit, str(answer.get(name)))) or 0) for name in ("major", "minor")]
    return numbers[0], numbers[1]


def try_out(cluster: Cluster, objects: Sequence[Body]) -> list[Body]:
    """Return the objects as the server would create them (dry run). Raises :class:`UsageError` for a kind that it does
    not have."""
    _check_kind(cluster, objects[-1])
    tried: list[Body] = []
    for body in objects:
        tried.append(try_one(cluster, body, tried))
    return tried


def try_one(cluster: Cluster, body: Body, tried: Sequence[Body]) -> Body:
    """Return an object as the server would create it (dry run), after those in ``tried``.

    The binding to a Role is refused (404) where that Role is only tried, and so does not exist: the server compares the
    rights in it with the user's own. It has done so with the Role itself, and the right to make bindings came before.
    """
    try:
        return cluster.create(body, dry=True)
    except ApiError as error:
        role = (body.get("roleRef") or {}).get("name")
        known = any((each.get("kind"), each["metadata"]["name"]) == ("Role", role) for each in tried)
        if error.reason is not Reason.NOT_FOUND or body["kind"] != "RoleBinding" or not known:
            raise
        return body


def _check_kind(cluster: Cluster, root: Body) -> None:
    if problem := no_such_kind(cluster, root):
        raise WrongState(problem)


def create(cluster: Cluster, objects: Sequence[Body]) -> Body:
    """Create all objects, the job last, and make it their owner. Returns the job. After a failure, removes the objects
    that it created.

    Replaces objects without an owner that an earlier attempt for this job left. Raises :class:`UsageError` for a job
    that exists already, and for objects of others that have a needed name.
    """
    *others, root = objects
    _check_kind(cluster, root)
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
    except (ElasticError, KeyboardInterrupt) as error:
        # Without an answer the job may exist, and the objects that it needs are deleted here. So it is deleted, too.
        unsure = [] if (isinstance(error, ApiError) and error.answered) or root in made else asked
        for body in (*unsure, *reversed(made)):
            with contextlib.suppress(ElasticError):
                cluster.delete(cluster.path_of(body))
        raise
    return job


def _ensured(cluster: Cluster, body: Body) -> list[Body]:
    """Create ``body``, and return it in a list. Replaces an object that an earlier attempt for this job left."""
    try:
        cluster.create(body)
    except ApiError as error:
        if error.reason is not Reason.CONFLICT:
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
    """Whether an object was created for this job and never got an owner."""
    metadata = there.get("metadata") or {}
    labels = metadata.get("labels") or {}
    ours = {name: body["metadata"]["labels"][name] for name in (JOB_LABEL, MANAGED)}
    return not metadata.get("ownerReferences") and ours.items() <= labels.items() and ours[MANAGED] == BY


def give(cluster: Cluster, objects: Sequence[Body], root: Body) -> None:
    """Make the job the owner of objects, so that they are deleted with it."""
    patch = {"metadata": {"ownerReferences": owned(root)}}
    for body in objects:
        cluster.ask("PATCH", cluster.path_of(body), patch)

"""Asks a cluster whether a job could run, and changes nothing.

The server checks the objects itself (dry run). What it does not tell, since no pod is made, is judged from nodes,
quotas, claims and images (``reading/findings``). What this account may not read is unknown, and not a reason to stop:
``submit`` may work all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.core.workload_kinds import ROOTS, SUBMITTED
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of
from hvd_elastic_ext.jobs.cluster import making
from hvd_elastic_ext.jobs.cluster.api import Cluster, plural
from hvd_elastic_ext.jobs.cluster.making import rendered_of, with_key
from hvd_elastic_ext.jobs.reading import findings
from hvd_elastic_ext.jobs.reading.findings import Finding
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, Body, templates
from hvd_elastic_ext.jobs.rendering.render import Rendered
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.jobs.spec.source import claim_of

CLASSES: Final = path_of("storage.k8s.io/v1", "storageclasses")
AFTERWARDS: Final = (
    ("", "pods", "", "list", "get, logs"),
    ("", "pods", "log", "get", "logs"),
    ("", "pods", "exec", "create", "attach, --sync of a large folder, and the journal in events"),
    ("", "events", "", "list", "events"),
)
"""Rights that commands need for an existing job: group, resource, subresource, verb, and which commands need it."""


def look(cluster: Cluster, job: Job) -> Iterator[Finding]:
    """Yield findings."""
    version = ".".join(map(str, making.version(cluster)))
    yield Finding("ok", "server", f"Kubernetes {version}, namespace {cluster.namespace}")
    rendered = rendered_of(job)
    yield Finding("ok", "kind", f"--kind {job.kind}: {rendered.root['kind']}")
    yield from _objects(cluster, job, rendered)
    yield from _rights(cluster, rendered)
    pods = {role: each for body in rendered.objects for role, each in templates(body)}
    worker = pods["worker"]
    nodes = _nodes(cluster)
    yield from findings.of_nodes(nodes, worker, least=job.min_workers)
    try:
        quotas = cluster.listed("v1", "resourcequotas")
        launcher = pods.get(LAUNCHER)
        yield from findings.of_quotas(quotas, worker, least=job.min_workers, workers=job.workers, launcher=launcher)
    except ApiError as error:
        if not error.answered:
            raise
        yield Finding("unknown", "quota", str(error))
    yield from _claims(cluster, job)
    yield from _images(cluster, job, nodes)


def _claims(cluster: Cluster, job: Job) -> Iterator[Finding]:
    synced = claim_of(job.sync)
    names = [*job.volumes.values(), *([synced.name] if synced else [])]
    if not names:
        return
    try:
        claims = {each["metadata"]["name"]: each for each in cluster.listed("v1", "persistentvolumeclaims")}
    except ApiError as error:
        if not error.answered:
            raise
        yield Finding("unknown", "claim", str(error))
        return
    pods = job.workers + SUBMITTED[job.kind].has_launcher
    yield from findings.of_claims(names, claims, _everywhere(cluster, CLASSES), pods=pods)


def _images(cluster: Cluster, job: Job, nodes: list[Body] | None) -> Iterator[Finding]:
    named = [job.image, *([job.discover_image] if job.discover_image else [])]
    wanted = list(dict.fromkeys(named))
    try:
        secrets = {name: cluster.read(cluster.path("v1", "secrets", name)) for name in job.pull_secrets}
        yield from findings.of_secrets(job.pull_secrets, secrets, wanted)
    except ApiError as error:
        if not error.answered:
            raise
        yield Finding("unknown", "images", f"pull secrets: {error}")
    try:
        pods = cluster.listed("v1", "pods")
    except ApiError as error:
        if not error.answered:
            raise
        pods = []
    yield from findings.of_images(wanted, pods, nodes)


def _objects(cluster: Cluster, job: Job, rendered: Rendered) -> Iterator[Finding]:
    """Let the server check each object: rights, admission, object quotas, unknown fields."""
    tried: list[Body] = []
    for body in with_key(rendered, job):
        if body is rendered.root and (problem := making.no_such_kind(cluster, body)):
            found, _, remedy = problem.partition(": ")
            yield Finding("problem", body["kind"], found, remedy)
            continue
        try:
            tried.append(making.try_one(cluster, body, tried))
        except ApiError as error:
            if not error.answered:
                raise
            if error.reason is Reason.CONFLICT:
                yield Finding(
                    "problem", body["kind"], f"{body['metadata']['name']} already exists", "take another NAME"
                )
            elif error.reason is Reason.NOT_FOUND and body["kind"] == "RoleBinding":
                yield Finding("unknown", body["kind"], "not tried, because its Role is refused")
            else:
                yield Finding("problem", body["kind"], str(error), _remedy(error, body, cluster.namespace))
    if tried:
        yield Finding("ok", "objects", f"the server would make {', '.join(each['kind'] for each in tried)}")


def _remedy(error: ApiError, body: Body, namespace: str) -> str:
    kind = ROOTS.get(body["kind"])
    if kind is not None and kind.older_manifest and "restartPolicy" in str(error):
        return f"the operator does not know native sidecars; take --kind {kind.older_manifest}"
    if error.reason is Reason.NOT_FOUND:
        return f"make the namespace first: kubectl create namespace {namespace}"
    return "ask an administrator" if error.reason is Reason.FORBIDDEN else ""


def _rights(cluster: Cluster, rendered: Rendered) -> Iterator[Finding]:
    group, resource = rendered.root["apiVersion"].rpartition("/")[0], plural(rendered.root["kind"])
    job = ((group, resource, "", verb, commands) for verb, commands in (("patch", "scale"), ("delete", "delete")))
    for group, resource, below, verb, commands in (*AFTERWARDS, *job):
        what = f"{verb} {resource}{'/' * bool(below)}{below}"
        try:
            allowed = cluster.may(verb, group, resource, below)
        except ElasticError as error:
            yield Finding("unknown", "rights", f"{what}: {error}")
            return
        if not allowed:
            yield Finding("warning", "rights", f"you may not {what}", f"it is needed for {commands}")


def _nodes(cluster: Cluster) -> list[Body] | None:
    return _everywhere(cluster, path_of("v1", "nodes"))


def _everywhere(cluster: Cluster, path: str) -> list[Body] | None:
    """Return objects that belong to no namespace; None without the right to read them."""
    try:
        items = cluster.ask("GET", path).get("items")
    except ApiError as error:
        if not error.answered:
            raise
        return None
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []

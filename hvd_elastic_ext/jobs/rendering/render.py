"""All objects of a job, in the order of their creation. Pure.

The manifests in ``docker/manifests`` are the templates: what users read there, and may apply by hand, is what
``submit`` makes, with the job's name in place of the example's. Each job has an account, rights and a key of its own,
which no other job uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hvd_elastic_ext.core.workload_kinds import ROOTS, SUBMITTED
from hvd_elastic_ext.jobs.rendering import code, rights
from hvd_elastic_ext.jobs.rendering.objects import (
    ACCOUNT,
    EXAMPLE,
    JOB_LABEL,
    ROLE_LABEL,
    Body,
    merged,
    renamed,
    templates,
)
from hvd_elastic_ext.jobs.rendering.operator_objects import CHANGES
from hvd_elastic_ext.jobs.rendering.pods import change
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.jobs.spec.source import Revision, claim_of

MANAGED: Final = "app.kubernetes.io/managed-by"
BY: Final = "hvd-elastic"
WORKERS: Final = "hvd-elastic-ext/workers"
"""Annotation of a job: its fewest and most workers, as ``1:8``."""
RIGHTS: Final = "rbac"
"""The template of the daemon's account and rights."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A job as objects."""

    objects: tuple[Body, ...]
    """In the order of their creation: the job itself is last."""
    notes: tuple[str, ...]
    """Parts of the request that have no equivalent in this kind."""
    key: str = ""
    """The name of the Secret with the ssh key that must still be made, if the kind needs one."""
    archive: bytes = b""
    """Code to send to the launcher's pod once the job exists."""

    @property
    def root(self) -> Body:
        """Return the object that represents the job."""
        return self.objects[-1]


def needed(job: Job) -> tuple[str, ...]:
    """Return the names of the manifests for the job."""
    return (RIGHTS, job.kind) if SUBMITTED[job.kind].has_launcher else (job.kind,)


def render(
    job: Job, manifests: Mapping[str, Sequence[Body]], *, archive: bytes = b"", commit: Revision | None = None
) -> Rendered:
    """Make the objects of a job. ``manifests``: the documents of each of :func:`needed`; ``archive`` or ``commit``: the
    code of ``--sync``, unless it is on a claim. Raises :class:`UsageError` for an option that the kind does not
    support.
    """
    bodies = [renamed(body, job.name) for name in needed(job) for body in manifests[name]]
    granted = [body for body in bodies if body["kind"] in ("Role", "RoleBinding", "ServiceAccount")]
    objects = [*_rights(granted, job), *(body for body in bodies if body not in granted)]
    objects.sort(key=lambda body: body["kind"] in ROOTS)  # what pods need is there before them
    for body in objects:
        for role, template in templates(body):
            change(template, role, job)
    notes = CHANGES[SUBMITTED[job.kind].kind](objects, job) + rights.grant(objects, job) + _storage(job)
    key = _key(objects, job)
    sent = archive if len(archive) > code.FITS else b""
    if sent:
        code.add_sent(objects, job, sent)
    elif archive:
        objects = [*code.add(objects, job, archive), *objects]
    if commit is not None:
        code.add_commit(objects, job, commit)
    if (claim := claim_of(job.sync)) is not None:
        code.add_claim(objects, job, claim)
    for body in objects:
        merged(body["metadata"], "labels", {JOB_LABEL: job.name, MANAGED: BY})
    root = objects[-1]
    merged(root["metadata"], "labels", job.labels)
    merged(root["metadata"], "annotations", {**job.annotations, WORKERS: f"{job.min_workers}:{job.max_workers}"})
    return Rendered(tuple(objects), tuple(notes), key, sent)


def _storage(job: Job) -> list[str]:
    asked = job.sleeps or job.restart_policy == "OnFailure"
    place = job.option("--checkpoint-dir")
    if place and "://" not in place and not any(_is_within(place, path) for path in job.volumes):
        return [
            f"--checkpoint-dir {place} is a folder of each pod by itself, unless the image mounts it: only a URL or a "
            f"claim (--data CLAIM:{place}) is reached by all, and outlives them"
        ]
    if not asked or place or not SUBMITTED[job.kind].has_launcher:
        return []
    return [
        "what the job keeps while it sleeps or begins again must be where every pod reaches it: a URL, or a claim "
        "(--data CLAIM:/ck), as in -- hvd-elastic run --checkpoint-dir /ck python train.py"
    ]


def _is_within(place: str, path: str) -> bool:
    return place == path or place.startswith(f"{path.rstrip('/')}/")


def _rights(bodies: Sequence[Body], job: Job) -> list[Body]:
    """Return one account, one Role with all rules, and one binding; other jobs use none of them."""
    roles = [body for body in bodies if body["kind"] == "Role"]
    if not roles:
        return []
    accounts = [body for body in bodies if body["kind"] == "ServiceAccount"]
    subjects = [subject for body in bodies if body["kind"] == "RoleBinding" for subject in body["subjects"]]
    own = renamed(ACCOUNT, job.name)
    operators = [
        subject for subject in subjects if subject["name"] != own
    ]  # the et-operator's launcher has an account of its own
    name = renamed(f"hvd-discover-{EXAMPLE}", job.name)
    group = roles[0]["apiVersion"]
    role: dict[str, Any] = {"apiGroup": group.partition("/")[0], "kind": "Role", "name": name}
    return [
        *([] if operators else accounts),
        {
            "apiVersion": group,
            "kind": "Role",
            "metadata": {"name": name},
            "rules": [rule for body in roles for rule in body["rules"]],
        },
        {
            "apiVersion": group,
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": operators[:1] or subjects[:1],
        },
    ]


def _key(objects: Sequence[Body], job: Job) -> str:
    """Return the name of the Secret with the ssh key that pods mount, unless the operator makes it or ``--ssh-secret``
    is given."""
    made = ""
    for body in objects:
        for _, template in templates(body):
            for volume in template["spec"].get("volumes", []):
                if "secret" not in volume:
                    continue
                if job.ssh_secret:
                    volume["secret"]["secretName"] = job.ssh_secret
                else:
                    made = volume["secret"]["secretName"]
    return made


def secret(name: str, job: str, *, key: str, public: str) -> Body:
    """Return the Secret with a job's ssh key: ``id`` and ``id.pub`` in base64."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {JOB_LABEL: job, MANAGED: BY}},
        "type": "Opaque",
        "data": {"id": key, "id.pub": public},
    }


def owned(root: Body) -> list[dict[str, Any]]:
    """Return the ``ownerReferences`` of a job's objects. ``root``: the job as the server returned it."""
    names = {"apiVersion": root["apiVersion"], "kind": root["kind"], "name": root["metadata"]["name"]}
    return [{**names, "uid": root["metadata"]["uid"], "controller": False, "blockOwnerDeletion": False}]


def selector(job: str = "", *, role: str = "") -> str:
    """Return the label selector of one submitted job, of one role of its pods, or of all jobs."""
    if role:
        return f"{JOB_LABEL}={job},{ROLE_LABEL}={role}"
    return f"{JOB_LABEL}={job}" if job else f"{MANAGED}={BY}"

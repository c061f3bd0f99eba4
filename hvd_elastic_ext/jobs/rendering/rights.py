"""Rights of a launcher that changes the number of its own workers (``--scale-with``, ``--release-job``), and the token
that it needs for that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import SUBMITTED
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, Body, main_container, of_kind, templates
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.launcher.sleep.replica_requests import RELEASE, Workload, workload

SCALE: Final = "--scale-with"
AUTOSCALE: Final = "--autoscale"
TOKEN: Final = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
"""The volume that each launcher's pod has for the daemon, and where clients look for it."""
_ELSEWHERE: Final = ("file:", "exec:")


def workers_of(job: Job) -> Workload:
    """Return what makes a job's workers."""
    return Workload(*SUBMITTED[job.kind].workers(job.name))


def grant(objects: Sequence[Body], job: Job) -> list[str]:
    """Give the launcher what its options need, in place. Returns notes. Raises :class:`UsageError` for workers that are
    not the job's own, and where their number cannot change."""
    if job.option("--rsh") == "pod":
        raise UsageError("--rsh pod in the command: the workers run sshd, which is used; leave it out")
    notes, own = [], workers_of(job)
    scaled = job.option(SCALE)
    if job.option(AUTOSCALE) and scaled in (None, "recommend"):
        notes.append(f"{AUTOSCALE} without {SCALE} changes nothing: the launcher says the size; {SCALE} {own} sets it")
    asked = {option: job.option(option) for option in (SCALE, RELEASE)}
    for option, value in asked.items():
        if not value or value == "recommend" or value.startswith(_ELSEWHERE):
            continue
        workload(value, option=option)
        if value != str(own):
            raise UsageError(f"{option} {value}: the workers of this job are {own}; write that")
        if option == SCALE and own.kind.fixed_in_kueue and job.queue.startswith("kueue/"):
            raise UsageError(
                f"{option} {value}: Kueue admits workers of a {own.kind.kind} as one group, whose number cannot "
                "change; leave it out, or take --kind mpijob"
            )
        rules, note = _rights(own, releases=option == RELEASE)
        of_kind(objects, "Role")["rules"] += rules
        notes += [f"{option} {value}: {note}"] if note else []
        _mount(objects)
    return notes


def _rights(own: Workload, *, releases: bool) -> tuple[list[dict[str, Any]], str]:
    """Return the rules that the daemon's Role lacks, since it lists pods and reads the job already; and a note about
    them, or ""."""
    kind, group, named = own.kind, {"apiGroups": [own.kind.group]}, {"resourceNames": [own.name]}
    if kind.scaled_by:
        note = (
            f"its launcher gets the right to make {' and '.join(f'{each}s' for each in kind.scaled_by)}, which is for "
            "the whole namespace"
        )
        return [{**group, "resources": list(kind.scaled_by_plurals), "verbs": ["create"]}], note
    if kind.scale:
        return [{**group, "resources": [f"{kind.plural}/scale"], **named, "verbs": ["get", "patch"]}], ""
    delete = {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}
    note = (
        f"its launcher gets the right to patch this {kind.kind}, which has no number of workers that can be set alone: "
        "whoever has that right may run anything under it"
    )
    return [
        {**group, "resources": [kind.plural], **named, "verbs": ["patch"]},
        *([delete] if releases and kind.invalid_without_workers else []),
    ], note


def _mount(objects: Sequence[Body]) -> None:
    for body in objects:
        for role, template in templates(body):
            mounts = main_container(template).setdefault("volumeMounts", [])
            if role == LAUNCHER and TOKEN not in mounts:
                mounts.append(dict(TOKEN))

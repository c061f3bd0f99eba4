"""Rights of a launcher that changes the number of its own workers (``--scale-with``, ``--release-job``), and the token
that it needs for that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, WORKER, Body, main_container, of_kind, templates
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.launcher.rules.suspend.workloads import RELEASE, workload

SCALE: Final = "--scale-with"
AUTOSCALE: Final = "--autoscale"
TOKEN: Final = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
"""The volume that each launcher's pod has for the daemon, and where clients look for it."""
_ELSEWHERE: Final = ("file:", "exec:")
_TOLD: Final[Mapping[str, str]] = {
    "mpijob": "its launcher gets the right to patch this MPIJob, which has no number of workers that can be set alone: "
    "whoever has that right may run anything under it",
    "trainingjob": "its launcher gets the right to make ScaleOuts and ScaleIns, which is for the whole namespace",
}


def workers_of(job: Job) -> str:
    """Return what makes a job's workers, as ``--scale-with`` names it."""
    kind = job.kind.removesuffix("-older")
    return f"{kind}/{job.name}-{WORKER}" if kind == "statefulset" else f"{kind}/{job.name}"


def grant(objects: Sequence[Body], job: Job) -> list[str]:
    """Give the launcher what its options need, in place. Returns notes. Raises :class:`UsageError` for workers that are
    not the job's own, and where their number cannot change."""
    if job.option("--rsh") == "pod":
        raise UsageError("--rsh pod in the command: workers of submit run sshd, which is used; leave it out")
    notes, own = [], workers_of(job)
    kind = own.partition("/")[0]
    scaled = job.option(SCALE)
    if job.option(AUTOSCALE) and scaled in (None, "recommend"):
        notes.append(f"{AUTOSCALE} without {SCALE} changes nothing: the launcher says the size; {SCALE} {own} sets it")
    asked = {option: job.option(option) for option in (SCALE, RELEASE)}
    for option, value in asked.items():
        if not value or value == "recommend" or value.startswith(_ELSEWHERE):
            continue
        workload(value, option=option)
        if value != own:
            raise UsageError(f"{option} {value}: the workers of this job are {own}; write that")
        if option == SCALE and kind == "statefulset" and job.queue.startswith("kueue/"):
            raise UsageError(
                f"{option} {value}: Kueue admits workers of a StatefulSet as one group, whose number cannot change; "
                "leave it out, or take --kind mpijob"
            )
        of_kind(objects, "Role")["rules"] += _rules(kind, job, releases=option == RELEASE)
        notes += [f"{option} {value}: {_TOLD[kind]}"] if kind in _TOLD else []
        _mount(objects)
    return notes


def _rules(kind: str, job: Job, *, releases: bool) -> list[dict[str, Any]]:
    """Return the rules that the daemon's Role lacks: it lists pods, and reads the job, already."""
    match kind:
        case "statefulset":
            return [
                {
                    "apiGroups": ["apps"],
                    "resources": ["statefulsets/scale"],
                    "resourceNames": [f"{job.name}-{WORKER}"],
                    "verbs": ["get", "patch"],
                }
            ]
        case "mpijob":
            of_job = {"apiGroups": ["kubeflow.org"], "resources": ["mpijobs"], "resourceNames": [job.name]}
            delete = {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}
            return [{**of_job, "verbs": ["patch"]}, *([delete] if releases else [])]
        case _:
            group = {"apiGroups": ["kai.alibabacloud.com"], "resources": ["scaleouts", "scaleins"]}
            return [{**group, "verbs": ["create"]}]


def _mount(objects: Sequence[Body]) -> None:
    for body in objects:
        for role, template in templates(body):
            mounts = main_container(template).setdefault("volumeMounts", [])
            if role == LAUNCHER and TOKEN not in mounts:
                mounts.append(dict(TOKEN))

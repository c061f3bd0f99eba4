"""What a job changes in the pods of its template, whatever the kind. Pure.

The template's own options of the launcher that belong to the pod stay; sizes come from the job, and the user's options
last, so that they take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from hvd_elastic_ext.jobs.rendering.code import place_of
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, WORKER, Body, daemon, literal, main_container, merged
from hvd_elastic_ext.jobs.spec.job import GPU, Job

FIXED: Final = ("--discovery", "--discovery-user", "--ssh-port", "--blacklist-cooldown-range", "--state-dir")
"""Options of the template's launcher that belong to the pod, not to the job's command."""
SHARED: Final = "shm"
DAEMON_COMMAND: Final = "hvd-discover"


def change(template: Body, role: str, job: Job) -> None:
    """Change a template's pod for ``job``, in place."""
    spec, container = template["spec"], main_container(template)
    container["image"] = job.image
    if job.pull_policy:
        container["imagePullPolicy"] = job.pull_policy
    if job.working_dir:
        container["workingDir"] = job.working_dir
    _metadata(template, role, job)
    merged(spec, "nodeSelector", job.launcher_selector if role == LAUNCHER else job.selector)
    for field, value in (
        ("priorityClassName", job.priority),
        ("schedulerName", job.scheduler),
        ("tolerations", [_without_empty(asdict(each)) for each in job.tolerations]),
        ("imagePullSecrets", [{"name": each} for each in job.pull_secrets]),
    ):
        if value:
            spec[field] = value
    container.setdefault("env", [])
    # A server does not keep an empty value; without it the variable is empty, too.
    container["env"] += [
        {"name": name, **({"value": literal(value)} if value else {})} for name, value in job.env.items()
    ]
    if not container["env"]:
        del container["env"]
    _claims(spec, container, job)
    if role == WORKER:
        _resources(container, job)
        _shared_memory(spec, job)
    elif role == LAUNCHER:
        container["args"] = launcher_words(container["args"], job)
    _discovery(template, job)


def launcher_words(template: list[str], job: Job) -> list[str]:
    """Return the arguments of ``hvd-elastic run``. The user's options come last and take precedence."""
    slots = job.slots_per_worker
    words = ["-np", str(job.workers * slots)]
    words += [f"--min-np={job.min_workers * slots}", f"--max-np={job.max_workers * slots}", *_fixed(template)]
    if job.sync:
        words += [f"--code={place_of(job)}"]
    if job.sleeps:
        words += ["--below-min=sleep"]
    if job.max_wait_s:
        words += [f"--max-wait-time={job.max_wait_s}"]
    if job.restart_policy:
        words += [f"--job-restart-policy={job.restart_policy}"]
    if job.backoff_limit is not None:
        words += [f"--job-backoff-limit={job.backoff_limit}"]
    return [*words, *map(literal, (*job.run_options, *job.command))]


def _fixed(words: list[str]) -> list[str]:
    kept, taking = [], False
    for word in words:
        if word.startswith("-"):
            taking = word.partition("=")[0] in FIXED
        elif not word.isdecimal():
            taking = False
        if taking:
            kept.append(word)
    return kept


def _metadata(template: Body, role: str, job: Job) -> None:
    own = job.launcher_annotations if role == LAUNCHER else job.worker_annotations
    metadata = template.setdefault("metadata", {})
    merged(metadata, "labels", job.labels)
    merged(metadata, "annotations", {**job.annotations, **own})


def _claims(spec: Body, container: Body, job: Job) -> None:
    for number, (path, claim) in enumerate(job.volumes.items()):
        name = f"data-{number}"
        spec.setdefault("volumes", []).append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
        container.setdefault("volumeMounts", []).append({"name": name, "mountPath": path})


def _resources(container: Body, job: Job) -> None:
    asked: Mapping[str, str] = {**_without_empty({"cpu": job.cpu, "memory": job.memory}), **job.devices}
    resources = container["resources"]
    merged(resources, "requests", asked)
    merged(resources, "limits", {**asked, **({GPU: str(job.gpus)} if job.gpus else {})})


def _shared_memory(spec: Body, job: Job) -> None:
    """Set the size of the shared memory, which each template mounts at /dev/shm."""
    if job.shared_memory:
        volume = next(each for each in spec["volumes"] if each["name"] == SHARED)
        volume["emptyDir"]["sizeLimit"] = job.shared_memory


def _discovery(template: Body, job: Job) -> None:
    """Set the daemon's image. A training image contains the daemon, too, but has another entry point."""
    container = daemon(template)
    if container is None:
        return
    container["image"] = job.discover_image or job.image
    if container["image"] == job.image:
        container["command"] = [DAEMON_COMMAND]
        if job.pull_policy:
            container["imagePullPolicy"] = job.pull_policy


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}

"""Code that comes with a job (``--sync``): in a ConfigMap that never changes, or a commit of a git repository. Each pod
gets it first, before anything else runs in it. Pure."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, Body, literal, main_container, merged, templates
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.jobs.spec.source import Revision

PLACE: Final = "/code"
"""Where the code is, unless the job has a working directory."""
ARCHIVE, KEY = "/run/hvd-code", "code.tar.gz"
CHECKSUM: Final = "hvd-elastic-ext/code-sha256"
VOLUME, PACKED = "code", "code-archive"


COMMIT: Final = "hvd-elastic-ext/code-commit"
FETCH: Final = """\
export GIT_DIR="$1/.git" GIT_WORK_TREE="$1" GIT_TERMINAL_PROMPT=0
git init -q
git config credential.helper '!printf "username=%s\\npassword=%s\\n" "$GIT_USERNAME" "$GIT_PASSWORD"; :'
git fetch -q --depth 1 -- "$2" "$3" || git fetch -q -- "$2"
git checkout -q --force --detach "$3"
test "$(git rev-parse HEAD)" = "$3"
rm -rf "$GIT_DIR"
"""
"""Fetches commit ``$3`` of ``$2`` into ``$1``. Not every server sends a commit alone. The repository itself does not
stay: what ignores files there would be asked for it."""


def place_of(job: Job) -> str:
    """Where the code is in every pod."""
    return job.working_dir or PLACE


def add(objects: Sequence[Body], job: Job, archive: bytes) -> list[Body]:
    """Change pods in place, and return what comes before them. Pods that come later have the same files: the ConfigMap
    is immutable, and each pod checks what it unpacks."""
    name, checksum = f"{job.name}-code", hashlib.sha256(archive).hexdigest()
    place = shlex.quote(place_of(job))
    unpack = f'echo "{checksum}  {ARCHIVE}/{KEY}" | sha256sum -c - && tar -xzf {ARCHIVE}/{KEY} -C {place}'
    mounted = {"name": PACKED, "mountPath": ARCHIVE, "readOnly": True}
    for body in objects:
        for _, template in templates(body):
            merged(template["metadata"], "annotations", {CHECKSUM: checksum})
            template["spec"].setdefault("volumes", []).append({"name": PACKED, "configMap": {"name": name}})
            _first(template, job, {"command": ["sh", "-c", unpack]}, [mounted])
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {JOB_LABEL: job.name}, "annotations": {CHECKSUM: checksum}},
            "immutable": True,
            "binaryData": {KEY: base64.b64encode(archive).decode()},
        }
    ]


def add_commit(objects: Sequence[Body], job: Job, wanted: Revision) -> None:
    """Change pods in place: each fetches the commit. Credentials come from a Secret, never in a command."""
    command = ["sh", "-ec", FETCH, "sh", place_of(job), wanted.url, wanted.revision]
    env = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": job.sync_secret, "key": key}}}
        for variable, key in (("GIT_USERNAME", "username"), ("GIT_PASSWORD", "password"))
        if job.sync_secret
    ]
    for body in objects:
        for _, template in templates(body):
            merged(template["metadata"], "annotations", {COMMIT: wanted.revision})
            _first(template, job, {"command": list(map(literal, command)), **({"env": env} if env else {})}, [])


def _first(template: Body, job: Job, what: Body, mounts: Sequence[Body]) -> None:
    """Put a container before all others, with a folder that the main one starts in."""
    spec, container = template["spec"], main_container(template)
    place = {"name": VOLUME, "mountPath": place_of(job)}
    container["workingDir"] = place_of(job)
    container.setdefault("volumeMounts", []).append(dict(place))
    spec.setdefault("volumes", []).append({"name": VOLUME, "emptyDir": {}})
    first = {
        "name": "code",
        "image": container["image"],
        **what,
        "securityContext": dict(container["securityContext"]),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [place, *mounts],
    }
    spec["initContainers"] = [first, *spec.get("initContainers", [])]

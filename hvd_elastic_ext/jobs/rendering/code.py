"""Code that comes with a job (``--sync``): in a ConfigMap that never changes, unpacked first in every pod. Pure."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, Body, main_container, merged, templates
from hvd_elastic_ext.jobs.spec.job import Job

PLACE: Final = "/code"
"""Where the code is, unless the job has a working directory."""
ARCHIVE, KEY = "/run/hvd-code", "code.tar.gz"
CHECKSUM: Final = "hvd-elastic-ext/code-sha256"
VOLUME, PACKED = "code", "code-archive"


def add(objects: Sequence[Body], job: Job, archive: bytes) -> list[Body]:
    """Change pods in place, and return what comes before them. Pods that come later have the same files: the ConfigMap
    is immutable, and each pod checks what it unpacks."""
    name, checksum = f"{job.name}-code", hashlib.sha256(archive).hexdigest()
    place = job.working_dir or PLACE
    for body in objects:
        for _, template in templates(body):
            _into(template, name, checksum, place)
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {JOB_LABEL: job.name}, "annotations": {CHECKSUM: checksum}},
            "immutable": True,
            "binaryData": {KEY: base64.b64encode(archive).decode()},
        }
    ]


def _into(template: Body, name: str, checksum: str, place: str) -> None:
    spec, container = template["spec"], main_container(template)
    container["workingDir"] = place
    container.setdefault("volumeMounts", []).append({"name": VOLUME, "mountPath": place})
    spec.setdefault("volumes", []).extend(
        [{"name": VOLUME, "emptyDir": {}}, {"name": PACKED, "configMap": {"name": name}}]
    )
    merged(template["metadata"], "annotations", {CHECKSUM: checksum})
    unpack = f'echo "{checksum}  {ARCHIVE}/{KEY}" | sha256sum -c - && tar -xzf {ARCHIVE}/{KEY} -C {shlex.quote(place)}'
    first = {
        "name": "code",
        "image": container["image"],
        "command": ["sh", "-c", unpack],
        "securityContext": dict(container["securityContext"]),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [
            {"name": VOLUME, "mountPath": place},
            {"name": PACKED, "mountPath": ARCHIVE, "readOnly": True},
        ],
    }
    spec["initContainers"] = [first, *spec.get("initContainers", [])]

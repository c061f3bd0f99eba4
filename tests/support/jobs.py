"""Jobs as tests submit them, and the manifests that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.jobs.rendering.render import Rendered, needed, render
from hvd_elastic_ext.jobs.spec.job import Job
from tests.support.manifests import Body, documents

WORKER_IMAGE: Final = "registry.example.com/hvd-elastic-worker:0.1.0"
DAEMON_IMAGE: Final = "registry.example.com/hvd-discover:0.1.0"
SCRIPT: Final = "/opt/hvd/share/hvd-elastic-ext/examples/01-digits/train.py"


def example(kind: str, **others: Any) -> Job:
    """The job of ``docker/manifests``, changed in part."""
    words: Mapping[str, Any] = {
        "name": "digits",
        "image": WORKER_IMAGE,
        "discover_image": DAEMON_IMAGE,
        "command": ("python", SCRIPT),
        "workers": 2,
        "max_workers": 8,
        "kind": kind,
    }
    return Job(**{**words, **others})


def rendered(job: Job) -> Rendered:
    return render(job, {name: documents(f"{name}.yaml") for name in needed(job)})


def one(objects: Sequence[Body], *kinds: str) -> Body:
    (found,) = (each for each in objects if each["kind"] in kinds)
    return found

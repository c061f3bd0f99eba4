"""Makes the objects of a job: reads its templates from ``docker/manifests``, and adds a key."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.install import files
from hvd_elastic_ext.io.config_file import documents
from hvd_elastic_ext.jobs.cluster import code, keys, revision
from hvd_elastic_ext.jobs.rendering.render import Rendered, needed, render, secret
from hvd_elastic_ext.jobs.spec.job import Job
from hvd_elastic_ext.jobs.spec.source import claim_of, revision_of

FOLDER: Final = "docker/manifests"


@functools.cache
def read(name: str) -> Sequence[dict[str, Any]]:
    """Return the objects of one manifest. Callers must not change them."""
    return documents((files.find(FOLDER) / f"{name}.yaml").read_text(encoding="utf-8"), where=f"{name}.yaml")


def rendered_of(job: Job) -> Rendered:
    """Return the objects of a job, without its ssh key. Raises :class:`UsageError`."""
    wanted = revision_of(job.sync)
    commit = None if wanted is None else revision.resolved(wanted)
    folder = bool(job.sync) and commit is None and claim_of(job.sync) is None
    archive = code.packed(Path(job.sync)) if folder else b""
    return render(job, {name: read(name) for name in needed(job)}, archive=archive, commit=commit)


def with_key(rendered: Rendered, job: Job) -> tuple[dict[str, Any], ...]:
    """Return all objects of a job, with a new ssh key if it needs one."""
    if not rendered.key:
        return rendered.objects
    key, public = keys.made(job.name)
    return (secret(rendered.key, job.name, key=key, public=public), *rendered.objects)

"""Jobs as tests submit them, and the objects that are made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.jobs.rendering.code import FITS
from hvd_elastic_ext.jobs.rendering.render import Rendered, needed, render
from hvd_elastic_ext.jobs.spec.job import Job, Toleration
from hvd_elastic_ext.jobs.spec.source import Revision
from tests.support.manifests import Body, documents

WORKER_IMAGE: Final = "registry.example.com/hvd-elastic-worker:0.1.0"
DAEMON_IMAGE: Final = "registry.example.com/hvd-discover:0.1.0"
SCRIPT: Final = "/opt/hvd/share/hvd-elastic-ext/examples/01-digits/train.py"


def example(kind: str, **others: Any) -> Job:
    """Return the job of ``docker/manifests``, with other values for some fields."""
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


NOWHERE: Final = {"hvd-elastic-ext/nowhere": "yes"}
"""A node selector for pods that must not run."""
CODE: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "archive": (".", {"archive": b"a few files"}),
    "sent": (".", {"archive": bytes(FITS + 1)}),
    "commit": ("git+https://example.org/x@main", {"commit": Revision("https://example.org/x", "0" * 40)}),
    "claim": ("pvc:sources/digits", {}),
}
"""Kinds of ``--sync``: the option, and the arguments of :func:`render`."""


def everything(kind: str, code: str, scheduler: str) -> Rendered:
    """Return a job with every option that its kind supports. ``code``: one of :data:`CODE`. No node can run it."""
    sync, given = CODE[code]
    torch, et = kind == "pytorchjob", kind == "trainingjob"
    job = example(
        kind,
        run_options=() if torch else ("--checkpoint-dir", "/ck"),
        min_workers=2,
        gpus=2,
        cpu="4",
        memory="16Gi",
        spot=True,
        max_wait_s=600,
        restart_policy="OnFailure",
        backoff_limit=4,
        worker_restart_policy="OnFailure",
        working_dir="/work",
        priority="high",
        scheduler="mine",
        queue="" if et else f"{scheduler}/user",
        gang=True,
        sync=sync,
        sync_secret="git" if code == "commit" else "",
        tolerations=(Toleration(), Toleration("spot", "yes", "NoSchedule", "Equal")),
        pull_secrets=("registry",),
        selector=NOWHERE,
        launcher_selector=NOWHERE,
        env={"PRICE": "$(NOT) $5", "EMPTY": ""},
        labels={"team": "a"},
        annotations={"example.org/why": "a test"},
        launcher_annotations={"example.org/role": "launcher"},
        worker_annotations={"example.org/role": "worker"},
        volumes={"/ck": "ckpt", "/data": "images"},
        shared_memory="8Gi",
        retries=None if et else 4,
        timeout_s=0 if et else 3600,
        ttl_s=0 if et else 600,
        clean_pods="" if kind == "statefulset" else "All",
        pull_policy="Always",
        devices={"rdma/hca": "1"},
    )
    return render(job, {name: documents(f"{name}.yaml") for name in needed(job)}, **given)


def one(objects: Sequence[Body], *kinds: str) -> Body:
    (found,) = (each for each in objects if each["kind"] in kinds)
    return found

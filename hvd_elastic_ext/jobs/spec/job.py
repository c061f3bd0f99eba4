"""One job as a value, checked when it is made.

``submit`` and Python (``sdk``) describe a job by the same fields, so both get the same errors, which name the option.
Kinds and clusters are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import SUBMITTED
from hvd_elastic_ext.jobs.spec import source

KINDS: Final = tuple(SUBMITTED)
"""Kinds of objects that make the pods; each is the name of its template in ``docker/manifests``."""
LONGEST_NAME: Final = 45
"""A StatefulSet labels its pods with ``NAME-worker-`` and a hash of ten characters; a label has 63 at most."""
MAX_WORKERS: Final = 1000
"""arena's default of ``--max-workers``."""
RESTARTS: Final = ("Never", "OnFailure")
WORKER_RESTARTS: Final = ("Never", "OnFailure", "Always", "ExitCode")
QUEUES: Final = ("kueue", "volcano")
OWN_LABELS: Final = ("hvd-elastic-job", "hvd-elastic-role", "app.kubernetes.io/managed-by")
"""The labels by which a job and its pods are found."""

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?", re.ASCII)
CLEANS: Final = ("None", "Running", "All")
PULLS: Final = ("Always", "IfNotPresent", "Never")
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?(m|k|[MGTPE]|[KMGTPE]i|[eE]\d+)?", re.ASCII)
GPU: Final = "nvidia.com/gpu"
_DEVICE: Final = re.compile(
    r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?|hugepages-\d+[KMG]i|ephemeral-storage", re.ASCII
)
_NONE: Final[Mapping[str, str]] = {}
_ENVIRONMENT: Final = "HVD_ELASTIC_"
"""How variables begin that give options of ``hvd-elastic run``."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that pods tolerate."""

    key: str = ""
    """"" means every taint."""
    value: str = ""
    effect: str = ""
    """"" means every effect of the key."""
    operator: str = "Exists"


@dataclass(frozen=True, slots=True)
class Job:
    """One job, checked."""

    name: str
    image: str
    """Of launcher and workers."""
    command: tuple[str, ...]
    """What is trained."""
    kind: str = ""
    """One of :data:`KINDS`, or "" for what the cluster has."""
    run_options: tuple[str, ...] = ()
    """Further options of ``hvd-elastic run``, which come before the command."""
    workers: int = 1
    """Pods at the start."""
    min_workers: int = 1
    """Fewest workers."""
    max_workers: int = MAX_WORKERS
    """Most workers."""
    gpus: int = 0
    """Of each worker."""
    slots: int = 0
    """Processes of each worker; 0: one for each GPU, and one without GPUs."""
    cpu: str = ""
    """Of each worker, requested and the limit."""
    memory: str = ""
    """Of each worker, requested and the limit."""
    discover_image: str = ""
    """The daemon's; by default ``image``, which has it."""
    spot: bool = False
    """The job sleeps while there are too few workers."""
    max_wait_s: int = 0
    """The longest sleep, in seconds (0: no limit)."""
    restart_policy: str = ""
    """Of the job: Never or OnFailure."""
    backoff_limit: int | None = None
    """Restarts of a failed job."""
    worker_restart_policy: str = ""
    working_dir: str = ""
    shared_memory: str = ""
    """Of each worker, at ``/dev/shm``."""
    retries: int | None = None
    """Restarts of the launcher, by the operator."""
    timeout_s: int = 0
    """The longest run of the job, in seconds (0: no limit)."""
    ttl_s: int = 0
    """Seconds from the job's end to its deletion (0: never)."""
    clean_pods: str = ""
    """Which pods go when it ends: None, Running or All."""
    pull_policy: str = ""
    priority: str = ""
    scheduler: str = ""
    ssh_secret: str = ""
    """A Secret with ``id`` and ``id.pub``; by default one is made."""
    queue: str = ""
    """``kueue/NAME`` or ``volcano/NAME``."""
    sync: str = ""
    """A folder of this machine, ``git+URL@REV`` or ``pvc:CLAIM/FOLDER``, whose files every pod gets."""
    sync_secret: str = ""
    """A Secret (basic-auth) for that URL."""
    gang: bool = False
    """The first ``min_workers`` are placed together or not at all."""
    tolerations: tuple[Toleration, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    selector: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Labels of the nodes of workers."""
    launcher_selector: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Labels of the node of the launcher."""
    env: Mapping[str, str] = field(default_factory=lambda: _NONE)
    labels: Mapping[str, str] = field(default_factory=lambda: _NONE)
    annotations: Mapping[str, str] = field(default_factory=lambda: _NONE)
    launcher_annotations: Mapping[str, str] = field(default_factory=lambda: _NONE)
    worker_annotations: Mapping[str, str] = field(default_factory=lambda: _NONE)
    volumes: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Claims, by where they are mounted."""
    devices: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Further resources of each worker, by their names, with their numbers."""

    @property
    def slots_per_worker(self) -> int:
        """Processes of each worker."""
        return self.slots or max(1, self.gpus)

    @property
    def sleeps(self) -> bool:
        """Whether the launcher stays, and sleeps, while the job has too few workers. This includes workers that Kueue
        may evict without it."""
        kind = SUBMITTED.get(self.kind)
        alone = kind is not None and bool(kind.workers_in) and self.queue.startswith("kueue/")
        return self.spot or self.max_wait_s > 0 or alone

    def __post_init__(self) -> None:
        for problem in (name_problem(self.name), *_problems(self), *_device_problems(self)):
            if problem:
                raise UsageError(problem)

    def option(self, name: str) -> str | None:
        """Return the value of an option of ``hvd-elastic run``, from the command or the environment; the last one
        counts. None if it is not given."""
        chosen = self.env.get(f"{_ENVIRONMENT}{name.removeprefix('--').upper().replace('-', '_')}")
        for word, following in zip(self.run_options, (*self.run_options[1:], ""), strict=False):
            option, equals, value = word.partition("=")
            if option == name:
                chosen = value if equals else following
        return chosen

    def on(self, kind: str) -> Job:
        """The same job, made by ``kind``."""
        return replace(self, kind=kind)


def name_problem(name: str) -> str:
    """Return what is wrong with a job's name, in one line; "" if it is valid. Names of Services and pods begin with
    it."""
    if len(name) > LONGEST_NAME:
        return f"NAME {name!r} has {len(name)} characters; pods are named after it: {LONGEST_NAME} at most"
    if not _NAME.fullmatch(name):
        return f"NAME {name!r}: a small letter, then small letters, digits and '-', not at the end"
    return ""


def _problems(job: Job) -> list[str]:
    low, now, high = job.min_workers, job.workers, job.max_workers
    scheduler, _, queue = job.queue.partition("/")
    counts = {"--gpus": job.gpus, "--slots": job.slots, "--max-wait-time": job.max_wait_s}
    counts |= {"--job-backoff-limit": job.backoff_limit or 0, "--retry": job.retries or 0}
    quantities = [("--cpu", job.cpu), ("--memory", job.memory), ("--share-memory", job.shared_memory)]
    quantities += [(f"--device {name}", number) for name, number in job.devices.items()]
    checks = [
        (bool(job.kind) and job.kind not in KINDS, f"--kind {job.kind!r} is not one of {', '.join(KINDS)}"),
        (not job.image, "--image is missing: an image with hvd-elastic and what is trained"),
        (
            not any(map(str.strip, job.command)),
            "the command is missing: hvd-elastic submit NAME --image IMAGE -- python train.py",
        ),
        (
            not 1 <= low <= now <= high,
            f"--min-workers {low}, --workers {now}, --max-workers {high}: they must be at least 1, and in this order",
        ),
        (
            bool(job.queue) and not (scheduler in QUEUES and queue),
            f"--queue {job.queue!r}: write {' or '.join(f'{each}/NAME' for each in QUEUES)}",
        ),
        *((number < 0, f"{option} is {number}; it must be at least 0") for option, number in counts.items()),
        *(
            (
                bool(text) and not _QUANTITY.fullmatch(text),
                f"{option} {text!r} is not a quantity; write 4, 500m or 16Gi",
            )
            for option, text in quantities
        ),
        *(
            (bool(given) and given not in there, f"{option} {given!r} is not one of {', '.join(there)}")
            for option, given, there in (
                ("--job-restart-policy", job.restart_policy, RESTARTS),
                ("--worker-restart-policy", job.worker_restart_policy, WORKER_RESTARTS),
                ("--clean-task-policy", job.clean_pods, CLEANS),
                ("--image-pull-policy", job.pull_policy, PULLS),
            )
        ),
        (
            job.option("--checkpoint-every") is not None
            and job.option("--checkpoint-dir") is None
            and job.option("--config") is None,
            "--checkpoint-every without --checkpoint-dir: checkpoints would be in a folder that only the launcher's "
            "pod has, and that is lost with it; give a URL, or a claim: --data CLAIM:/ck … --checkpoint-dir /ck",
        ),
        (bool(problem := source.problem(job.sync, secret=job.sync_secret)), problem),
        *((key in job.labels, f"--label {key}: a job is found by it; take another key") for key in OWN_LABELS),
        (
            bool(job.working_dir) and job.working_dir[0] != "/",
            f"--working-dir {job.working_dir!r}: it must begin with /",
        ),
        *((path[:1] != "/", f"--data {claim}:{path}: a path must begin with /") for path, claim in job.volumes.items()),
    ]
    return [problem for wrong, problem in checks if wrong]


def _device_problems(job: Job) -> list[str]:
    checks = [
        check
        for name, number in job.devices.items()
        for check in (
            (name in ("cpu", "memory"), f"--device {name}={number}: write --{name} {number}"),
            (name == GPU and job.gpus > 0, f"--device {name} and --gpus mean the same; give one"),
            (not _DEVICE.fullmatch(name), f"--device {name}={number}: write VENDOR/NAME=N, such as amd.com/gpu=1"),
            ("/" in name and not number.isdecimal(), f"--device {name}={number}: devices are whole; write a number"),
        )
    ]
    return [problem for wrong, problem in checks if wrong]

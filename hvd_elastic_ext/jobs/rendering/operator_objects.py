"""What a job changes in the object that makes its pods, for each kind. Pure.

A new kind has a function here, in :data:`CHANGES`, beside its row in ``core/workload_kinds.py`` and its template in
``docker/manifests``. What a kind cannot do is refused, if the job would be another one without it; else it is left out,
with a note for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.rendering.objects import Body, literal, merged, of_kind, replicas_of, templates
from hvd_elastic_ext.jobs.spec.job import Job

Change = Callable[[Sequence[Body], Job], list[str]]
"""Changes objects in place, and returns notes for the user."""

SUPERVISOR: Final = "job-supervisor.kube-ai.io"
COSCHEDULING: Final = "pod-group.scheduling.sigs.k8s.io"
KUEUE: Final = "kueue.x-k8s.io/queue-name"
VOLCANO: Final = "scheduling.volcano.sh"
GANG_OF_KUEUE: Final = "--gang: Kueue admits all workers of a job at once anyway"


def _mpi_job(objects: Sequence[Body], job: Job) -> list[str]:
    body = of_kind(objects, "MPIJob")
    body["spec"]["slotsPerWorker"] = job.slots_per_worker
    worker = replicas_of(body)
    worker["replicas"] = job.workers
    notes = _ssh_secret(job, "MPI Operator makes a key for each job")
    if job.worker_restart_policy:
        # The operator accepts only these two values. A worker's sshd never ends by itself, so Always has the same
        # effect as OnFailure.
        worker["restartPolicy"] = "Never" if job.worker_restart_policy in ("Never", "ExitCode") else "OnFailure"
        if worker["restartPolicy"] != job.worker_restart_policy:
            notes.append(
                f"--worker-restart-policy={job.worker_restart_policy}: an MPIJob allows only Never and OnFailure; "
                f"{worker['restartPolicy']} is set"
            )
    body["spec"]["runPolicy"] |= _ends(job) | _retries(job.retries) | _cleaning(job)
    return notes + _queue_of_operator(body, job, with_launcher=True)


def _pytorch_job(objects: Sequence[Body], job: Job) -> list[str]:
    body = of_kind(objects, "PyTorchJob")
    spec = body["spec"]
    spec["nprocPerNode"] = str(job.slots_per_worker)
    spec["elasticPolicy"] |= {"minReplicas": job.min_workers, "maxReplicas": job.max_workers}
    worker = replicas_of(body)
    worker["replicas"] = job.workers
    if job.worker_restart_policy:
        worker["restartPolicy"] = job.worker_restart_policy
    if None not in (job.retries, job.backoff_limit) and job.retries != job.backoff_limit:
        raise UsageError("--retry and --job-backoff-limit mean the same for a PyTorchJob; give one")
    spec["runPolicy"] |= _ends(job) | _retries(job.backoff_limit) | _retries(job.retries) | _cleaning(job)
    container = worker["template"]["spec"]["containers"][0]
    container["args"] = [literal(word) for word in torchrun_words(job.command)]
    notes = _ssh_secret(job, "a PyTorchJob does not use ssh")
    if job.run_options:
        raise UsageError(
            f"--kind pytorchjob: torchrun starts what is trained; options of `hvd-elastic run` ({job.run_options[0]}) "
            "have no meaning there"
        )
    for option, given in (("--spot-instance", job.spot), ("--max-wait-time", job.max_wait_s)):
        if given:
            notes.append(f"{option} has no equivalent in a PyTorchJob, which waits for workers without limit; left out")
    if job.restart_policy == "OnFailure":
        notes.append("--job-restart-policy=OnFailure: a PyTorchJob restarts its workers, --job-backoff-limit times")
    return notes + _queue_of_operator(body, job, with_launcher=False)


def torchrun_words(command: Sequence[str]) -> list[str]:
    """Return the words after ``torchrun``, which starts scripts, and other programs only with ``--no-python``."""
    first, *rest = command
    if first in ("torchrun", "python", "python3"):
        return rest
    return [first, *rest] if first.endswith(".py") else ["--no-python", first, *rest]


def _training_job(objects: Sequence[Body], job: Job) -> list[str]:
    body = of_kind(objects, "TrainingJob")
    body["spec"]["slotsPerWorker"] = job.slots_per_worker
    worker = replicas_of(body)
    worker |= {"replicas": job.workers, "minReplicas": job.min_workers, "maxReplicas": job.max_workers}
    if job.worker_restart_policy:
        worker["restartPolicy"] = job.worker_restart_policy
    marks = {f"{SUPERVISOR}/spot-instance": "true"} if job.spot else {}
    if job.max_wait_s:
        marks[f"{SUPERVISOR}/max-wait-time"] = str(job.max_wait_s)
    merged(body["metadata"], "annotations", marks)
    if job.queue:
        raise UsageError(f"--queue {job.queue}: neither Kueue nor Volcano's controllers know TrainingJobs; use --gang")
    for option, given in (("--running-timeout", job.timeout_s), ("--ttl-after-finished", job.ttl_s)):
        if given:
            raise UsageError(f"{option}: a TrainingJob has no such limit; take --kind mpijob")
    body["spec"] |= _cleaning(job)
    if job.gang:
        group = {f"{COSCHEDULING}/name": job.name, f"{COSCHEDULING}/min-available": str(job.min_workers + 1)}
        for _, template in templates(body):
            merged(template["metadata"], "labels", group)
    notes = _ssh_secret(job, "the et-operator makes a key for each job")
    if job.retries is not None:
        notes.append("--retry: arena leaves it out of an etjob, too; the limit is --job-backoff-limit")
    return notes


def _stateful_set(objects: Sequence[Body], job: Job) -> list[str]:
    body = of_kind(objects, "StatefulSet")
    body["spec"]["replicas"] = job.workers
    notes = []
    if job.clean_pods not in ("", "None"):
        raise UsageError(
            f"--clean-task-policy {job.clean_pods}: workers of a StatefulSet stay until the job is deleted, which "
            "--ttl-after-finished does"
        )
    of_kind(objects, "Job")["spec"] |= _ends(job) | _retries(job.retries)
    scheduler, _, queue = job.queue.partition("/")
    if scheduler == "kueue":
        # Only the workers are in the queue. For a Job, Kueue would evict all pods, and the launcher must stay.
        merged(body["metadata"], "labels", {KUEUE: queue})
        notes = [
            *([GANG_OF_KUEUE] if job.gang else []),
            "Kueue (its integrations pod and statefulset) admits the workers; the launcher waits for them, and sleeps "
            "while they are taken back. Their number can only become 0 and come back. Give it --checkpoint-dir",
        ]
    elif scheduler == "volcano" or job.gang:
        for each in objects:
            for _, template in templates(each):
                template["spec"].setdefault("schedulerName", "volcano")
                if queue:
                    merged(template["metadata"], "annotations", {f"{VOLCANO}/queue-name": queue})
        merged(body["metadata"], "annotations", {f"{VOLCANO}/group-min-member": str(job.min_workers)})
    if job.worker_restart_policy in ("", "Always"):
        return notes
    return [
        *notes,
        f"--worker-restart-policy={job.worker_restart_policy}: containers of a StatefulSet are always started again",
    ]


def _ends(job: Job) -> dict[str, Any]:
    """Set the time limit of the job, and when it is deleted after its end."""
    times = {"activeDeadlineSeconds": job.timeout_s, "ttlSecondsAfterFinished": job.ttl_s}
    return {name: value for name, value in times.items() if value}


def _retries(number: int | None) -> dict[str, Any]:
    return {} if number is None else {"backoffLimit": number}


def _cleaning(job: Job) -> dict[str, Any]:
    return {"cleanPodPolicy": job.clean_pods} if job.clean_pods else {}


def _queue_of_operator(body: Body, job: Job, *, with_launcher: bool) -> list[str]:
    """MPI Operator and training operator make the PodGroup themselves, from ``schedulingPolicy``."""
    scheduler, _, queue = job.queue.partition("/")
    if scheduler == "kueue":
        merged(body["metadata"], "labels", {KUEUE: queue})
        stored = "Give it --checkpoint-dir" if with_launcher else "Only what the script stores itself outlives that"
        return [
            *([GANG_OF_KUEUE] if job.gang else []),
            "Kueue admits a job with the workers that it asks for: a change of their number suspends it until it is "
            f"admitted again. {stored}",
        ]
    policy: dict[str, Any] = {"queue": queue} if queue else {}
    if job.gang or queue:
        policy["minAvailable"] = job.min_workers + with_launcher
    if not policy:
        return []
    body["spec"]["runPolicy"]["schedulingPolicy"] = policy
    return ["schedulingPolicy counts if the operator runs with a gang scheduler (--gang-scheduling=volcano)"]


def _ssh_secret(job: Job, why: str) -> list[str]:
    return [f"--ssh-secret {job.ssh_secret}: {why}; left out"] if job.ssh_secret else []


CHANGES: Final[Mapping[str, Change]] = {
    "MPIJob": _mpi_job,
    "PyTorchJob": _pytorch_job,
    "TrainingJob": _training_job,
    "Job": _stateful_set,
}
"""By the kind that represents the job."""

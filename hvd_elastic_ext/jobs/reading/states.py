"""The state of a job, from the objects of its cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.jobs.rendering.code import SENT
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, LAUNCHER, ROLE_LABEL, Body, main_container, templates
from hvd_elastic_ext.jobs.rendering.render import WORKERS

PENDING, RUNNING, SUSPENDED, SUCCEEDED, FAILED = "Pending", "Running", "Suspended", "Succeeded", "Failed"
FINISHED: Final = (SUCCEEDED, FAILED)
GONE: Final = "Gone"
"""The job does not exist, or not any more."""

NO_CODE: Final = "it waits for its code: hvd-elastic sync {} FOLDER"

_CONDITIONS: Final[Mapping[str, str]] = {
    "Succeeded": SUCCEEDED,
    "Complete": SUCCEEDED,
    "Failed": FAILED,
    "Suspended": SUSPENDED,
    "Running": RUNNING,
    "Restarting": RUNNING,
}
_PHASES: Final[Mapping[str, str]] = {
    **{each: each for each in (RUNNING, SUSPENDED, SUCCEEDED, FAILED)},
    "Restarting": RUNNING,
    "Scaling": RUNNING,
    "ScaleSucceeded": RUNNING,
    "ScaleFailed": RUNNING,
}
"""Phases of the et-operator."""
_NUMBER_AT: Final[Mapping[str, tuple[str, ...]]] = {
    "MPIJob": ("spec", "mpiReplicaSpecs", "Worker", "replicas"),
    "PyTorchJob": ("spec", "pytorchReplicaSpecs", "Worker", "replicas"),
    "TrainingJob": ("spec", "etReplicaSpecs", "worker", "replicas"),
}


class Kind(NamedTuple):
    """A kind of object that represents a job."""

    api_version: str
    plural: str
    kind: str


ROOT_KINDS: Final = (
    Kind("kubeflow.org/v2beta1", "mpijobs", "MPIJob"),
    Kind("kubeflow.org/v1", "pytorchjobs", "PyTorchJob"),
    Kind("kai.alibabacloud.com/v1alpha1", "trainingjobs", "TrainingJob"),
    Kind("batch/v1", "jobs", "Job"),
)


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The status of a pod. ``why``: what it waits for, or how it ended; "" while it works."""

    name: str
    role: str
    phase: str
    ready: bool
    node: str
    created: str
    why: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job. ``asked``: the requested number of workers, None if unknown; ``least`` and ``most``: its
    limits."""

    name: str
    kind: str
    state: str
    message: str
    asked: int | None
    least: int | None
    most: int | None
    created: str
    image: str
    pods: tuple[PodStatus, ...]
    namespace: str = ""

    @property
    def ready(self) -> int:
        """Number of workers that are ready."""
        return sum(pod.ready for pod in self.pods if pod.role != LAUNCHER)


def seen(root: Body, pods: Sequence[Body], workers: Body | None = None) -> JobStatus:
    """Return the status of a job. ``root``: its object, with its kind; ``workers``: its StatefulSet, if it has one."""
    state, message = state_of(root)
    low, _, high = str(_at(root, "metadata", "annotations", WORKERS) or "").partition(":")
    image = next((str(main_container(each).get("image")) for _, each in templates(root)), "")
    name = root["metadata"]["name"]
    return JobStatus(
        name=name,
        kind=root["kind"],
        state=state,
        message=message,
        asked=asked_for(root, workers),
        least=int(low) if low.isdecimal() else None,
        most=int(high) if high.isdecimal() else None,
        created=str(_at(root, "metadata", "creationTimestamp") or ""),
        image=image,
        pods=tuple(pod(each) for each in pods if _at(each, "metadata", "labels", JOB_LABEL) == name),
        namespace=str(_at(root, "metadata", "namespace") or ""),
    )


def leftover_note(job: JobStatus) -> str:
    """Return a note about workers that outlive their job; "" if there are none. Pure."""
    if job.kind != "Job" or job.state not in FINISHED or not job.asked:
        return ""
    return (
        f"note: {job.name} has ended, and its {job.asked} workers keep what they hold; hvd-elastic scale {job.name} 0 "
        f"-n {job.namespace} lets them go, and hvd-elastic delete {job.name} all of it\n"
    )


def asked_for(root: Body, workers: Body | None = None) -> int | None:
    """Return the requested number of workers. The et-operator keeps it in the status after it has scaled."""
    if root["kind"] == "Job":
        number = None if workers is None else _at(workers, "spec", "replicas")
    else:
        targets = _at(root, "status", "targetWorkers")
        number = len(targets) if isinstance(targets, list) and targets else _at(root, *_NUMBER_AT[root["kind"]])
    return number if isinstance(number, int) else None


def state_of(root: Body) -> tuple[str, str]:
    """Return the state of a job, and its operator's message."""
    status = root.get("status") or {}
    true = [each for each in status.get("conditions") or [] if each.get("status") == "True"]
    for name, state in _CONDITIONS.items():  # an end counts more than what was before
        for each in true:
            if each.get("type") == name:
                return state, _line(each.get("message") or each.get("reason"))
    if root["kind"] == "TrainingJob":
        phase = str(status.get("phase") or "")
        return _PHASES.get(phase, PENDING), ""
    if root["kind"] == "Job" and status.get("active"):
        return RUNNING, ""
    return PENDING, ""


def pod(body: Body) -> PodStatus:
    """Return the status of a pod."""
    status, labels = body.get("status") or {}, _at(body, "metadata", "labels") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    leaving = bool(_at(body, "metadata", "deletionTimestamp"))
    phase = "Terminating" if leaving else str(status.get("phase") or PENDING)
    return PodStatus(
        name=body["metadata"]["name"],
        role=labels.get(ROLE_LABEL, "worker"),
        phase=phase,
        ready=not leaving and (conditions.get("Ready") or {}).get("status") == "True",
        node=str(_at(body, "spec", "nodeName") or ""),
        created=str(_at(body, "metadata", "creationTimestamp") or ""),
        why=NO_CODE.format(labels.get(JOB_LABEL, "JOB"))
        if init_state(body, SENT).get("running")
        else _why(status, conditions),
    )


def init_state(body: Body, name: str) -> Mapping[str, Any]:
    """Return the state of an init container: ``waiting``, ``running`` or ``terminated``, or ""."""
    for each in _at(body, "status", "initContainerStatuses") or []:
        if each.get("name") == name:
            found = each.get("state")
            return found if isinstance(found, Mapping) else {}
    return {}


def _why(status: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]]) -> str:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return _line(scheduled.get("message") or scheduled.get("reason"))
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = each.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting:
            return _line(": ".join(filter(None, (waiting.get("reason"), waiting.get("message")))))
        if ended and ended.get("exitCode"):
            return f"{each.get('name')} ended with {ended['exitCode']} ({ended.get('reason')})"
    return _line(": ".join(filter(None, (status.get("reason"), status.get("message")))))


def stores_checkpoints(root: Body) -> bool:
    """Whether the launcher of a job has a place for checkpoints."""
    words = [str(word) for _, template in templates(root) for word in main_container(template).get("args") or []]
    return any(word.partition("=")[0] == "--checkpoint-dir" for word in words)


def waits_for_code(root: Body) -> bool:
    """Whether each new launcher's pod of a job waits for its code."""
    pods = [template["spec"] for _, template in templates(root)]
    return any(each["name"] == SENT for spec in pods for each in spec.get("initContainers") or [])


def _at(body: Any, *path: str) -> Any:
    for step in path:
        body = body.get(step) if isinstance(body, Mapping) else None
    return body


def _line(text: object) -> str:
    return " ".join(str(text or "").split())

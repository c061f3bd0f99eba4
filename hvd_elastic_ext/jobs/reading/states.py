"""The state of a job, from the objects of its cluster. Pure.

Kinds tell it in different ways: by conditions, by a phase, or only by their pods; ``core/workload_kinds.py`` says
which. Two states are not the operator's but ours: *Sleeping* (a launcher that sleeps below its fewest workers runs),
and *Gone*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from hvd_elastic_ext.core.workload_kinds import KINDS, ROOTS, StateFrom, at
from hvd_elastic_ext.jobs.rendering.code import SENT
from hvd_elastic_ext.jobs.rendering.objects import (
    JOB_LABEL,
    LAUNCHER,
    ROLE_LABEL,
    WORKER,
    Body,
    main_container,
    templates,
)
from hvd_elastic_ext.jobs.rendering.render import WORKERS

PENDING, RUNNING, SUSPENDED, SUCCEEDED, FAILED = "Pending", "Running", "Suspended", "Succeeded", "Failed"
SLEEPING: Final = "Sleeping"
"""The launcher of a job that sleeps below its fewest workers runs, and fewer are ready."""
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


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The status of a pod."""

    name: str
    role: str
    phase: str
    ready: bool
    node: str
    created: str
    """As the API server writes times."""
    why: str
    """What it waits for, or how it ended; "" while it works."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job."""

    name: str
    kind: str
    state: str
    message: str
    """Why it is in this state, as far as that is known."""
    asked: int | None
    """The requested number of workers; None if unknown."""
    least: int | None
    """Its fewest workers."""
    most: int | None
    """Its most workers."""
    created: str
    """As the API server writes times."""
    image: str
    pods: tuple[PodStatus, ...]
    namespace: str = ""

    @property
    def ready(self) -> int:
        """Number of workers that are ready."""
        return sum(pod.ready for pod in self.pods if pod.role != LAUNCHER)

    @property
    def waits_for_pods(self) -> bool:
        """Whether pods that the job should have do not exist."""
        if self.state in (*FINISHED, SUSPENDED):
            return False
        workers = sum(pod.role != LAUNCHER for pod in self.pods)
        launched = not ROOTS[self.kind].has_launcher or workers < len(self.pods)
        return not launched or workers < (self.asked or 0)


def seen(root: Body, pods: Sequence[Body], workers: Body | None = None) -> JobStatus:
    """Return the status of a job. ``root``: its object, with its kind; ``workers``: what makes its workers,
    if that is another object."""
    state, message = state_of(root)
    low, _, high = str(at(root, "metadata", "annotations", WORKERS) or "").partition(":")
    image = next((str(main_container(each).get("image")) for _, each in templates(root)), "")
    name = root["metadata"]["name"]
    statuses = tuple(pod(each) for each in pods if at(each, "metadata", "labels", JOB_LABEL) in (name, None))
    ready = sum(each.ready for each in statuses if each.role != LAUNCHER)
    if state == RUNNING and low.isdecimal() and ready < int(low) and _sleeps(root):
        state, message = SLEEPING, f"{ready} of the {low} workers that it needs are ready"
    if not message and state not in (*FINISHED, SUSPENDED):
        first = sorted(statuses, key=lambda each: each.role != LAUNCHER)
        message = next((f"{each.name}: {each.why}" for each in first if each.why), "")
    return JobStatus(
        name=name,
        kind=root["kind"],
        state=state,
        message=message,
        asked=asked_for(root, workers),
        least=int(low) if low.isdecimal() else None,
        most=int(high) if high.isdecimal() else None,
        created=str(at(root, "metadata", "creationTimestamp") or ""),
        image=image,
        pods=statuses,
        namespace=str(at(root, "metadata", "namespace") or ""),
    )


def leftover_note(job: JobStatus) -> str:
    """Return a note about workers that outlive their job; "" if there are none. Pure."""
    if not ROOTS[job.kind].workers_in or job.state not in FINISHED or not job.asked:
        return ""
    return (
        f"note: {job.name} has ended, and its {job.asked} workers keep what they hold; hvd-elastic scale {job.name} 0 "
        f"-n {job.namespace} lets them go, and hvd-elastic delete {job.name} all of it\n"
    )


def asked_for(root: Body, workers: Body | None = None) -> int | None:
    """Return the requested number of workers. The et-operator keeps it in the status after it has scaled."""
    kind = ROOTS[root["kind"]]
    names = at(root, *kind.workers_at) if kind.workers_at else None
    if isinstance(names, list) and names:
        return len(names)
    maker, _ = kind.workers("")
    number = at(workers if kind.workers_in else root, *maker.replicas_at)
    return number if isinstance(number, int) else None


def state_of(root: Body) -> tuple[str, str]:
    """Return the state of a job, and its operator's message."""
    status = root.get("status") or {}
    true = [each for each in status.get("conditions") or [] if each.get("status") == "True"]
    for name, state in _CONDITIONS.items():  # an end counts more than what was before
        for each in true:
            if each.get("type") == name:
                return state, _line(each.get("message") or each.get("reason"))
    match ROOTS[root["kind"]].state_from:
        case StateFrom.PHASE:
            return _PHASES.get(str(status.get("phase") or ""), PENDING), ""
        # A pod that waits for its image is active. Servers before 1.24 do not count those that are ready.
        case StateFrom.PODS if status.get("ready", status.get("active")):
            return RUNNING, ""
        case _:
            return PENDING, ""


def pod(body: Body) -> PodStatus:
    """Return the status of a pod."""
    status, labels = body.get("status") or {}, at(body, "metadata", "labels") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    leaving = bool(at(body, "metadata", "deletionTimestamp"))
    phase = "Terminating" if leaving else str(status.get("phase") or PENDING)
    return PodStatus(
        name=body["metadata"]["name"],
        role=_role(labels),
        phase=phase,
        ready=not leaving and (conditions.get("Ready") or {}).get("status") == "True",
        node=str(at(body, "spec", "nodeName") or ""),
        created=str(at(body, "metadata", "creationTimestamp") or ""),
        why=NO_CODE.format(labels.get(JOB_LABEL, "JOB"))
        if init_state(body, SENT).get("running")
        else _why(status, conditions),
    )


def _role(labels: Mapping[str, str]) -> str:
    if ROLE_LABEL in labels:
        return labels[ROLE_LABEL]
    of_operators = (labels[kind.role_label] for kind in KINDS if kind.role_label in labels)
    only = (kind.only_role for kind in KINDS if kind.job_label in labels and not kind.role_label)
    return next(of_operators, next(only, WORKER))


def init_state(body: Body, name: str) -> Mapping[str, Any]:
    """Return the state of an init container: ``waiting``, ``running`` or ``terminated``, or ""."""
    for each in at(body, "status", "initContainerStatuses") or []:
        if each.get("name") == name:
            state = each.get("state")
            return state if isinstance(state, Mapping) else {}
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
    return any(word.partition("=")[0] == "--checkpoint-dir" for word in _words(root))


def _words(root: Body) -> list[str]:
    return [str(word) for _, template in templates(root) for word in main_container(template).get("args") or []]


def _sleeps(root: Body) -> bool:
    """Whether the launcher of a job sleeps while it has too few workers."""
    words = _words(root)
    return "--below-min=sleep" in words or ("--below-min", "sleep") in pairwise(words)


def waits_for_code(root: Body) -> bool:
    """Whether each new launcher's pod of a job waits for its code."""
    pods = [template["spec"] for _, template in templates(root)]
    return any(each["name"] == SENT for spec in pods for each in spec.get("initContainers") or [])


def _line(text: object) -> str:
    return " ".join(str(text or "").split())

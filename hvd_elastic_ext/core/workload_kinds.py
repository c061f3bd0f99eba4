"""The kinds of objects that make a job's pods, with what differs between them. Pure data.

A new kind of workload is one row of :data:`KINDS`. All that depend on its facts find it by one of the names that users
give it: the daemon's ``--operator`` (``discover/pods/operators.py``), ``KIND/NAME`` of the launcher
(``launcher/sleep/replicas.py``), ``submit --kind`` (``jobs/rendering``), or by ``kind`` in an object
(``jobs/reading``). What is done with a kind is there, too.

Operators treat 0 replicas differently, and choose the pods that go differently. Comments name the versions whose
sources show how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

LAUNCHER, WORKER = "launcher", "worker"
"""Roles of pods. Operators and we write them alike."""
WORKERS_SUFFIX: Final = "-worker"
"""The end of the name of the object that makes a job's workers, where that is not the job itself."""
ET_JOB_LABEL: Final = "training-job-name"
"""The label by which pods of the et-operator are known, whoever follows them."""


class StateFrom(Enum):
    """Where an object says what state its job is in. Of all kinds a condition counts first."""

    CONDITIONS = "conditions"
    """``status.conditions`` alone."""
    PHASE = "phase"
    """``status.phase``, in the words of the et-operator."""
    PODS = "pods"
    """The number of its pods that are ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKind:
    """A kind of objects in one version of its API, as one operator handles it."""

    group: str
    version: str
    plural: str
    """Its name in paths."""
    kind: str
    """Its name in objects."""

    name: str = ""
    """The KIND of ``KIND/NAME``, for options that change the number of workers. "": they do not take it."""
    operator: str = ""
    """The value of the daemon's ``--operator``. "": it does not follow such jobs."""
    manifest: str = ""
    """The file in ``docker/manifests`` that is the template of such a job, and its ``submit --kind``. "": it does not
    represent a job by itself."""
    older_manifest: str = ""
    """The same for clusters without native sidecars, if it differs."""

    has_launcher: bool = True
    """Whether a submitted job has a pod that runs the launcher."""
    labels: tuple[str, ...] = ()
    """``LABEL=VALUE`` of a job's pods, with ``{job}`` for its name. None: the object has a selector of its own."""
    role_label: str = ""
    """The label with the role of a pod. "": all pods have one role."""
    bare_names: bool = False
    """Whether pods without a subdomain are reached by their own names."""
    advice: str = ""
    """What users should know about failed pods; part of a failed pod's reason."""

    roles_at: str = ""
    """The field of ``spec`` with the replicas of each role. "": ``spec`` has the only pod template."""
    worker_role: str = ""
    """The workers' role there."""
    only_role: str = WORKER
    """The role of the pods without ``roles_at``."""
    workers_in: str = ""
    """The kind, by its ``name``, of the other object that makes the workers. Its name is the job's with
    :data:`WORKERS_SUFFIX`."""

    slots_at: tuple[str, ...] = ()
    """The path of ``slotsPerWorker``."""
    default_slots: int | None = None
    """The value that the API server puts there if the user has set none."""

    scale: bool = False
    """Whether the number of workers is set through the scale subresource, for which a right covers nothing else.
    Otherwise by a patch of the object."""
    scaled_by: tuple[str, ...] = ()
    """Kinds of the objects of its group that request more workers, and fewer. The number in the job counts at its start
    only."""
    workers_at: tuple[str, ...] = ()
    """The path of the names of the present workers, with ``scaled_by``."""
    fewest: int = 0
    """The smallest number of workers that it accepts."""
    invalid_without_workers: bool = False
    """With 0 workers it treats the whole job as invalid and neither makes nor deletes pods, so the launcher deletes
    them."""
    ordered: bool = False
    """Of the workers those with the highest numbers go first."""
    marked: bool = False
    """Of the workers those with the lowest deletion cost go first."""

    fixed_in_kueue: bool = False
    """Whether Kueue admits its pods as one group, whose number cannot change."""
    suspend_at: tuple[str, ...] = ()
    """The path of the flag that suspends the job as a whole. ``()``: it is not suspended."""
    not_suspended: str = ""
    """Why not, if the object represents a job."""
    state_from: StateFrom = StateFrom.CONDITIONS

    @property
    def api_version(self) -> str:
        """Group and version, as in objects."""
        return f"{self.group}/{self.version}"

    @property
    def built_in(self) -> bool:
        """Whether every cluster has it. The API server refuses a CRD's group without a dot."""
        return "." not in self.group

    @property
    def selects_pods(self) -> bool:
        """Whether the object itself says which pods are its own."""
        return bool(self.kind) and not self.labels

    @property
    def replicas_at(self) -> tuple[str, ...]:
        """The path of the number of workers. ``()``: another object has it."""
        if self.workers_in:
            return ()
        return ("spec", self.roles_at, self.worker_role, "replicas") if self.roles_at else ("spec", "replicas")

    @property
    def valid(self) -> int:
        """The smallest number with which the operator manages the job."""
        return 1 if self.invalid_without_workers else self.fewest

    @property
    def suspends_itself(self) -> bool:
        """Whether a launcher can suspend its job: one patch of the object sets the flag and a valid number."""
        return bool(self.suspend_at) and bool(self.replicas_at) and not self.scale

    @property
    def scaled_by_plurals(self) -> tuple[str, ...]:
        """The names of :attr:`scaled_by` in paths."""
        return tuple(f"{each.lower()}s" for each in self.scaled_by)

    @property
    def job_label(self) -> str:
        """The label of its pods that has the job's name; "" if there is none."""
        return next((each.partition("=")[0] for each in self.labels if each.endswith("={job}")), "")

    def selector(self, job: str, *, role: str = "") -> str:
        """Return the label selector of a job's pods, of one role or of all, in the order in which Kubernetes writes
        it; "" without :attr:`labels`.
        """
        terms = [each.format(job=job) for each in self.labels]
        return ",".join(sorted([*terms, f"{self.role_label}={role}"] if role and self.role_label else terms))

    def workers(self, job: str) -> tuple[WorkloadKind, str]:
        """Return kind and name of the object that has the number of a job's workers."""
        return (NAMED[self.workers_in], f"{job}{WORKERS_SUFFIX}") if self.workers_in else (self, job)


_TRAINING: Final = "training.kubeflow.org"
_ET: Final = "kai.alibabacloud.com"
_MPI_ADVICE: Final = (
    "MPI Operator does not make a new pod of this name until this one is deleted; --reap-failed deletes it"
)

KINDS: Final = (
    # MPI Operator 0.3 to 0.8.2: validation wants at least 1; an invalid job gets an Event, and nothing else.
    # Deletes the workers whose index is not below the number; so does the Training Operator.
    WorkloadKind(
        group="kubeflow.org",
        version="v2beta1",
        plural="mpijobs",
        kind="MPIJob",
        name="mpijob",
        operator="mpi",
        manifest="mpijob",
        older_manifest="mpijob-older",
        labels=(f"{_TRAINING}/job-name={{job}}", f"{_TRAINING}/operator-name=mpi-operator"),
        role_label=f"{_TRAINING}/job-role",
        advice=_MPI_ADVICE,
        roles_at="mpiReplicaSpecs",
        worker_role="Worker",
        slots_at=("spec", "slotsPerWorker"),
        default_slots=1,
        invalid_without_workers=True,
        ordered=True,
        suspend_at=("spec", "runPolicy", "suspend"),
    ),
    # MPI Operator up to 0.3.
    WorkloadKind(
        group="kubeflow.org",
        version="v1",
        plural="mpijobs",
        kind="MPIJob",
        operator="mpi-v1",
        labels=("group-name=kubeflow.org", "mpi-job-name={job}"),
        role_label="mpi-job-role",
        bare_names=True,
        advice=_MPI_ADVICE,
        roles_at="mpiReplicaSpecs",
        worker_role="Worker",
        slots_at=("spec", "slotsPerWorker"),
    ),
    # Training Operator 1.9: no check of the number, 0 is even the default.
    WorkloadKind(
        group="kubeflow.org",
        version="v1",
        plural="mpijobs",
        kind="MPIJob",
        name="mpijob.v1",
        operator="training-mpi",
        labels=(f"{_TRAINING}/job-name={{job}}",),
        role_label=f"{_TRAINING}/replica-type",
        bare_names=True,
        roles_at="mpiReplicaSpecs",
        worker_role="Worker",
        slots_at=("spec", "slotsPerWorker"),
        ordered=True,
    ),
    # Training Operator 1.9: a job without workers counts as one with workers that have all succeeded.
    WorkloadKind(
        group="kubeflow.org",
        version="v1",
        plural="pytorchjobs",
        kind="PyTorchJob",
        name="pytorchjob",
        operator="pytorch",
        manifest="pytorchjob",
        has_launcher=False,
        labels=(f"{_TRAINING}/job-name={{job}}",),
        role_label=f"{_TRAINING}/replica-type",
        bare_names=True,
        roles_at="pytorchReplicaSpecs",
        worker_role="Worker",
        scale=True,
        fewest=1,
        ordered=True,
        suspend_at=("spec", "runPolicy", "suspend"),
    ),
    # et-operator of 2021: ScaleIn names pods, and wants their count, too; the newest object counts.
    WorkloadKind(
        group=_ET,
        version="v1alpha1",
        plural="trainingjobs",
        kind="TrainingJob",
        name="trainingjob",
        operator="et",
        manifest="trainingjob",
        labels=(f"group-name={_ET}", f"{ET_JOB_LABEL}={{job}}"),
        role_label="training-job-role",
        bare_names=True,
        roles_at="etReplicaSpecs",
        worker_role="worker",
        slots_at=("spec", "slotsPerWorker"),
        scaled_by=("ScaleOut", "ScaleIn"),
        workers_at=("status", "targetWorkers"),
        fewest=1,
        not_suspended="the et-operator can suspend a job, but cannot resume it",
        state_from=StateFrom.PHASE,
    ),
    WorkloadKind(
        group="apps",
        version="v1",
        plural="statefulsets",
        kind="StatefulSet",
        name="statefulset",
        operator="statefulset",
        scale=True,
        ordered=True,
        fixed_in_kueue=True,
    ),
    WorkloadKind(
        group="apps",
        version="v1",
        plural="deployments",
        kind="Deployment",
        name="deployment",
        scale=True,
        marked=True,
    ),
    # The launcher of a submitted job without an operator.
    WorkloadKind(
        group="batch",
        version="v1",
        plural="jobs",
        kind="Job",
        manifest="statefulset",
        labels=("job-name={job}",),
        only_role=LAUNCHER,
        workers_in="statefulset",
        suspend_at=("spec", "suspend"),
        state_from=StateFrom.PODS,
    ),
)

NAMED: Final[Mapping[str, WorkloadKind]] = {each.name: each for each in KINDS if each.name}
"""By the KIND of ``KIND/NAME``."""
ROOTS: Final[Mapping[str, WorkloadKind]] = {each.kind: each for each in KINDS if each.manifest}
"""Kinds that represent a job, by ``kind`` in their objects, in the order of preference for a new job."""
BESIDE: Final = tuple(NAMED[each.workers_in] for each in KINDS if each.workers_in)
"""Kinds that make a job's workers beside the object that represents it."""
SUBMITTED: Final[Mapping[str, WorkloadKind]] = {
    name: each for each in KINDS for name in (each.manifest, each.older_manifest) if name
}
"""Kinds that represent a job, by ``submit --kind``."""


def at(body: object, *path: str) -> Any:
    """Return the value at a path of an object; None if there is none."""
    for step in path:
        body = body.get(step) if isinstance(body, Mapping) else None
    return body


def nested(path: Sequence[str], value: object) -> dict[str, Any]:
    """Return the merge patch that sets ``value`` at a path of at least one step."""
    first, *rest = path
    return {first: nested(rest, value) if rest else value}

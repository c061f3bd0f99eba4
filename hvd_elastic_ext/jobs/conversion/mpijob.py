"""MPIJob ``v1alpha1``, ``v1alpha2`` and ``v1`` as ``v2beta1``. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.core.workload_kinds import NAMED
from hvd_elastic_ext.jobs.conversion.document import Body, Conversion, absent, short

NEW: Final = NAMED["mpijob"].api_version
OLD: Final = ("kubeflow.org/v1alpha1", "kubeflow.org/v1alpha2", "kubeflow.org/v1")
GPU: Final = "nvidia.com/gpu"
IMPLEMENTATIONS: Final[Mapping[str, str]] = {"open_mpi": "OpenMPI", "intel_mpi": "Intel", "mpich": "MPICH"}
RUN_POLICY: Final = (
    "backoffLimit",
    "activeDeadlineSeconds",
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "schedulingPolicy",
)
SPEC: Final = frozenset(
    {
        "launcherCreationPolicy",
        "mpiImplementation",
        "mpiReplicaSpecs",
        "runLauncherAsWorker",
        "runPolicy",
        "slotsPerWorker",
        "sshAuthMountPath",
    }
)
SSH: Final = (
    "v2beta1 reaches workers by ssh, where older versions used kubectl exec: the image needs sshd, and a key is "
    "mounted at sshAuthMountPath (/root/.ssh). `hvd-elastic submit --kind mpijob` makes such a job without root"
)
ROLES: Final = ("Launcher", "Worker")


def convert(body: Body) -> Conversion:
    """Convert a job of one of :data:`OLD`."""
    conversion = Conversion(copy.deepcopy(body))
    version = body["apiVersion"].rpartition("/")[2]
    conversion.set("apiVersion", NEW, "the only version that MPI Operator serves since its release 0.4")
    conversion.drop("status", "an operator writes it")
    if version == "v1alpha1":
        _replicas(conversion)
    for name in RUN_POLICY:
        conversion.move(f"spec.{name}", f"spec.runPolicy.{name}", "v2beta1 has it there")
    _implementation(conversion)
    _main_container(conversion)
    for role in ROLES:
        _restart_policy(conversion, role)
    _commands(conversion)
    conversion.drop_others("spec", SPEC, "v2beta1 has no such field")
    conversion.changes.append(SSH)
    return conversion


def _replicas(conversion: Conversion) -> None:
    """Make launcher and workers from one template and a number of GPUs or replicas."""
    template = conversion.take("spec.template")
    template = {} if absent(template) else template
    count, each, resource = _sizes(conversion)
    launcher, worker = copy.deepcopy(template), copy.deepcopy(template)
    policy = (template.get("spec") or {}).get("restartPolicy")
    for part in (launcher, worker):
        (part.get("spec") or {}).pop("restartPolicy", None)
    for container in _containers(worker)[:1]:
        container.pop("command", None)
        container.pop("args", None)
        if each and resource:
            container.setdefault("resources", {}).setdefault("limits", {}).setdefault(resource, each)
    for container in _containers(launcher):
        for limits in (container.get("resources") or {}).values():
            if isinstance(limits, dict):
                limits.pop(GPU, None)
    specs = {
        "Launcher": {"replicas": 1, "restartPolicy": policy or "Never", "template": launcher},
        "Worker": {"replicas": count, "restartPolicy": "Never", "template": worker},
    }
    conversion.set(
        "spec.mpiReplicaSpecs",
        specs,
        "v1alpha1 made launcher and workers from one template; the command is the launcher's, GPUs are the workers'",
    )
    conversion.drop(
        "spec.launcherOnMaster",
        "write a nodeSelector into Launcher.template, such as node-role.kubernetes.io/control-plane: ''",
    )


def _sizes(conversion: Conversion) -> tuple[int, int, str]:
    """Return the number of workers, units per worker, and the resource that is counted."""
    replicas = conversion.take("spec.replicas")
    kind = conversion.take("spec.processingResourceType")
    resource = "cpu" if kind == "cpu" else GPU
    for total_name, each_name in (("gpus", "gpusPerNode"), ("processingUnits", "processingUnitsPerNode")):
        total, each = conversion.take(f"spec.{total_name}"), conversion.take(f"spec.{each_name}")
        if absent(total):
            continue
        given = not absent(each)
        per = each if given else 1
        workers = max(1, int(total) // int(per))
        note = "" if given else "; its operator's --gpus-per-node, which is not in this file, is taken as 1"
        conversion.changes.append(
            f"spec.{total_name} = {total} -> {workers} workers with {min(int(total), int(per))} {resource} each{note}"
        )
        if conversion.get("spec.slotsPerWorker") is None:
            conversion.set("spec.slotsPerWorker", min(int(total), int(per)), "a process for each unit, as before")
        return workers, min(int(total), int(per)), resource
    return (1 if absent(replicas) else int(replicas)), 0, ""


def _implementation(conversion: Conversion) -> None:
    old = conversion.take("spec.mpiDistribution")
    if not absent(old):
        new = IMPLEMENTATIONS.get(old, "OpenMPI")
        conversion.set("spec.mpiImplementation", new, f"spec.mpiDistribution = {old} has this name now")


def _main_container(conversion: Conversion) -> None:
    name = conversion.take("spec.mainContainer")
    if absent(name) or not name:
        return
    for role in ROLES:
        template = conversion.get(f"spec.mpiReplicaSpecs.{role}.template") or {}
        containers = _containers(template)
        at = next((number for number, each in enumerate(containers) if each.get("name") == name), 0)
        if at:
            containers.insert(0, containers.pop(at))
    conversion.changes.append(f"spec.mainContainer = {name}: v2beta1 takes the first container, so it is the first now")


def _restart_policy(conversion: Conversion, role: str) -> None:
    path = f"spec.mpiReplicaSpecs.{role}.restartPolicy"
    policy = conversion.get(path)
    if policy in ("Never", "OnFailure") or conversion.get(f"spec.mpiReplicaSpecs.{role}") is None:
        return
    nearest = "OnFailure" if policy == "Always" else "Never"
    why = "the default of older versions" if policy is None else "v2beta1 allows only Never and OnFailure"
    conversion.set(path, nearest, why)


def _commands(conversion: Conversion) -> None:
    worker = _containers(conversion.get("spec.mpiReplicaSpecs.Worker.template") or {})
    launcher = _containers(conversion.get("spec.mpiReplicaSpecs.Launcher.template") or {})
    for role, containers in (("Worker", worker), ("Launcher", launcher)):
        for container in containers:
            _without_empty_command(conversion, role, container)
    line = _line(worker)
    if line.startswith(("sleep", "/bin/sleep")):
        for name in ("command", "args"):
            worker[0].pop(name, None)
        conversion.changes.append(f"Worker's command ({line}) is left out: the operator starts sshd in its place")
    line = _line(launcher)
    if "discover_hosts.sh" in line and "--slots-per-host" not in line:
        conversion.dropped.append(
            "discover_hosts.sh printed host:slots, and in v2beta1 prints hosts only: add to horovodrun "
            f"--slots-per-host {conversion.get('spec.slotsPerWorker', 1)}"
        )
    for container in [*launcher, *worker]:
        for variable in container.get("env") or []:
            if "kubexec.sh" in str(variable.get("value")):
                conversion.dropped.append(
                    f"{variable['name']}: {variable['value']}: v2beta1 has no kubexec.sh; remove the variable"
                )


def _without_empty_command(conversion: Conversion, role: str, container: Body) -> None:
    """Remove a command without a word, as ``[""]``: no runtime can start it."""
    command = container.get("command")
    if not command or any(str(word).strip() for word in command):
        return
    del container["command"]
    if not any(str(word).strip() for word in container.get("args") or []):
        container.pop("args", None)
    instead = "the operator starts sshd in its place" if role == "Worker" else "the image's own is started"
    conversion.changes.append(f"{role}'s command ({short(command)}) is left out: it is empty; {instead}")


def _line(containers: list[Body]) -> str:
    """The command of the first container."""
    words = [word for each in containers[:1] for name in ("command", "args") for word in each.get(name) or []]
    return " ".join(map(str, words))


def _containers(template: Mapping[str, Any]) -> list[Body]:
    found: list[Body] = (template.get("spec") or {}).get("containers") or []
    return found

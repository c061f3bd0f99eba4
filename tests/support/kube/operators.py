"""Computes the pods and the status of a job, as operators and Kubernetes' own controllers do. Pure.

MPI Operator (v2beta1), et-operator, training operator 1.9 (PyTorchJob), Job and StatefulSet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.kube import bodies

Body = dict[str, Any]

SPECS: Final = {
    "mpijobs": ("mpiReplicaSpecs", "Launcher", "Worker"),
    "trainingjobs": ("etReplicaSpecs", "launcher", "worker"),
    "pytorchjobs": ("pytorchReplicaSpecs", "", "Worker"),
}
"""By resource: the field with the roles, and the names of the launcher's and the workers' roles."""
KINDS: Final = {
    "mpijobs": ("kubeflow.org/v2beta1", "MPIJob"),
    "trainingjobs": ("kai.alibabacloud.com/v1alpha1", "TrainingJob"),
    "pytorchjobs": ("kubeflow.org/v1", "PyTorchJob"),
    "jobs": ("batch/v1", "Job"),
    "statefulsets": ("apps/v1", "StatefulSet"),
}
SSHD: Final = ("/usr/sbin/sshd", "-De")
"""The command of workers without one."""
BACKOFF: Final = 6
"""How often a job's container is started again, if the job sets no other number."""
_TRAINING: Final = "training.kubeflow.org"


@dataclass(frozen=True)
class Owner:
    """A job or StatefulSet, with the values that its controller uses."""

    plural: str
    body: Body

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def slots(self) -> int:
        return int(self.body["spec"].get("slotsPerWorker") or 1)

    @property
    def suspended(self) -> bool:
        spec = self.body["spec"]
        return bool((spec if self.plural == "jobs" else spec.get("runPolicy") or {}).get("suspend"))

    @property
    def ended(self) -> bool:
        status = self.body.get("status") or {}
        true = [each["type"] for each in status.get("conditions") or [] if each["status"] == "True"]
        return not {*true, status.get("phase")}.isdisjoint(("Succeeded", "Complete", "Failed"))

    @property
    def has_launcher(self) -> bool:
        return self.plural in ("mpijobs", "trainingjobs", "jobs")

    @property
    def count(self) -> int:
        """The number of workers."""
        if self.plural == "jobs":
            return 0
        return int((self.body["spec"] if self.plural == "statefulsets" else self._role(2)).get("replicas", 1))

    @property
    def backoff(self) -> int:
        spec = self.body["spec"]
        found = (spec if self.plural == "jobs" else spec.get("runPolicy") or {}).get("backoffLimit")
        return BACKOFF if found is None else int(found)

    def _role(self, number: int) -> Body:
        names = SPECS[self.plural]
        return dict(self.body["spec"][names[0]][names[number]])

    # --- pods

    def launcher(self, name: str) -> Body:
        """Return the launcher's pod."""
        if self.plural == "jobs":
            return self._pod(name, self.body["spec"]["template"], {"batch.kubernetes.io/job-name": self.name})
        role = self._role(1)
        labels = {f"{_TRAINING}/job-name": self.name, f"{_TRAINING}/job-role": "launcher"}
        policy = role.get("restartPolicy", "OnFailure" if self.plural == "mpijobs" else "Never")
        return self._pod(name, role["template"], labels, restartPolicy=policy)

    def workers(self) -> dict[str, Body]:
        """Return the worker pods, by name."""
        found = {}
        for number in range(self.count):
            name = f"{self.name}-{number}" if self.plural == "statefulsets" else f"{self.name}-worker-{number}"
            found[name] = self._worker(name, number)
        return found

    def _worker(self, name: str, number: int) -> Body:
        if self.plural == "statefulsets":
            own = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(number)}
            spec = self.body["spec"]
            return self._pod(name, spec["template"], own, hostname=name, subdomain=spec["serviceName"])
        role = self._role(2)
        if self.plural == "pytorchjobs":
            own = {f"{_TRAINING}/job-name": self.name, f"{_TRAINING}/operator-name": "pytorchjob-controller"}
            own |= {f"{_TRAINING}/replica-type": "worker", f"{_TRAINING}/replica-index": str(number)}
            body = self._pod(name, role["template"], own, restartPolicy=role["restartPolicy"])
            containers = [_with_variables(each, self.body) for each in body["spec"]["containers"]]
            body["spec"] = {**body["spec"], "containers": containers}
            return body
        own = bodies.mpi_worker_labels(self.name)
        body = self._pod(name, role["template"], own, hostname=name, subdomain=self.name)
        first, *others = body["spec"]["containers"]
        if "command" not in first and "args" not in first:
            first = {**first, "command": list(SSHD)}
        body["spec"] = {**body["spec"], "containers": [first, *others]}
        return body

    def _pod(self, name: str, template: Mapping[str, Any], labels: Mapping[str, str], **spec: Any) -> Body:
        metadata = template.get("metadata") or {}
        version, kind = KINDS[self.plural]
        owner = {"apiVersion": version, "kind": kind, "name": self.name, "uid": self.uid, "controller": True}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {**(metadata.get("labels") or {}), **labels},
                "annotations": dict(metadata.get("annotations") or {}),
                "ownerReferences": [owner],
            },
            "spec": {**template["spec"], **spec},
        }

    # --- status

    def told(self, pods: Sequence[Body]) -> Body | None:
        """Return the status that follows from the pods; None while there is none to set."""
        if self.plural == "statefulsets":
            ready = sum(is_ready(each) for each in pods)
            return {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
        if self.suspended:
            if self.plural == "jobs":
                return {"active": 0, "ready": 0, **self._conditions(Suspended=True)}
            return self._conditions(Suspended=True, Running=False)
        end = self._end(pods)
        if self.plural == "jobs":
            active = sum(each["status"]["phase"] in ("Pending", "Running") for each in pods)
            ready = sum(is_ready(each) for each in pods)
            return {
                "active": active,
                "ready": ready,
                **self._conditions(Suspended=False, **({end: True} if end else {})),
            }
        own = self._replicas(pods) if self.plural == "pytorchjobs" else {}
        if end:
            return {**own, **self._conditions(**{end: True, "Running": False})}
        if any(is_ready(each) for each in pods if not self.has_launcher or is_launcher(each)):
            return {**own, **self._conditions(Running=True, Suspended=False)}
        return own or None

    def _end(self, pods: Sequence[Body]) -> str:
        """Return how the job ended, "" while it runs. A PyTorchJob without a master ends when all workers have
        succeeded.
        """
        counted = [each for each in pods if is_launcher(each)] if self.has_launcher else pods
        phases = [each["status"]["phase"] for each in counted]
        if "Failed" in phases or any(restarts(each) > self.backoff for each in counted):
            return "Failed"
        done = phases.count("Succeeded") >= (1 if self.has_launcher else self.count)
        return ("Complete" if self.plural == "jobs" else "Succeeded") if done else ""

    def _replicas(self, pods: Sequence[Body]) -> Body:
        phases = [each["status"]["phase"] for each in pods]
        labels = f"{_TRAINING}/job-name={self.name},{_TRAINING}/replica-type=worker"
        counts = {"active": phases.count("Running"), "succeeded": phases.count("Succeeded")}
        return {"replicaStatuses": {"Worker": {**counts, "failed": phases.count("Failed"), "selector": labels}}}

    def _conditions(self, **wanted: bool) -> Body:
        """Return the conditions as a status, or for the et-operator a phase."""
        if self.plural == "trainingjobs":
            return {"phase": next(name for name, true in wanted.items() if true)}
        there = {each["type"]: each for each in (self.body.get("status") or {}).get("conditions") or []}
        new = {
            name: bodies.condition(name, true, reason=f"{KINDS[self.plural][1]}{name}")
            for name, true in wanted.items()
            if true or name in there
        }
        return {"conditions": [*{**there, **new}.values()]}


def variables(root: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that Training Operator 1.9.0 sets in each container (pkg/controller.v1/pytorch/envvar.go and
    elastic.go).
    """
    spec, policy = root["spec"], root["spec"]["elasticPolicy"]
    containers = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    ports = [each for container in containers if container["name"] == "pytorch" for each in container["ports"]]
    (port,) = (each["containerPort"] for each in ports if each["name"] == "pytorchjob-port")
    assert "nProcPerNode" not in policy  # the operator's webhook refuses it together with nprocPerNode
    return {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        "PET_RDZV_ENDPOINT": f"{root['metadata']['name']}-worker-0:{port}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }


def _with_variables(container: Mapping[str, Any], root: Mapping[str, Any]) -> Body:
    """Return a container of a PyTorchJob with the operator's variables."""
    own = [{"name": name, "value": value} for name, value in variables(root).items()]
    return {**container, "env": [*(container.get("env") or []), *own]}


def is_ready(pod: Body) -> bool:
    conditions = {each["type"]: each["status"] for each in (pod.get("status") or {}).get("conditions") or []}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def is_launcher(pod: Body) -> bool:
    """Whether a pod is a launcher, and no worker of a job."""
    labels = pod["metadata"].get("labels") or {}
    return (
        labels.get("hvd-elastic-role") == "launcher"
        or labels.get(f"{_TRAINING}/job-role") == "launcher"
        or ("batch.kubernetes.io/job-name" in labels)
    )


def restarts(pod: Body) -> int:
    """Return how often the pod's containers were started again."""
    return sum(int(each.get("restartCount", 0)) for each in pod["status"].get("containerStatuses") or [])


def has_gates(pod: Body) -> bool:
    """Whether gates still prevent the scheduling of the pod."""
    return bool(pod["spec"].get("schedulingGates"))

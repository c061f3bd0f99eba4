"""Keeps the workers of a job, as the MPI Operator's controller, a scheduler and kubelets do. All in one thread.

Like the real controller it makes a pod again only after the *object* of the old one is gone. Failed and evicted pods
stay as they are. Like the releases 0.3 to 0.8.2, it treats a job with 0 workers as invalid ("must be greater than or
equal to 1"), and then makes and deletes no pods. ``start`` decides where pods run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.kube import bodies
from tests.support.kube.controller import Controller
from tests.support.kube.resources import Key, resource
from tests.support.kube.server import KubeServer

Body = dict[str, Any]
Hook = Callable[[Body], None]


def nothing(pod: Body) -> None:
    """The hook for pods that need no action."""


class Workers(Controller):
    """Keeps the number of pods ``JOB-worker-N`` of one MPIJob as its spec has it. A context manager.

    ``start`` is called with each new pod; the pod is Running and Ready when it returns. ``stop`` is called with each
    pod whose deletion was requested; the pod is removed when it returns. One thread makes these calls, one after
    another. Without ``nodes`` this is the operator only: pods wait for
    :class:`~tests.support.kube.kubelets.Kubelets`.
    """

    def __init__(
        self,
        kube: KubeServer,
        job: str,
        *,
        nodes: Sequence[str] = (),
        namespace: str = "default",
        start: Hook = nothing,
        stop: Hook = nothing,
    ) -> None:
        super().__init__(kube, name="kube-workers")
        self.job, self.namespace = job, namespace
        self._nodes = itertools.cycle(nodes) if nodes else None
        self._start, self._stop = start, stop
        self._pods, self._jobs = resource("pods"), resource("mpijobs")

    def scale(self, replicas: int) -> None:
        """Change the job's spec, as a user does."""
        patch = {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": replicas}}}}
        self.kube.change("mpijobs", self.job, patch, namespace=self.namespace)

    def look(self) -> None:
        for pod in self._look():
            if self._nodes is not None:
                self._tend(pod)

    def _look(self) -> list[Body]:
        """Make and delete pods until their number is right; return the job's pods."""
        with self.kube.store.lock:
            job = self.kube.store.get(self._jobs, Key(self.namespace, self.job))
            wanted: dict[str, int] = {}
            if job is not None:
                spec = job.body()["spec"]
                count = spec["mpiReplicaSpecs"]["Worker"].get("replicas", 1)
                if count < 1:
                    return self._own()
                if (spec.get("runPolicy") or {}).get("suspend"):
                    count = 0
                wanted = {f"{self.job}-worker-{number}": number for number in range(count)}
            there = {pod["metadata"]["name"]: pod for pod in self._own()}
            for name, number in wanted.items():
                if name not in there and job is not None:
                    self._make(name, number, owner=job.uid)
            for name, pod in there.items():
                if name not in wanted and "deletionTimestamp" not in pod["metadata"]:
                    self.kube.delete("pods", name, namespace=self.namespace)
            return self._own()

    def _own(self) -> list[Body]:
        labels = bodies.mpi_worker_labels(self.job).items()
        pods = [pod for pod in self.kube.all("pods") if pod["metadata"]["namespace"] == self.namespace]
        return [pod for pod in pods if labels <= (pod["metadata"].get("labels") or {}).items()]

    def _make(self, name: str, number: int, *, owner: str) -> None:
        labels = {**bodies.mpi_worker_labels(self.job), "training.kubeflow.org/replica-index": str(number)}
        pod = bodies.pod(
            name,
            node=next(self._nodes) if self._nodes is not None else "",
            namespace=self.namespace,
            phase="Pending",
            ready=False,
            labels=labels,
            subdomain=self.job,
            owner=("MPIJob", self.job, owner),
            hostname=name,
        )
        self.kube.put("pods", pod)

    def _tend(self, pod: Body) -> None:
        metadata, phase = pod["metadata"], pod["status"]["phase"]
        if "deletionTimestamp" in metadata:
            self._stop(pod)
            self._remove(metadata["name"], metadata["uid"])
        elif phase == "Pending":
            self._start(pod)
            self._become_ready(metadata["name"], metadata["uid"])

    def _remove(self, name: str, uid: str) -> None:
        with self.kube.store.lock:
            record = self.kube.store.get(self._pods, Key(self.namespace, name))
            if record is not None and record.uid == uid:
                self.kube.verbs.delete(self._pods, record, {}, grace=0)

    def _become_ready(self, name: str, uid: str) -> None:
        with self.kube.store.lock:
            record = self.kube.store.get(self._pods, Key(self.namespace, name))
            if record is None or record.uid != uid:
                return  # it was deleted while it started
            ready = [bodies.condition(kind) for kind in ("Ready", "ContainersReady")]
            self.kube.change(
                "pods", name, {"status": {"phase": "Running", "conditions": ready}}, namespace=self.namespace
            )

"""Does what Kueue (0.11, by its sources) does to jobs with a queue. Tests decide which jobs are admitted.

Kueue's webhooks suspend a new MPIJob, PyTorchJob or Job. They mark the template of a StatefulSet, and pods with its
group's label get a scheduling gate. An admitted job is resumed, with the node selector of its flavour; the gates of a
group's pods are removed. An evicted job is suspended again, with its own node selectors; a group's pods are deleted,
and their replacements wait. If a user resumes a job that is not admitted, Kueue suspends it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from tests.support.kube import bodies
from tests.support.kube.controller import Controller
from tests.support.kube.operators import SPECS
from tests.support.kube.resources import Resource, resource
from tests.support.kube.server import KubeServer

Body = dict[str, Any]

QUEUE: Final = "kueue.x-k8s.io/queue-name"
MANAGED: Final = "kueue.x-k8s.io/managed"
GATE: Final = "kueue.x-k8s.io/admission"
GROUP: Final = "kueue.x-k8s.io/pod-group-name"
TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
AT_ONCE: Final = {"kueue.x-k8s.io/pod-group-fast-admission": "true", "kueue.x-k8s.io/pod-group-serving": "true"}
PARENT: Final = "kueue.x-k8s.io/pod-suspending-parent"
FLAVOUR: Final = {"example.org/flavour": "reserved"}
"""Labels of the nodes for admitted jobs."""
SUSPENDED: Final = ("mpijobs", "pytorchjobs", "jobs")
"""Kinds that Kueue suspends as a whole."""


class Kueue(Controller):
    """A context manager. Methods take a job by its name; the pods of a StatefulSet have the name of the StatefulSet."""

    def __init__(self, kube: KubeServer) -> None:
        super().__init__(kube, name="kube-kueue")
        self._admitted: set[str] = set()
        kube.verbs.admission.append(self._webhook)

    def admit(self, name: str) -> None:
        """Admit a job or a group, because there is room for it."""
        self._admitted.add(name)
        self.kube.store.wake()

    def evict(self, name: str) -> None:
        """Evict a job or a group, because others need its room."""
        self._admitted.discard(name)
        self.kube.store.wake()
        for pod in self._group(name):
            if "deletionTimestamp" not in pod["metadata"]:
                stopped = bodies.condition("TerminationTarget", True, reason="StoppedByKueue")
                self.kube.change("pods", pod["metadata"]["name"], {"status": {"conditions": [stopped]}})
                self.kube.delete("pods", pod["metadata"]["name"])

    def waiting(self) -> list[str]:
        """Return the names of jobs and groups that are not admitted."""
        names = [body["metadata"]["name"] for plural in SUSPENDED for body in self._queued(plural)]
        return sorted({*names, *(_group_of(pod) for pod in self._gated())} - self._admitted)

    def look(self) -> None:
        for plural in SUSPENDED:
            for body in self._queued(plural):
                self._settle(plural, body)
        for pod in self._gated():
            if _group_of(pod) in self._admitted:
                gates = [each for each in pod["spec"]["schedulingGates"] if each["name"] != GATE]
                self.kube.change(
                    "pods", pod["metadata"]["name"], {"spec": {"schedulingGates": gates, "nodeSelector": FLAVOUR}}
                )

    # --- parts

    def _webhook(self, of: Resource, body: Body) -> Body:
        metadata = body["metadata"]
        labels = metadata.get("labels") or {}
        queue = labels.get(QUEUE)
        if not queue:
            return body
        if of.plural in SUSPENDED:
            return _suspended(of.plural, body, True)
        if of is resource("statefulsets"):
            return _marked(body, queue)
        if of is resource("pods") and GROUP in labels:
            gates = [*(body["spec"].get("schedulingGates") or []), {"name": GATE}]
            marked = {**metadata, "labels": {**labels, MANAGED: "true"}}
            return {**body, "metadata": marked, "spec": {**body["spec"], "schedulingGates": gates}}
        return body

    def _settle(self, plural: str, body: Body) -> None:
        """Resume a job if it is admitted, else suspend it."""
        name, ended = body["metadata"]["name"], body.get("status", {}).get("completionTime")
        runs = name in self._admitted
        if _is_suspended(plural, body) is not runs or ended:
            return
        selectors = {**FLAVOUR} if runs else dict.fromkeys(FLAVOUR)
        patch = _suspended(plural, {"spec": {}}, not runs)
        if plural in SPECS:
            specs, *roles = SPECS[plural]
            placed = {"template": {"spec": {"nodeSelector": selectors}}}
            patch["spec"][specs] = dict.fromkeys(filter(None, roles), placed)
        self.kube.change(plural, name, patch)

    def _queued(self, plural: str) -> Iterator[Body]:
        for body in self.kube.all(plural):
            if (body["metadata"].get("labels") or {}).get(QUEUE):
                yield body

    def _gated(self) -> list[Body]:
        return [pod for pod in self._queued("pods") if {"name": GATE} in (pod["spec"].get("schedulingGates") or [])]

    def _group(self, name: str) -> list[Body]:
        return [pod for pod in self._queued("pods") if _group_of(pod) == name]


def _group(name: str) -> str:
    """Return the workload's name with a hash of its owner. The hash has no UID, because webhooks do not know it yet."""
    owner = hashlib.sha1("\n".join(("StatefulSet", "apps", name, "")).encode(), usedforsecurity=False)
    return f"statefulset-{name}-{owner.hexdigest()[:5]}"


def _group_of(pod: Body) -> str:
    return str(pod["metadata"]["labels"].get(GROUP, "")).removeprefix("statefulset-").rpartition("-")[0]


def _is_suspended(plural: str, body: Body) -> bool:
    spec = body["spec"]
    return bool((spec if plural == "jobs" else spec.get("runPolicy") or {}).get("suspend"))


def _suspended(plural: str, body: Body, suspend: bool) -> Body:
    spec = body["spec"]
    if plural == "jobs":
        return {**body, "spec": {**spec, "suspend": suspend}}
    return {**body, "spec": {**spec, "runPolicy": {**(spec.get("runPolicy") or {}), "suspend": suspend}}}


def _marked(body: Body, queue: str) -> Body:
    """Return a StatefulSet whose pods form one group."""
    spec = body["spec"]
    template = spec["template"]
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), QUEUE: queue, GROUP: _group(body["metadata"]["name"])}
    notes = {
        **(metadata.get("annotations") or {}),
        **AT_ONCE,
        PARENT: "statefulset",
        TOTAL: str(spec.get("replicas", 1)),
    }
    marked = {**template, "metadata": {**metadata, "labels": labels, "annotations": notes}}
    return {**body, "spec": {**spec, "template": marked}}

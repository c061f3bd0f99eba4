"""A cluster whose pods are processes of this machine. It really runs the jobs that tests submit.

One thread does the work of controllers, scheduler, kubelet and garbage collector. It makes pods from the jobs'
templates (:mod:`~tests.support.kube.operators`) and runs processes for them
(:mod:`~tests.support.kube.pod_processes`). Workers that wait for ssh are only names of this machine: a launcher runs
their commands on this machine.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.support import marks
from tests.support.kube import bodies, statuses
from tests.support.kube.clock import unix
from tests.support.kube.controller import Controller
from tests.support.kube.operators import KINDS, Owner, has_gates, is_launcher, is_ready
from tests.support.kube.pod_processes import LEAVES_S, ROOT, Machine, PodRun
from tests.support.kube.resources import Key, resource
from tests.support.kube.server import KubeServer

__all__ = ["ROOT", "OneMachine"]

Body = dict[str, Any]

NODE = "here"
BELONGS = (
    *("pods", "statefulsets", "services", "secrets", "configmaps", "serviceaccounts"),
    *("networkpolicies", "rolebindings", "roles"),
)
"""Kinds of objects that are deleted with their owner."""


class OneMachine(Controller):
    """A context manager. ``env``: variables for all processes. ``home``: the folder for commands without one."""

    def __init__(self, kube: KubeServer, folder: Path, *, env: Mapping[str, str], home: Path) -> None:
        super().__init__(kube, name="kube-one-machine")
        pods = Path(tempfile.mkdtemp(prefix=f"{marks.PREFIX}{marks.owner()}-pods-"))
        (folder / "hosts").mkdir()
        self._machine = Machine(kube, pods, folder / "hosts", folder / "claims", dict(env), home)
        self._runs: dict[str, PodRun] = {}
        self._numbers: dict[str, int] = {}
        self.claim = self._machine.claim
        node = bodies.node(NODE)
        node["status"]["allocatable"] = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
        kube.put("nodes", node)
        kube.execs.place = lambda pod, _, words: self._placed(pod, words)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        assert not self.errors, self.errors

    def leave(self) -> None:
        with contextlib.ExitStack() as each:  # makes all calls, even after one that fails
            each.callback(shutil.rmtree, self._machine.pods)
            for run in self._runs.values():
                each.callback(run.kill)

    def look(self) -> None:
        owners = [Owner(plural, body) for plural in KINDS for body in self.kube.all(plural)]
        self._collect({each.uid for each in owners})
        pods = self.kube.all("pods")
        for each in owners:
            own = [pod for pod in pods if _owned_by(pod, each.uid)]
            self._make_and_delete(each, own)
            self._tell(each, own)
        self._run_pods(self.kube.all("pods"))

    # --- controllers

    def _collect(self, owners: set[str]) -> None:
        """Delete objects whose owners are gone."""
        for plural in BELONGS:
            for body in self.kube.all(plural):
                metadata = body["metadata"]
                references = {str(each["uid"]) for each in metadata.get("ownerReferences") or ()}
                if references and references.isdisjoint(owners) and "deletionTimestamp" not in metadata:
                    self._delete(plural, metadata["name"])

    def _make_and_delete(self, owner: Owner, own: Sequence[Body]) -> None:
        """Make and delete pods until their number is right. A pod that ended is made again when its object is gone."""
        wanted = {} if owner.suspended or owner.ended else owner.workers()
        running = [each for each in own if each["status"]["phase"] not in ("Succeeded", "Failed")]
        for pod in running:
            keep = not (owner.suspended or owner.ended) if is_launcher(pod) else pod["metadata"]["name"] in wanted
            if not keep and "deletionTimestamp" not in pod["metadata"]:
                self._delete("pods", pod["metadata"]["name"])
        there = {pod["metadata"]["name"] for pod in own}
        for name, body in wanted.items():
            if name not in there and self._gone(owner, name):
                self._make(body)
        if owner.plural in ("mpijobs", "trainingjobs"):
            self._write_hosts(owner, [pod for pod in own if is_ready(pod) and not is_launcher(pod)])
        if owner.has_launcher and not (owner.suspended or owner.ended) and not any(map(is_launcher, own)):
            number = self._numbers.get(owner.uid, 0) + 1
            if self._gone(owner, f"{owner.name}-launcher-{number - 1}"):
                self._numbers[owner.uid] = number
                self._make(owner.launcher(f"{owner.name}-launcher-{number}"))

    def _gone(self, owner: Owner, pod: str) -> bool:
        """Whether no process of an earlier pod of this name still runs."""
        return not any(run.name == pod and owner.uid in run.owners and run.alive for run in self._runs.values())

    def _make(self, pod: Body) -> None:
        try:
            self.kube.create("pods", pod)
        except statuses.ApiError as error:
            if error.code != HTTPStatus.CONFLICT:  # its job was deleted and submitted again: ignore it
                raise

    def _delete(self, plural: str, name: str, *, grace: int | None = None) -> None:
        with contextlib.suppress(KeyError):  # it may be deleted already
            self.kube.delete(plural, name, grace=grace)

    def _tell(self, owner: Owner, own: Sequence[Body]) -> None:
        status = None if owner.ended else owner.told(own)
        old = owner.body.get("status") or {}
        if status is not None and {**old, **status} != old:
            with contextlib.suppress(KeyError):
                self.kube.change(owner.plural, owner.name, {"status": status})

    def _write_hosts(self, owner: Owner, workers: Sequence[Body]) -> None:
        """Write the files of hosts for launchers without a daemon, as operators mount them. Our launcher reads the
        first file, mpirun the second.
        """
        names = sorted(pod["metadata"]["name"] for pod in workers)
        lines = "".join(f"{each}:{owner.slots}\n" for each in names)
        for suffix, text in (("", lines), (".hostfile", f"localhost slots={owner.count * owner.slots}\n")):
            file = self._machine.hosts / f"{owner.name}{suffix}"
            if not file.exists() or file.read_text() != text:
                fresh = file.with_name(f"{file.name}.new")
                fresh.write_text(text)
                fresh.replace(file)

    # --- scheduler and kubelet

    def _run_pods(self, pods: Sequence[Body]) -> None:
        there = set()
        for body in pods:
            if not body["metadata"].get("ownerReferences"):
                continue
            there.add(body["metadata"]["uid"])
            self._run_pod(body)
        for uid in {*self._runs} - there:
            run = self._runs[uid]
            run.gone_since = run.gone_since or time.monotonic()
            run.ask_to_end(by=self.kube.clock.now())
            if run.alive and (run.is_name or time.monotonic() - run.gone_since > LEAVES_S):
                run.kill()
            if not run.alive:
                run.kill()  # the main process may have ended by itself, but the daemon beside it has not
                del self._runs[uid]

    def _run_pod(self, body: Body) -> None:
        metadata = body["metadata"]
        leaving = metadata.get("deletionTimestamp")
        if not body["spec"].get("nodeName"):
            if not has_gates(body) and not leaving:
                placed = {"conditions": [bodies.condition("PodScheduled")]}
                with contextlib.suppress(KeyError):
                    self.kube.change("pods", metadata["name"], {"spec": {"nodeName": NODE}, "status": placed})
            return
        run = self._runs.get(metadata["uid"])
        if run is None:
            run = self._runs[metadata["uid"]] = PodRun(self._machine, body)
        if not leaving:
            run.step()
            return
        run.ask_to_end(by=unix(leaving))
        if run.is_name and unix(leaving) <= self.kube.clock.now():
            run.kill()
        if not run.alive:
            self._delete("pods", metadata["name"], grace=0)

    def _placed(self, pod: Key, words: list[str]) -> list[str]:
        record = self.kube.store.get(resource("pods"), pod)
        run = None if record is None else self._runs.get(record.uid)
        return words if run is None else [run.moved(each) for each in words]


def _owned_by(pod: Body, uid: str) -> bool:
    return any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences") or ())

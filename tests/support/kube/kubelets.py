"""A scheduler and the kubelets of all nodes. They run pods as containers on test hosts."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.kube import bodies, cluster_events
from tests.support.kube.clock import unix
from tests.support.kube.containers import Container, Main
from tests.support.kube.controller import LOOK_S, Controller
from tests.support.kube.resources import Key, resource
from tests.support.kube.server import KubeServer
from tests.support.nethosts import NetHost, NetHosts

Body = dict[str, Any]

_LEAST_S: Final = 2.0
"""Least seconds from SIGTERM to SIGKILL, even if the hook took the whole grace period."""


@dataclass
class _Pod:
    """One life of a pod on its node."""

    name: str
    uid: str
    node: str
    alias: str
    container: Container | None = None
    ending: bool = False
    gone_by: float = math.inf
    """When its grace period ends, by the server's clock. The time may become earlier."""
    thread: threading.Thread | None = None
    hook: list[int | None] = field(default_factory=list)
    """How its preStop ended: the exit code, None if it was killed."""


class Kubelets(Controller):
    """One node for each bare host (``nethosts(n, sshd=False)``), with room for one pod. A context manager.

    A pod gets a container on a free node. When ``main`` is ready there, the pod is Running and Ready, with the host's
    address and a name that the other pods resolve. A deleted pod gets what a kubelet does: ``pre_stop``, SIGTERM to
    process 1, SIGKILL when its grace period ends; then its object is removed. By UID: ``ended`` has when containers
    ended (by the server's clock), ``hooks`` how their ``pre_stop`` ended. ``killed``: UIDs of pods whose grace period
    was too short. Commands that the server runs in pods run in these containers.
    """

    def __init__(self, kube: KubeServer, hosts: NetHosts, *, main: Main, pre_stop: Sequence[str] = ()) -> None:
        super().__init__(kube, name="kube-kubelets")
        self.nodes: Mapping[str, NetHost] = {f"node-{host.name}": host for host in hosts}
        self.ended: dict[str, float] = {}
        self.hooks: dict[str, int | None] = {}
        self.killed: set[str] = set()
        self._hosts, self._main, self._pre_stop = hosts, main, list(pre_stop)
        self._resource = resource("pods")
        self._pods: dict[str, _Pod] = {}
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        kube.execs.place = lambda pod, _, words: self.container(pod.name).command(words)
        for name in self.nodes:
            kube.put("nodes", bodies.node(name))

    def leave(self) -> None:
        pods = list(self._pods.values())
        for pod in pods:
            if pod.container is not None:
                pod.container.kill()
        for pod in pods:
            if pod.thread is not None:
                pod.thread.join()
            if pod.container is not None:  # its thread may have started it meanwhile
                pod.container.kill()

    def container(self, name: str) -> Container:
        """Return the container of the pod that runs under this name."""
        with self._lock:
            found = [pod.container for pod in self._pods.values() if pod.name == name and pod.container is not None]
        return found[-1]

    def host(self, name: str) -> NetHost:
        """Return the host on which the pod of this name runs."""
        return self.container(name).host

    # Events of nodes

    def lose(self, node: str) -> None:
        """Cut the node's network. The cluster gets no more reports and marks the node; its processes continue."""
        self._lost.add(node)
        self.nodes[node].cut()
        cluster_events.lose_node(self.kube, node)

    def regain(self, node: str) -> None:
        """Restore the node's network."""
        self.nodes[node].restore()
        self._lost.discard(node)
        cluster_events.regain_node(self.kube, node)

    def evict(self, name: str) -> None:
        """Let the node end a pod for lack of a resource: the pod is killed without notice, and stays as failed."""
        with self._lock:
            pod = next(each for each in self._pods.values() if each.name == name and not each.ending)
            pod.ending = True
        assert pod.container is not None
        pod.container.kill()
        self.kube.change("pods", name, {"status": {"conditions": [_terminated()]}})
        cluster_events.fail(self.kube, name, reason="Evicted")
        self._forget(pod)

    # The loop

    def look(self) -> None:
        there = self.kube.all("pods")
        for pod in there:
            if pod["metadata"]["uid"] not in self.ended:
                self._tend(pod)
        self._see_ends({pod["metadata"]["uid"] for pod in there})

    def _tend(self, body: Body) -> None:
        metadata, node = body["metadata"], body["spec"].get("nodeName")
        if not node:
            self._schedule(body)
            return
        if node not in self.nodes or node in self._lost:
            return
        pod = self._pods.get(metadata["uid"])
        if pod is None:
            if "deletionTimestamp" in metadata:
                self._remove(metadata["name"], metadata["uid"])
                return
            spec = body["spec"]
            where = [spec.get("hostname", metadata["name"]), spec.get("subdomain", ""), metadata["namespace"], "svc"]
            pod = _Pod(metadata["name"], metadata["uid"], node, ".".join(filter(None, where)))
            with self._lock:
                self._pods[pod.uid] = pod
            self._begin(pod, self._start)
        elif at := metadata.get("deletionTimestamp"):
            pod.gone_by = min(pod.gone_by, unix(at))
            if not pod.ending and pod.container is not None:
                pod.ending = True
                self._begin(pod, self._end)

    def _see_ends(self, there: set[str]) -> None:
        """Handle pods whose object was removed at once, and those that have ended by themselves."""
        for pod in list(self._pods.values()):
            if pod.ending or pod.container is None or pod.node in self._lost:
                continue
            if pod.uid not in there:
                pod.ending, pod.gone_by = True, 0.0
                self._begin(pod, self._end)
            elif pod.container.ended:
                cluster_events.fail(self.kube, pod.name)
                self._forget(pod)

    def _begin(self, pod: _Pod, do: Any) -> None:
        before = pod.thread

        def run() -> None:
            if before is not None:
                before.join()
            try:
                do(pod)
            except BaseException as error:
                if not self._ending.is_set():
                    self.errors.append(error)
                    raise

        pod.thread = threading.Thread(target=run, name=f"kube-kubelet-{pod.name}")
        pod.thread.start()

    def _schedule(self, body: Body) -> None:
        taken = {pod.node for pod in self._pods.values()}
        for node in self.nodes:
            spec = self.kube.get("nodes", node)["spec"]
            repels = any(each["effect"] != "PreferNoSchedule" for each in spec.get("taints") or ())
            if not (repels or spec.get("unschedulable") or node in taken or self._assigned(node)):
                self.kube.change("pods", body["metadata"]["name"], {"spec": {"nodeName": node}})
                return

    def _assigned(self, node: str) -> bool:
        pods = [pod for pod in self.kube.all("pods") if pod["spec"].get("nodeName") == node]
        return any(pod["status"]["phase"] not in ("Failed", "Succeeded") for pod in pods)

    # Steps for one pod

    def _start(self, pod: _Pod) -> None:
        log = self._hosts.directory / f"{pod.name}.log"
        container = Container(self.nodes[pod.node], pod.name, main=self._main, log=log)
        with self._lock:
            pod.container = container
            container.host.aliases = {pod.name: container.host.address}  # only in its own /etc/hosts
        self._tell_names()
        ready = [bodies.condition(kind) for kind in ("Ready", "ContainersReady")]
        status = bodies.container_status(ready=True, state={"running": {"startedAt": bodies.SINCE}})
        shown = {"phase": "Running", "podIP": container.host.address, "conditions": ready}
        with self.kube.store.lock:
            if self._there(pod.name, pod.uid):
                self.kube.change("pods", pod.name, {"status": {**shown, "containerStatuses": [status]}})

    def _end(self, pod: _Pod) -> None:
        container = pod.container
        assert container is not None
        if self._pre_stop and self._left(pod) > 0:
            self.hooks[pod.uid] = container.run(self._pre_stop, timeout=self._left(pod))
        container.signal(signal.SIGTERM)
        least = self.kube.clock.now() + _LEAST_S
        while not container.wait(LOOK_S) and self.kube.clock.now() < max(pod.gone_by, least):
            pass
        if not container.ended:
            self.killed.add(pod.uid)
        container.kill()
        self._forget(pod)
        self._remove(pod.name, pod.uid)

    def _left(self, pod: _Pod) -> float:
        return pod.gone_by - self.kube.clock.now()

    def _forget(self, pod: _Pod) -> None:
        with self._lock:
            self._pods.pop(pod.uid, None)
        self.ended[pod.uid] = self.kube.clock.now()
        self._tell_names()

    def _tell_names(self) -> None:
        with self._lock:
            running = [(pod.alias, pod.container) for pod in self._pods.values() if pod.container is not None]
            self._hosts.call({alias: container.host.address for alias, container in running})

    def _there(self, name: str, uid: str) -> bool:
        record = self.kube.store.get(self._resource, Key("default", name))
        return record is not None and record.uid == uid

    def _remove(self, name: str, uid: str) -> None:
        with self.kube.store.lock:
            record = self.kube.store.get(self._resource, Key("default", name))
            if record is not None and record.uid == uid:
                self.kube.verbs.delete(self._resource, record, {}, grace=0)


def _terminated() -> Body:
    return bodies.condition("DisruptionTarget", True, reason="TerminationByKubelet")

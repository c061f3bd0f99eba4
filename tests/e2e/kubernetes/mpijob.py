"""A job as ``docker/manifests/mpijob.yaml`` has it: with its arguments, rights and hook."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hvd_elastic_ext.core.journal import Record
from tests.faults.launcher.stepping_jobs import Training
from tests.support import manifests, namespaces
from tests.support.kube.containers import Main, sshd
from tests.support.kube.kubelets import Kubelets
from tests.support.kube.server import KubeServer
from tests.support.kube.workers import Workers
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

Body = dict[str, Any]

MANIFEST: Final = "mpijob.yaml"
NAME: Final = "digits"
LONGEST_S: Final = 240.0
"""For whatever is waited for: machines differ in speed, and nothing here is measured."""


class ClusterJob(Training):
    """One job, its pods and the daemon between them. ``run`` has all of it run."""

    kube: KubeServer
    kubelets: Kubelets
    workers: Workers
    daemon: RunningProcess
    rights: tuple[str, ...] = ("rbac.yaml", "nodes.yaml")

    def __init__(self, directory: Path, hosts: NetHosts) -> None:
        super().__init__(directory)
        self.network = hosts
        self.popen = hosts.launcher.popen
        self._run = directory / "run"
        self.file = self._run / "hosts"
        self._run.mkdir()
        self.manifest = self.written()
        pods = {role: pod["spec"] for each in self.manifest for role, pod in manifests.pod_templates(each)}
        self._launcher = manifests.containers(pods["launcher"])
        self.worker = manifests.containers(pods["worker"])["worker"]

    # What other set-ups have instead

    def written(self) -> list[Body]:
        """The job's file."""
        return manifests.documents(MANIFEST)

    def main(self) -> Main:
        """Process 1 of workers."""
        return sshd(self.network)

    def environment(self) -> dict[str, str]:
        """The launcher's, beside what it has anyway."""
        return {}

    # It runs

    @contextlib.contextmanager
    def run_on(self, *options: str) -> Iterator[None]:
        """Cluster and ``hvd-elastic run``, with the manifest's arguments and these after them."""
        arguments = self._launcher["launcher"]["args"]
        own = [self._moved(each) for each in arguments[: arguments.index("python")]]
        with self.cluster(), self.train(*own, *options, source=("--verbose",), env=self.environment()):
            yield

    @contextlib.contextmanager
    def cluster(self) -> Iterator[None]:
        """All but the launcher."""
        folder = self.directory / "kube"
        folder.mkdir()
        space = self.network.launcher.namespace
        with contextlib.ExitStack() as stack:
            server = KubeServer(tls=True, folder=folder, kubelet=False, open_=lambda: namespaces.socket_in(space))
            self.kube = stack.enter_context(server)
            for name in self.rights:
                self.kube.apply(manifests.documents(name))
            self.kube.apply(self.manifest)
            hook = _here(self.worker["lifecycle"]["preStop"]["exec"]["command"])
            self.kubelets = stack.enter_context(Kubelets(self.kube, self.network, main=self.main(), pre_stop=hook))
            self.workers = stack.enter_context(Workers(self.kube, NAME))
            self.daemon = stack.enter_context(self._discover())
            yield
            assert not self.kubelets.errors
            assert self.daemon.returncode is None

    def _discover(self) -> contextlib.AbstractContextManager[RunningProcess]:
        token = self.kube.access.issue_for("default", "hvd-launcher-digits")
        kubeconfig = self.kube.kubeconfig(self.directory / "kubeconfig", token=token)
        given = [self._moved(each) for each in self._launcher["discover"]["args"]]
        command = [sys.executable, "-m", "discover.cli", *given, "--kubeconfig", kubeconfig]
        return self.network.launcher.popen(command)

    def _moved(self, argument: str) -> str:
        """What a pod has in folders of its own lies in the test's."""
        return argument.replace("/run/hvd/", f"{self._run}/").replace("/var/lib/hvd/", f"{self.directory}/")

    # What is seen

    def uid(self, pod: str) -> str:
        return str(self.kube.get("pods", pod)["metadata"]["uid"])

    def node(self, pod: str) -> str:
        return str(self.kube.get("pods", pod)["spec"]["nodeName"])

    def running(self) -> list[str]:
        """Pods that are."""
        return [each["metadata"]["name"] for each in self.kube.all("pods") if each["status"]["phase"] == "Running"]

    def ended(self, uid: str) -> float:
        """When (Unix seconds) this life of a pod ended; waits for that."""
        wait_until(lambda: uid in self.kubelets.ended, what="the pod's end", timeout=LONGEST_S, show=self._details)
        return self.kubelets.ended[uid]

    def resized_without(self, pod: str, *, since: float) -> Record:
        """The first world without the pod that formed since that moment (mono); waits for it."""

        def found() -> list[Record]:
            resized = [each for each in self.events("resized") if each.mono >= since]
            return [each for each in resized if host(pod) in each.get("removed")]

        self.wait_for(f"a world without {pod}", found, timeout=LONGEST_S)
        return found()[0]

    def notices(self, pod: str) -> list[Record]:
        return [each for each in self.events("notice") if each.get("host") == host(pod)]

    def trains(self, size: int) -> None:
        self.wait_for_size(size, timeout=LONGEST_S)

    # What is done

    def evict(self, pod: str) -> int:
        """Through the API, as ``kubectl drain`` does; the status that came back."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
        return self._ask("POST", f"/api/v1/namespaces/default/pods/{pod}/eviction", body)

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> int:
        context = ssl.create_default_context(cafile=str(self.kube.ca_file))
        connection = http.client.HTTPSConnection("127.0.0.1", self.kube.port, context=context)
        inside = namespaces.socket_in(self.network.launcher.namespace)
        inside.settimeout(LONGEST_S)
        inside.connect(("127.0.0.1", self.kube.port))
        with contextlib.closing(connection):
            connection.sock = context.wrap_socket(inside, server_hostname="127.0.0.1")
            headers = {"Authorization": f"Bearer {self.kube.token}", "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body), headers)
            return connection.getresponse().status

    def _details(self) -> str:
        pods = [
            f"{each['metadata']['name']} {each['metadata']['uid']} {each['spec'].get('nodeName')} {each['status']}"
            for each in self.kube.all("pods")
        ]
        return "\n".join([super()._details(), "daemon:", self.daemon.output[-5000:], "pods:", *pods])


def host(pod: str) -> str:
    """As the daemon names it."""
    return f"{pod}.{NAME}.default.svc"


def _here(command: list[str]) -> list[str]:
    """A command of an image, with this interpreter."""
    assert command[0] == "/opt/hvd/bin/python"
    return [sys.executable, *command[1:]]


@pytest.fixture
def cluster_job(nethosts: Callable[..., NetHosts], tmp_path: Path) -> Callable[[int], ClusterJob]:
    """A job with so many nodes, each with room for one pod."""
    return lambda nodes: ClusterJob(tmp_path, nethosts(nodes, sshd=False))

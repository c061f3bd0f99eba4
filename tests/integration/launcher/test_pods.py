"""``hvd-elastic run --rsh pod`` with real Horovod: in a pod that is this machine, and in two on hosts of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import COUNTER, ELASTIC, Launched
from tests.support import marks, namespaces, rights
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube_tls as kube_tls  # a fixture
from tests.support.kube.server import KubeServer
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

MakeHosts = Callable[..., NetHosts]


def may_run_commands(server: KubeServer) -> str:
    """A token of the launcher's account, which may do what the manifest grants it and no more."""
    server.execs.create_too = True
    server.put("roles", {"metadata": {"name": "r"}, "rules": rights.rules(rights.EXEC)})
    subjects = [{"kind": "ServiceAccount", "name": "launcher"}]
    server.put(
        "rolebindings", {"metadata": {"name": "r"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}
    )
    return server.access.issue_for("default", "launcher")


# --- this machine as a pod --------------------------------------------------------------------------


@pytest.fixture
def pod(kube_tls: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeServer:
    """An API server with a pod called ``localhost``, which ``$KUBECONFIG`` names."""
    kube_tls.put("pods", bodies.pod("localhost"))
    config = kube_tls.kubeconfig(tmp_path / "kubeconfig", token=may_run_commands(kube_tls))
    monkeypatch.setenv("KUBECONFIG", str(config))
    return kube_tls


def test_a_launcher_that_may_not_reach_pods_says_which_rule_it_lacks(launched: Launched, pod: KubeServer) -> None:
    pod.remove("roles", "r")
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--rsh", "pod", "--elastic-timeout", "3", sys.executable, COUNTER) as process:
        assert process.wait(60) == 1
    assert 'resources: ["pods/exec"], verbs: ["get", "create"]' in process.stderr
    assert "Traceback" not in process.output


@pytest.mark.parametrize("lacking", ["cluster", "client"])
def test_missing_requirements_are_reported_before_the_job_starts(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacking: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if lacking == "client":
        (tmp_path / "kubernetes.py").write_text("raise ModuleNotFoundError('none', name='kubernetes')\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    launched.set_hosts("localhost:1")
    with launched.run("-np", "1", "--rsh", "pod", sys.executable, COUNTER) as process:
        assert process.wait(60) == 2
    said = {
        "cluster": "no cluster: this is not a pod, and ~/.kube/config does not exist; for --rsh pod let KUBECONFIG",
        "client": "--rsh pod needs the package 'kubernetes'; install it: pip install kubernetes websocket-client",
    }
    assert said[lacking] in process.stderr
    assert "Traceback" not in process.output


# --- pods with networks of their own ----------------------------------------------------------------


class Pods:
    """Hosts without sshd that stand for pods of their names, and an API server that the launcher's alone reaches."""

    def __init__(self, hosts: NetHosts, kube: KubeServer, directory: Path) -> None:
        self.hosts, self.kube = hosts, kube
        self.job = Launched(directory)
        self._environment = {
            "HVD_ELASTIC_SAMPLE": "0",
            "MY_SECRET": "hunter2",
            "KUBECONFIG": str(kube.kubeconfig(directory / "kubeconfig", token=may_run_commands(kube))),
        }
        for host in hosts:
            kube.put("pods", bodies.pod(host.name, ip=host.address))
        kube.execs.place = lambda pod, _, words: hosts[pod.name].command(words, cwd="/")

    def command(self, *words: str | Path) -> list[str]:
        # Without a PATH there is neither an ssh nor a kubectl.
        run = ["env", "PATH=/nowhere", *ELASTIC, "run", "--rsh", "pod", "--hosts-file", self.job.hosts]
        return [str(word) for word in (*run, "--journal", self.job.journal, *words)]

    def start(self, *words: str | Path) -> contextlib.AbstractContextManager[RunningProcess]:
        return self.hosts.launcher.popen(self.command(*words), cwd=self.job.directory, env=self._environment)


@pytest.fixture
def pods(nethosts: MakeHosts, tmp_path: Path) -> Iterator[Pods]:
    hosts = nethosts(2, sshd=False)
    space, folder = hosts.launcher.namespace, tmp_path / "kube"
    folder.mkdir()
    with KubeServer(tls=True, folder=folder, open_=lambda: namespaces.socket_in(space)) as kube:
        yield Pods(hosts, kube, tmp_path)


@pytest.mark.soak
def test_a_job_in_two_pods_continues_while_the_api_server_restarts(pods: Pods) -> None:
    job, execs = pods.job, pods.kube.execs
    job.set_hosts("h1:1")
    with pods.start("-np", "1", "--min-np", "1", sys.executable, COUNTER) as job.process:
        job.wait_for_steps(1, timeout=80)
        job.set_hosts("h1:1", "h2:1")
        job.wait_for_steps(2, timeout=80)
        spawned = job.events("spawned")
        assert [record.get("host") for record in spawned] == ["h1", "h2"]
        assert all(record.get("pid") in pods.hosts[record.get("host")].pids() for record in spawned)
        assert len(execs.sessions()) == 2
        assert all(marks.environment(record.get("pid"))["MY_SECRET"] == "hunter2" for record in spawned)
        assert not any("hunter2" in f"{seen.path}{seen.query}" for seen in pods.kube.counts.seen())
        pods.kube.restart()  # every stream is cut
        steps = job.steps_at(2)
        job.wait_for("more steps", lambda: job.steps_at(2) > steps + 10, timeout=80)
        assert len(job.events("resized")) == 2
        assert job.events("struck", "lost", "exited") == []
        assert [(key.name, container) for key, container, _ in execs.commands] == [("h1", "worker"), ("h2", "worker")]
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(60) == 143
        assert not any(map(marks.start_time, job.pids().values()))


def test_killing_the_launcher_ends_the_workers_in_every_pod(pods: Pods) -> None:
    job = pods.job
    job.set_hosts("h1:1", "h2:1")
    words = ["-np", "2", "--orphan-grace", "1", sys.executable, "-c", "import time\nwhile True: time.sleep(1)"]
    with pods.start(*words) as job.process:
        job.wait_for("two workers", lambda: len(job.events("spawned")) == 2, timeout=80)
        workers = list(job.pids().values())
        launcher = next(pid for pid in pods.hosts.launcher.pids() if "hvd_elastic_ext.cli" in marks.command_line(pid))
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: not any(map(marks.start_time, workers)), what="the end of both workers", timeout=60)
        wait_until(lambda: not pods.kube.execs.sessions(), what="the end of both agents", timeout=60)

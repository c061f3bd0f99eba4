"""kubectl creates, shows, applies, patches, scales and deletes objects: on our server, and on a real one, too."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.kube.conftest import KUBECONFIG, SERVERS
from tests.support.jobs import example, rendered
from tests.support.kube.server import KubeServer
from tests.support.kubectl import kubectl

LONGEST_S = 120.0


class Kubectl:
    """One user of it, in a namespace of the test's own."""

    def __init__(self, program: Path, kubeconfig: Path, cache: Path) -> None:
        self._words = [str(program), f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}"]
        self.namespace = ""

    def ask(self, *words: str, given: object = None) -> subprocess.CompletedProcess[str]:
        text = None if given is None else json.dumps(given)
        own = [f"--namespace={self.namespace}"] if self.namespace else []
        return subprocess.run(
            [*self._words, *own, *words], input=text, capture_output=True, text=True, check=False, timeout=LONGEST_S
        )

    def does(self, *words: str, given: object = None) -> str:
        """Like :meth:`ask`, of what has to succeed; what it prints."""
        ended = self.ask(*words, given=given)
        assert ended.returncode == 0, (words, ended.stdout, ended.stderr)
        return ended.stdout

    def get(self, *words: str) -> Any:
        return json.loads(self.does("get", *words, "-o", "json"))


@pytest.fixture(params=SERVERS)
def user(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kubectl]:
    program = kubectl()
    if program is None:
        pytest.skip("needs kubectl on the PATH")
    if request.param == "real":
        yield from _in_a_namespace(Kubectl(program, Path(os.environ[KUBECONFIG]).expanduser(), tmp_path / "cache"))
        return
    with KubeServer(tls=True, folder=tmp_path, patience=0.05) as server:
        yield from _in_a_namespace(Kubectl(program, server.kubeconfig(tmp_path / "config"), tmp_path / "cache"))


def _in_a_namespace(user: Kubectl) -> Iterator[Kubectl]:
    name = f"hvdt-{uuid.uuid4().hex[:12]}"
    user.does("create", "--validate=false", "-f", "-", given=of("Namespace", name))
    user.namespace = name
    # A controller's work, where one runs.
    user.ask("create", "--validate=false", "-f", "-", given=of("ServiceAccount", "default"))
    yield user
    user.namespace = ""
    user.ask("delete", "namespace", name, "--wait=false")


def of(kind: str, name: str, *, version: str = "v1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


CONTAINER = {"name": "main", "image": "example.org/none:1"}


def deployment(**containers: str) -> dict[str, Any]:
    """With an image for each container, and no pods."""
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": name, "image": image} for name, image in containers.items()]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    return of("Deployment", "a", version="apps/v1", spec=spec)


def test_what_it_creates_it_shows_and_deletes(user: Kubectl) -> None:
    body = of("ConfigMap", "a", data={"x": "1"})
    assert user.does("create", "--validate=false", "-f", "-", given=body) == "configmap/a created\n"
    assert user.get("configmap", "a")["data"] == {"x": "1"}
    assert "a" in [line.split()[0] for line in user.does("get", "cm").splitlines()]
    again = user.ask("create", "--validate=false", "-f", "-", given=body)
    assert again.returncode == 1
    assert 'configmaps "a" already exists' in again.stderr
    assert user.does("delete", "cm/a").startswith('configmap "a" deleted')  # newer ones name the namespace, too
    gone = user.ask("get", "cm", "a")
    assert (gone.returncode, gone.stderr) == (1, 'Error from server (NotFound): configmaps "a" not found\n')


def test_what_is_not_applied_any_more_goes_and_what_others_have_set_stays(user: Kubectl) -> None:
    apply = ("apply", "--validate=false", "-f", "-")
    assert user.does(*apply, given=of("ConfigMap", "a", data={"x": "1", "y": "2"})) == "configmap/a created\n"
    user.does("patch", "cm", "a", "--type=merge", "-p", '{"data":{"others":"3"}}')
    assert user.does(*apply, given=of("ConfigMap", "a", data={"x": "4"})) == "configmap/a configured\n"
    assert user.get("cm", "a")["data"] == {"x": "4", "others": "3"}
    assert user.does(*apply, given=of("ConfigMap", "a", data={"x": "4"})) == "configmap/a unchanged\n"


def test_containers_are_applied_by_their_names(user: Kubectl) -> None:
    apply = ("apply", "--validate=false", "-f", "-")
    user.does(*apply, given=deployment(one="example.org/one:1", two="example.org/two:1"))
    strategic = '{"spec":{"template":{"spec":{"containers":[{"name":"one","workingDir":"/x"}]}}}}'
    user.does("patch", "deployment", "a", "-p", strategic)
    user.does(*apply, given=deployment(three="example.org/three:1", one="example.org/one:2"))
    found = user.get("deployment", "a")["spec"]["template"]["spec"]["containers"]
    assert [(each["name"], each["image"], each.get("workingDir")) for each in found] == [
        ("three", "example.org/three:1", None),
        ("one", "example.org/one:2", "/x"),
    ]


def test_operations_are_done_in_order_or_not_at_all(user: Kubectl) -> None:
    user.does("create", "--validate=false", "-f", "-", given=of("ConfigMap", "a", data={"x": "1"}))
    user.does("annotate", "cm", "a", "example.org/z=2")
    change = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "remove", "path": "/metadata/annotations/example.org~1z"},
    ]
    change += [{"op": "replace", "path": "/data/x", "value": "3"}, {"op": "add", "path": "/data/n", "value": "4"}]
    patch = ("patch", "cm", "a", "--type=json", "-p")
    user.does(*patch, json.dumps(change))
    found = user.get("cm", "a")
    assert (found["data"], "annotations" in found["metadata"]) == ({"x": "3", "n": "4"}, False)
    refused = user.ask(*patch, json.dumps([{"op": "remove", "path": "/data/n"}, *change]))
    assert refused.returncode == 1
    assert user.get("cm", "a")["data"] == {"x": "3", "n": "4"}


def test_a_job_as_submit_prints_it_is_applied_changed_and_deleted(user: Kubectl) -> None:
    if user.ask("get", "mpijobs").returncode:
        pytest.skip("needs a cluster with the MPI Operator's CRD; install it there")
    objects = list(rendered(example("mpijob", selector={"hvd-elastic-ext/nowhere": "yes"})).objects)
    apply = ("apply", "--validate=false", "-f", "-")
    said = user.does(*apply, given=of("List", "x") | {"items": objects})
    assert said.splitlines()[-1] == "mpijob.kubeflow.org/digits created"
    objects[-1]["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = 3
    assert user.does(*apply, given=objects[-1]) == "mpijob.kubeflow.org/digits configured\n"
    assert user.get("mpijob", "digits")["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    labelled = [each["kind"] for each in user.get("role,rolebinding,sa", "-l", "hvd-elastic-job=digits")["items"]]
    assert sorted(labelled) == ["Role", "RoleBinding", "ServiceAccount"]
    user.does("delete", "mpijob/digits")
    assert user.does("get", "mpijob", "-o", "name") == ""


def test_a_statefulset_is_scaled(user: Kubectl) -> None:
    spec = {"serviceName": "a", "selector": {"matchLabels": {"app": "a"}}, "replicas": 0}
    spec["template"] = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [CONTAINER]}}
    spec["template"]["spec"]["nodeSelector"] = {"hvd-elastic-ext/nowhere": "yes"}
    user.does("apply", "--validate=false", "-f", "-", given=of("StatefulSet", "a", version="apps/v1", spec=spec))
    assert user.does("scale", "statefulset", "a", "--replicas=2") == "statefulset.apps/a scaled\n"
    assert user.get("sts", "a")["spec"]["replicas"] == 2


def test_it_waits_for_a_pod_that_is_deleted(user: Kubectl) -> None:
    pod = of("Pod", "a", spec={"containers": [CONTAINER], "automountServiceAccountToken": False})
    pod["spec"]["nodeSelector"] = {"hvd-elastic-ext/nowhere": "yes"}
    user.does("create", "--validate=false", "-f", "-", given=pod)
    assert user.does("delete", "pod", "a").startswith('pod "a" deleted')
    assert yaml.safe_load(user.does("get", "pods", "-o", "yaml"))["items"] == []

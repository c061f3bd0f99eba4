"""The number of a job's workers in a cluster: on our server, and with HVD_TEST_KUBECONFIG on a real one, too.

A real one may have no MPI Operator, and is then asked about StatefulSets only.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvd_elastic_ext.install.manifest import autoscaler
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.client import Timeout
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.launcher.sleep.replica_requests import BEFORE, COST, DELETION_COST, Pod, workload
from hvd_elastic_ext.launcher.sleep.replicas import Replicas
from tests.contract.kube.conftest import KUBECONFIG, SERVERS, Space, _ours, api, eventually, space
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer
from tests.support.manifests import documents

__all__ = ["KUBECONFIG", "SERVERS", "_ours", "api", "kube", "space"]

LABELS = {"app": "w"}
IMPOSSIBLE = {"hvd-elastic-ext/nowhere": "yes"}
"""No node has this label: workers are not to be started for this."""


@dataclass(frozen=True)
class Where:
    """A namespace, and credentials that mean it."""

    space: Space
    access: Access

    def of(self, text: str) -> Replicas:
        return Replicas(self.access, workload(text), timeout=Timeout(5.0, 10.0))

    def number(self, plural: str, name: str, group: str) -> Any:
        return self.space.api.done("GET", self.space.path(plural, name, group=group)).body


@pytest.fixture
def where(space: Space, tmp_path: Path, request: pytest.FixtureRequest) -> Where:
    config = tmp_path / "kubeconfig-of-the-space"
    if request.node.callspec.params["api"] == "real":
        whole = yaml.safe_load(Path(os.environ[KUBECONFIG]).expanduser().read_text())
    else:
        whole = yaml.safe_load(request.getfixturevalue("_ours").kubeconfig(tmp_path / "kubeconfig").read_text())
    for each in whole["contexts"]:
        each["context"]["namespace"] = space.name
    config.write_text(yaml.safe_dump(whole))
    return Where(space, Access(str(config)))


def stateful_set(replicas: int) -> dict[str, Any]:
    template = {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "main", "image": "example.org/none:1"}], "nodeSelector": IMPOSSIBLE},
    }
    spec = {"replicas": replicas, "serviceName": "w", "selector": {"matchLabels": LABELS}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "w"}, "spec": spec}


@pytest.fixture
def the_set(where: Where) -> Iterator[Replicas]:
    path = where.space.path("statefulsets", group="apps/v1")
    where.space.api.done("POST", path, stateful_set(3))
    yield where.of("statefulset/w")
    where.space.api.ask("DELETE", f"{path}/w", {"gracePeriodSeconds": 0})


def test_a_set_has_as_many_workers_as_it_is_told(where: Where, the_set: Replicas) -> None:
    assert the_set.look().replicas == 3
    for count in (0, 2, 2):
        the_set.tell(count, before=3)
        assert the_set.look().replicas == count
        assert where.number("statefulsets", "w", "apps/v1")["spec"]["replicas"] == count


def test_nothing_else_of_a_set_is_changed(where: Where, the_set: Replicas) -> None:
    before = where.number("statefulsets", "w", "apps/v1")
    the_set.tell(0, before=3)
    after = where.number("statefulsets", "w", "apps/v1")
    assert {**before["spec"], "replicas": 0} == after["spec"]
    assert before["metadata"].get("annotations") == after["metadata"].get("annotations")


def test_workers_are_those_with_the_sets_labels_and_only_ready_ones_count(where: Where, the_set: Replicas) -> None:
    where.space.pod("one", **LABELS)
    where.space.pod("another", app="other")
    where.space.status("one", conditions=[{"type": "Ready", "status": "True"}])
    seen = eventually(lambda: (found := the_set.look()).ready and found, "a ready worker")
    assert "one" in {pod.name for pod in seen.pods}
    assert "another" not in {pod.name for pod in seen.pods}
    assert seen.ready == 1


def test_a_pod_is_deleted_and_no_other_of_its_name(where: Where, the_set: Replicas) -> None:
    uid = where.space.pod("one", **LABELS).body["metadata"]["uid"]
    gone = Pod("one", "11111111-2222-3333-4444-555555555555", False, False)
    the_set.delete((gone, Pod("nobody", uid, False, False)))
    reply = where.space.api.done("GET", where.space.path("pods", "one"))
    assert "deletionTimestamp" not in reply.body["metadata"]
    the_set.delete((Pod("one", uid, False, False),))
    reply = where.space.api.ask("GET", where.space.path("pods", "one"))
    assert reply.code == 404 or "deletionTimestamp" in reply.body["metadata"]


def test_what_is_not_there_is_told_with_what_to_do(where: Where) -> None:
    with pytest.raises(
        ApiError, match=r'the API server says 404 NotFound; --release-job names what makes.*"w" not found'
    ) as told:
        where.of("statefulset/w").look()
    assert "\n" not in str(told.value)


@pytest.fixture
def the_deployment(where: Where) -> Iterator[Replicas]:
    path = where.space.path("deployments", group="apps/v1")
    body = {**stateful_set(3), "kind": "Deployment"}
    del body["spec"]["serviceName"]
    where.space.api.done("POST", path, body)
    yield where.of("deployment/w")
    where.space.api.ask("DELETE", f"{path}/w", {"gracePeriodSeconds": 0})


def test_a_deployment_has_as_many_workers_as_it_is_told(where: Where, the_deployment: Replicas) -> None:
    the_deployment.resize(1, [])
    assert the_deployment.asked_for() == the_deployment.look().replicas == 1
    assert where.number("deployments", "w", "apps/v1")["spec"]["replicas"] == 1


def test_the_pods_that_go_are_marked_before_a_deployments_number_is_lowered(
    where: Where, the_deployment: Replicas
) -> None:
    for name in ("one", "two", "three"):
        where.space.pod(name, **LABELS)
    with pytest.raises(ApiError, match="host four is not a pod of deployment/w"):
        the_deployment.resize(2, ["four"])
    assert the_deployment.asked_for() == 3, "whichever pod would go is not known"
    the_deployment.resize(2, ["two"])
    assert {pod.name for pod in the_deployment.look().pods if pod.cost == DELETION_COST} == {"two"}
    the_deployment.resize(1, ["two", "three.w"])
    the_deployment.resize(3, ["three"])
    assert {pod.name for pod in the_deployment.look().pods if pod.cost == DELETION_COST} == {"three"}
    metadata = where.space.api.done("GET", where.space.path("pods", "two")).body["metadata"]
    assert COST not in metadata.get("annotations", {})


def test_a_set_takes_its_last_pods_whatever_is_asked(where: Where, the_set: Replicas) -> None:
    where.space.pod("one", **LABELS)
    the_set.resize(2, ["another"])
    assert the_set.asked_for() == 2
    assert all(pod.cost is None for pod in the_set.look().pods)


def test_a_kind_that_is_named_as_kubectl_names_it_is_told_by_its_scale(where: Where, the_set: Replicas) -> None:
    named = where.of("statefulsets.v1.apps/w")
    assert (named.asked_for(), named.look().replicas) == (3, 3)
    named.resize(2, ["whoever"])
    assert the_set.look().replicas == 2


def test_an_autoscaler_that_is_made_for_a_job_is_taken_as_it_is(where: Where) -> None:
    path = where.space.path("horizontalpodautoscalers", group="autoscaling/v2")
    policy = "threshold:cpu=0.4..0.8,queue=100,loss=0.5,up=60,down=600"
    body = autoscaler("statefulset/w", policy, least=1, most=9, slots=2)
    where.space.api.done("POST", path, body)
    spec = where.space.api.done("GET", f"{path}/w").body["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"], spec["scaleTargetRef"]) == (1, 4, body["spec"]["scaleTargetRef"])
    assert [each["type"] for each in spec["metrics"]] == ["Resource", "External", "External"]
    where.space.api.ask("DELETE", f"{path}/w", {"gracePeriodSeconds": 0})


def test_what_is_not_there_is_told_with_the_option_that_named_it(where: Where) -> None:
    with pytest.raises(ApiError, match="404 NotFound; --scale-with names what makes"):
        Replicas(where.access, workload("statefulset/w"), option="--scale-with").look()


def mpi_job(workers: int) -> dict[str, Any]:
    body = bodies.mpi_job("j", workers=workers, slots=4)
    del body["metadata"]["namespace"]
    for role in body["spec"]["mpiReplicaSpecs"].values():
        role["template"]["spec"]["nodeSelector"] = IMPOSSIBLE
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", **body}


@pytest.fixture
def the_job(where: Where) -> Iterator[Replicas]:
    path = where.space.path("mpijobs", group="kubeflow.org/v2beta1")
    reply = where.space.api.ask("POST", path, mpi_job(3))
    if reply.code == 404:
        pytest.skip("this cluster has no MPI Operator")
    assert reply.code == 201, reply.raw
    yield where.of("mpijob/j")
    where.space.api.ask("DELETE", f"{path}/j", {"gracePeriodSeconds": 0})


def test_a_job_is_told_a_number_and_notes_what_it_was(where: Where, the_job: Replicas) -> None:
    the_job.tell(0, before=3)
    seen = the_job.look()
    assert (seen.replicas, seen.before, seen.slots) == (0, 3, 4)
    assert where.number("mpijobs", "j", "kubeflow.org/v2beta1")["metadata"]["annotations"][BEFORE] == "3"
    the_job.tell(3, before=None)
    seen = the_job.look()
    assert (seen.replicas, seen.before) == (3, None)


def test_nothing_else_of_a_job_is_changed(where: Where, the_job: Replicas) -> None:
    before = where.number("mpijobs", "j", "kubeflow.org/v2beta1")["spec"]
    the_job.tell(0, before=3)
    before["mpiReplicaSpecs"]["Worker"]["replicas"] = 0
    assert where.number("mpijobs", "j", "kubeflow.org/v2beta1")["spec"] == before


def test_a_job_is_suspended_as_a_whole_and_valid(where: Where, the_job: Replicas) -> None:
    the_job.tell(0, before=3)
    the_job.suspend(3)
    job = where.number("mpijobs", "j", "kubeflow.org/v2beta1")
    assert job["spec"]["runPolicy"]["suspend"] is True
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    assert BEFORE not in job["metadata"].get("annotations", {})


# --- what a real server cannot be made to do


def launchers(kube: KubeServer, folder: Path, *manifests: str) -> Access:
    kube.apply([*documents("rbac.yaml"), *(each for name in manifests for each in documents(name))])
    token = kube.access.issue_for("default", "hvd-launcher-digits")
    return Access(str(kube.kubeconfig(folder / "launchers", token=token)))


def test_the_manifests_rights_are_enough_for_a_job(kube: KubeServer, tmp_path: Path) -> None:
    job = kube.put("mpijobs", bodies.mpi_job("digits", workers=1))
    owner = ("MPIJob", "digits", job["metadata"]["uid"])
    kube.put("pods", bodies.pod("w", labels=bodies.mpi_worker_labels("digits"), owner=owner))
    replicas = Replicas(launchers(kube, tmp_path, "sleep.yaml"), workload("mpijob/digits"))
    replicas.tell(0, before=1)
    replicas.delete(replicas.look().pods)
    assert all("deletionTimestamp" in pod["metadata"] for pod in kube.all("pods"))
    replicas.suspend(1)


def test_the_manifests_rights_are_enough_for_a_set(kube: KubeServer, tmp_path: Path) -> None:
    body = stateful_set(2)
    kube.put("statefulsets", {**body, "metadata": {"name": "digits-worker"}})
    replicas = Replicas(launchers(kube, tmp_path, "sleep-statefulset.yaml"), workload("statefulset/digits-worker"))
    replicas.tell(0, before=2)
    assert replicas.look().replicas == 0


def test_without_the_right_it_is_told_what_gives_it(kube: KubeServer, tmp_path: Path) -> None:
    kube.put("mpijobs", bodies.mpi_job("digits"))
    replicas = Replicas(launchers(kube, tmp_path), workload("mpijob/digits"))
    with pytest.raises(
        ApiError, match=r"the API server says 403 Forbidden; .*hvd-elastic manifest sleep gives.* cannot get "
    ):
        replicas.look()


def training_job(kube: KubeServer, workers: int, **status: str) -> None:
    names = [f"j-worker-{number}" for number in range(workers)]
    spec = {"etReplicaSpecs": {"worker": {"replicas": 2}}}
    body = {"metadata": {"name": "j"}, "spec": spec, "status": {"targetWorkers": names, **status}}
    kube.put("trainingjobs", body)


def test_a_training_job_is_told_by_objects_that_name_who_goes(kube: KubeServer, tmp_path: Path) -> None:
    training_job(kube, 3)
    replicas = Replicas(Access(str(kube.kubeconfig(tmp_path / "admin"))), workload("trainingjob/j", option="-"))
    assert replicas.asked_for() == 3
    replicas.resize(3, [])
    replicas.resize(5, [])
    replicas.resize(1, ["j-worker-0.j.default.svc", "j-worker-2"])
    (more,), (fewer,) = kube.all("scaleouts"), kube.all("scaleins")
    assert (more["spec"]["selector"], more["spec"]["toAdd"]) == ({"name": "j"}, {"count": 2})
    assert fewer["spec"]["toDelete"] == {"count": 2, "podNames": ["j-worker-0", "j-worker-2"]}


def test_changes_of_a_training_job_wait_for_one_another(kube: KubeServer, tmp_path: Path) -> None:
    training_job(kube, 3, currentScaler="ScaleOut:default/j-1")
    replicas = Replicas(Access(str(kube.kubeconfig(tmp_path / "admin"))), workload("trainingjob/j", option="-"))
    assert replicas.asked_for() is None
    with pytest.raises(ApiError, match="the et-operator is at ScaleOut:default/j-1; the next change comes after"):
        replicas.resize(2, ["j-worker-0"])
    assert not kube.all("scaleins")


def test_pods_that_may_not_be_marked_stay_and_so_does_the_number(kube: KubeServer, tmp_path: Path) -> None:
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    subject = {"kind": "ServiceAccount", "name": "hvd-launcher-digits"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    kube.put("roles", {"metadata": {"name": "r"}, "rules": rules})
    kube.put("rolebindings", {"metadata": {"name": "r"}, "roleRef": reference, "subjects": [subject]})
    kube.put("deployments", {**stateful_set(2), "kind": "Deployment"})
    kube.put("pods", bodies.pod("one", labels=LABELS))
    replicas = Replicas(launchers(kube, tmp_path), workload("deployment/w"), option="--scale-with")
    with pytest.raises(ApiError, match=r"403 Forbidden; docs/autoscale\.md says which rights it needs.*patch"):
        replicas.resize(1, ["one"])
    assert replicas.asked_for() == 2
    rules[1]["verbs"].append("patch")
    kube.change("roles", "r", {"rules": rules})
    replicas.resize(1, ["one"])
    assert replicas.asked_for() == 1


def test_a_pytorch_job_is_told_by_its_scale(kube: KubeServer, tmp_path: Path) -> None:
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}
    kube.put("pytorchjobs", {"metadata": {"name": "j"}, "spec": spec})
    replicas = Replicas(Access(str(kube.kubeconfig(tmp_path / "admin"))), workload("pytorchjob/j"))
    replicas.tell(1, before=3)
    assert replicas.look().replicas == 1
    assert kube.get("pytorchjobs", "j")["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1


def test_a_token_that_has_expired_is_read_anew(kube: KubeServer, tmp_path: Path) -> None:
    kube.put("mpijobs", bodies.mpi_job("digits"))
    path, old = tmp_path / "config", kube.access.issue("somebody", "system:masters")
    replicas = Replicas(Access(str(kube.kubeconfig(path, token=old))), workload("mpijob/digits"))
    kube.access.revoke(old)
    with pytest.raises(ApiError, match=r"says 401 Unauthorized; its token is missing or has expired"):
        replicas.look()
    kube.kubeconfig(path)
    assert replicas.look().replicas == 2


def test_a_server_that_is_away_or_hangs_is_told_as_such(kube: KubeServer, tmp_path: Path) -> None:
    access = Access(str(kube.kubeconfig(tmp_path / "admin")))
    replicas = Replicas(access, workload("mpijob/digits"), timeout=Timeout(1.0, 0.2))
    with kube.down(), pytest.raises(ApiError, match="no answer from the API server: "):
        replicas.look()
    with kube.hangs(), pytest.raises(ApiError, match=r"it has sent no data for 0\.2 s"):
        replicas.look()


def test_credentials_that_are_away_are_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="nowhere") as told:
        Replicas(Access(str(tmp_path / "nowhere")), workload("mpijob/digits")).look()
    assert told.value.reason is Reason.NO_CREDENTIALS


def test_a_redirect_is_not_followed_with_the_token(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(65536))
                where = f"http://127.0.0.1:{port}/elsewhere"
                connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        config = tmp_path / "config"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        user = {"name": "u", "user": {"token": "t-1"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        whole = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}
        config.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **whole}))
        with pytest.raises(ApiError, match="the API server says 302"):
            Replicas(Access(str(config)), workload("mpijob/digits")).look()
        thread.join()
    assert len(heard) == 1

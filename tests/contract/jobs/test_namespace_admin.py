"""Every command, for an account that is the administrator of one namespace and nothing else. It may not read jobs of
operators, whether the cluster has them or not: a server answers 403 to both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.jobs.cluster import changes, making, preflight
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.launcher.sleep.replica_requests import workload
from hvd_elastic_ext.launcher.sleep.replicas import Replicas
from tests.contract.jobs.test_changes import made
from tests.contract.kube.conftest import Space
from tests.support.jobs import NOWHERE, example
from tests.support.kube import bodies
from tests.support.kube.server import KubeServer

OPERATORS = ("kubeflow.org/v2beta1", "kubeflow.org/v1", "kai.alibabacloud.com/v1alpha1")
ON_NO_NODE = [
    *("--selector", "hvd-elastic-ext/nowhere=yes", "--launcher-selector", "hvd-elastic-ext/nowhere=yes"),
    *("--image", "example.org/none:1"),
]
COMMAND = ("--", "python", "/t.py")


@pytest.fixture(params=["operators", "none"])
def operators(request: pytest.FixtureRequest) -> str:
    """Whether the cluster has operators: what this account may do is the same."""
    if request.node.callspec.params["api"] == "ours" and request.param == "none":
        ours: KubeServer = request.getfixturevalue("_ours")
        ours.uninstall(*OPERATORS)
    elif request.param == "none":
        pytest.skip("which operators a real cluster has is not changed here")
    return str(request.param)


Said = Callable[..., tuple[str, str]]


@pytest.fixture
def said(newcomers_config: Path, capfd: pytest.CaptureFixture[str]) -> Said:
    def run(*words: str, code: int = 0, after: tuple[str, ...] = ()) -> tuple[str, str]:
        ended = cli.main([*words, "--kubeconfig", str(newcomers_config), *after])
        out, err = capfd.readouterr()
        assert ended == code, (words, out, err)
        return out, err

    return run


@pytest.mark.usefixtures("operators")
def test_who_administers_a_namespace_submits_sees_changes_and_deletes_a_job(said: Said) -> None:
    out, _ = said("submit", "digits", "--kind", "statefulset", "--workers", "2", *ON_NO_NODE, after=COMMAND)
    assert "job.batch/digits created\n" in out
    assert [line.split()[0] for line in said("list")[0].splitlines()] == ["NAME", "digits"]
    assert "digits" in said("get", "digits")[0]
    assert said("scale", "digits", "3") == ("digits scaled to 3\n", "")
    said("events", "digits")
    assert "digits has no pods" in said("logs", "digits", code=1)[1] or "pod" in said("logs", "digits", code=1)[1]
    assert "no pod of digits runs" in said("attach", "digits", code=1)[1]
    assert said("suspend", "digits")[0] == "job.batch/digits suspended\n"
    assert said("resume", "digits")[0] == "job.batch/digits resumed\n"
    assert "still " in said("wait", "digits", "--timeout", "0", code=1)[1]
    assert said("delete", "digits")[0] == "jobs/digits deleted\n"
    assert said("wait", "digits", "--for=deleted", "--timeout", "60s")[0] == "digits: Gone\n"


def test_top_goes_on_past_kinds_that_it_may_not_read(
    cluster: Cluster, newcomer: Cluster, request: pytest.FixtureRequest, said: Said
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("a real cluster may lack a metrics server")
    ours: KubeServer = request.getfixturevalue("_ours")
    made(cluster, "statefulset")
    rule = {"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["get", "list"]}
    ours.change("clusterroles", "admin", {"rules": [*ours.get("clusterroles", "admin")["rules"], rule]})
    assert said("top", "digits")[1] == f"digits has no pods in namespace {newcomer.namespace}\n"


def test_who_finds_no_job_is_told_which_kinds_may_not_be_read(
    cluster: Cluster, newcomer: Cluster, said: Said, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("which operators a real cluster has, and who may read their jobs, is not known here")
    made(cluster, "mpijob")
    unread = "your account may not read MPIJobs and PyTorchJobs and TrainingJobs"
    assert said("get", "digits", code=1)[1].rstrip().endswith(unread)
    assert said("list")[1] == f"no job was submitted in namespace {newcomer.namespace}; {unread}\n"
    out, err = said("wait", "digits", "--for=deleted")
    assert (out, err) == ("digits: Gone\n", f"hvd-elastic wait: digits was not seen; {unread}\n")
    made(cluster, "statefulset", name="mine")
    out, err = said("list")
    assert ("mine" in out, err) == (True, "")


def test_a_kind_that_the_cluster_does_not_have_is_not_called_forbidden(
    newcomer: Cluster, said: Said, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("which operators a real cluster has is not changed here")
    ours: KubeServer = request.getfixturevalue("_ours")
    ours.uninstall(*OPERATORS)
    with pytest.raises(changes.NoSuchJob, match=r"nothing was submitted here$"):
        changes.look(newcomer, "digits")
    words = ["submit", "digits", "--kind", "trainingjob", *ON_NO_NODE]
    told = (
        "the cluster has no TrainingJob (kai.alibabacloud.com/v1alpha1): install its operator, or take another --kind"
    )
    for how in ([], ["--dry-run=server"]):
        assert told in said(*words, *how, code=1, after=COMMAND)[1]
    out, _ = said("preflight", "--kind", "trainingjob", *ON_NO_NODE, code=1, after=COMMAND)
    problems = [line for line in out.splitlines() if line.startswith("PROBLEM  TrainingJob")]
    assert problems == ["PROBLEM  TrainingJob the cluster has no TrainingJob (kai.alibabacloud.com/v1alpha1)"]
    assert newcomer.listed("rbac.authorization.k8s.io/v1", "roles", "hvd-elastic-job=digits") == []


def test_a_job_that_may_not_be_read_any_more_is_not_gone(
    cluster: Cluster, newcomer: Cluster, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("rights on a real server take a while to change")
    ours: KubeServer = request.getfixturevalue("_ours")
    admin = ours.get("clusterroles", "admin")["rules"]
    mpi = {"apiGroups": ["kubeflow.org"], "resources": ["mpijobs"], "verbs": ["get"]}
    ours.change("clusterroles", "admin", {"rules": [*admin, mpi]})
    made(cluster, "mpijob")
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        ours.change("clusterroles", "admin", {"rules": admin})

    with pytest.raises(ApiError, match="digits cannot be read any more: your account may not read MPIJobs"):
        changes.wait_for(newcomer, "digits", (changes.GONE,), sleep=sleep, clock=lambda: now[0])
    assert 10 < now[0] < 30


def test_a_dry_run_knows_that_its_binding_has_no_role_yet(newcomer: Cluster, said: Said) -> None:
    job = example("statefulset", selector=NOWHERE, launcher_selector=NOWHERE)
    found = list(preflight.look(newcomer, job))
    assert [each for each in found if each.level == "problem"] == []
    assert "Role, RoleBinding" in next(each.found for each in found if each.what == "objects")
    out, _ = said("submit", "digits", "--kind", "statefulset", *ON_NO_NODE, "--dry-run=server", after=COMMAND)
    assert "rolebinding.rbac.authorization.k8s.io/hvd-discover-digits created (server dry run)\n" in out
    assert newcomer.listed("rbac.authorization.k8s.io/v1", "roles", "hvd-elastic-job=digits") == []


def test_a_kind_that_may_not_be_made_is_not_chosen(
    newcomer: Cluster, cluster: Cluster, said: Said, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("which operators a real cluster has, and who may create their jobs, is not known here")
    assert making.kind_for(cluster, ["python", "/t.py"]) == "mpijob"
    out, err = said("submit", "digits", *ON_NO_NODE, "--dry-run=server", after=COMMAND)
    assert "statefulset.apps/digits-worker created (server dry run)\n" in out
    assert "note: your account may not create mpijobs, which this cluster has: another kind is taken\n" in err
    assert making.kind_for(newcomer, ["torchrun", "/t.py"]) == "statefulset"


def test_a_missing_namespace_is_not_taken_for_a_missing_operator(cluster: Cluster) -> None:
    found = list(preflight.look(cluster.within("hvdt-nowhere"), example("statefulset")))
    remedies = {each.remedy for each in found if each.level == "problem" and each.what != "nodes"}
    assert remedies == {"make the namespace first: kubectl create namespace hvdt-nowhere"}


def test_delete_goes_on_past_leftovers_that_it_may_not_list(
    cluster: Cluster, newcomer: Cluster, space: Space, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("rights on a real server take a while to change")
    ours: KubeServer = request.getfixturevalue("_ours")
    rules = [each for each in ours.get("clusterroles", "admin")["rules"] if each["apiGroups"] != ["networking.k8s.io"]]
    ours.change("clusterroles", "admin", {"rules": rules})
    made(cluster, "statefulset")
    assert changes.delete(newcomer, "digits") == ["jobs/digits"]


def test_the_reason_of_pods_that_are_not_made_is_told(
    cluster: Cluster, newcomer: Cluster, space: Space, said: Said, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("a controller writes the event; this test stands for one")
    made(cluster, "statefulset")
    why = 'pods "digits-x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
    about = {"kind": "Job", "name": "digits", "namespace": space.name}
    late = {"lastTimestamp": "2126-01-01T00:00:00Z"}
    event = {"involvedObject": about, "type": "Warning", "reason": "FailedCreate", "message": why, **late}
    space.api.done("POST", space.path("events"), {"metadata": {"name": "e"}, **event})
    old = {**event, "message": "of an earlier job", "lastTimestamp": "2020-01-01T00:00:00Z"}
    space.api.done("POST", space.path("events"), {"metadata": {"name": "f"}, **old})
    assert changes.look(newcomer, "digits").message == why
    assert why in said("get", "digits")[0]
    assert why in said("wait", "digits", "--for=running", "--timeout=0", code=1)[1]


def test_pods_of_a_job_that_was_made_by_hand_are_found_by_its_operators_labels(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("an operator makes the pods; this test stands for one")
    ours: KubeServer = request.getfixturevalue("_ours")
    worker = {"containers": [{"name": "w", "image": "example.org/none:1"}]}
    replicas = {"Worker": {"replicas": 1, "template": {"spec": worker}}}
    body = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "old"}}
    cluster.create({**body, "spec": {"mpiReplicaSpecs": replicas}})
    training = "training.kubeflow.org"
    for role in ("launcher", "worker"):
        labels = {f"{training}/job-name": "old", f"{training}/job-role": role}
        labels[f"{training}/operator-name"] = "mpi-operator"
        pod = bodies.pod(f"old-{role}", labels=labels)
        ours.put("pods", {**pod, "metadata": {**pod["metadata"], "namespace": cluster.namespace}})
    found = changes.look(cluster, "old")
    assert {each.name: each.role for each in found.pods} == {"old-launcher": "launcher", "old-worker": "worker"}
    assert found.ready == 1


def test_a_launcher_of_submit_changes_the_number_of_its_workers_and_of_no_others(
    newcomer: Cluster, cluster: Cluster, said: Said, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("the token of the launcher's account is made by this server")
    ours: KubeServer = request.getfixturevalue("_ours")
    scaled = ("hvd-elastic", "run", "--autoscale", "efficiency", "--scale-with", "statefulset/digits-worker")
    words = ["submit", "digits", "--kind", "statefulset", *ON_NO_NODE]
    said(*words, after=("--", *scaled, "python", "/t.py"))
    made(cluster, "statefulset", name="other")
    token = ours.access.issue_for(newcomer.namespace, "hvd-launcher-digits")
    access = Access(str(ours.kubeconfig(tmp_path / "launchers", token=token, namespace=newcomer.namespace)))
    Replicas(access, workload("statefulset/digits-worker"), option="--scale-with").resize(5, [])
    assert changes.look(newcomer, "digits").asked == 5
    with pytest.raises(ApiError, match='cannot patch resource "statefulsets/scale"'):
        Replicas(access, workload("statefulset/other-worker"), option="--scale-with").resize(5, [])

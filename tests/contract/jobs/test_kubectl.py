"""kubectl's habits: all namespaces, labels, several names. With HVD_TEST_KUBECONFIG on a real server, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.install import completion
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.jobs.test_changes import made
from tests.contract.kube.conftest import Space

ELSEWHERE = "hvdt-elsewhere"


@pytest.fixture
def elsewhere(cluster: Cluster, space: Space) -> Iterator[Cluster]:
    """Another namespace."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{ELSEWHERE}-{space.name}"}}
    cluster.ask("POST", "/api/v1/namespaces", body)
    yield cluster.within(body["metadata"]["name"])
    cluster.ask("DELETE", f"/api/v1/namespaces/{body['metadata']['name']}")


@pytest.fixture
def said(config: Path, capsys: pytest.CaptureFixture[str]):
    def run(*words: str, code: int = 0) -> tuple[str, str]:
        assert cli.main([words[0], "--kubeconfig", str(config), *words[1:]]) == code
        found = capsys.readouterr()
        return found.out, found.err

    return run


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_all_namespaces_are_listed_with_their_own_pods_and_sizes(cluster: Cluster, elsewhere: Cluster, said) -> None:
    made(cluster, "statefulset", labels={"team": "a"})
    made(elsewhere, "statefulset", workers=3, labels={"team": "a"})
    assert names(said("list")[0]) == ["digits"]
    rows = [line.split() for line in said("list", "-A", "-l", "team=a")[0].splitlines()]
    assert rows[0][:2] == ["NAMESPACE", "NAME"]
    found = {row[0]: (row[1], row[2], row[4]) for row in rows[1:]}
    assert found[cluster.namespace] == ("digits", "Job", "0/2")
    assert found[elsewhere.namespace] == ("digits", "Job", "0/3")
    whole = json.loads(said("get", "--all-namespaces", "-o", "json", "-l", "team=a")[0])
    assert {job["namespace"] for job in whole} == {cluster.namespace, elsewhere.namespace}


def test_jobs_are_chosen_by_their_labels(cluster: Cluster, said) -> None:
    made(cluster, "statefulset", name="one", labels={"team": "a"})
    made(cluster, "statefulset", name="two", labels={"team": "b"})
    assert names(said("list", "-l", "team=a")[0]) == ["one"]
    assert names(said("list", "-l", "team in (a, b),team!=a")[0]) == ["two"]
    out, err = said("list", "-l", "team=c")
    assert (out, err) == ("", f"no job has the labels team=c in namespace {cluster.namespace}\n")
    assert said("list", "-l", "team=c", "-o", "json") == ("[]\n", "")
    _, err = said("list", "-l", "team==(", code=1)
    assert err.count("\n") == 1
    assert "unable to parse" in err


def test_several_jobs_are_deleted_and_waited_for(cluster: Cluster, said) -> None:
    for name in ("one", "two", "three"):
        made(cluster, "statefulset", name=name, labels={"team": name[0]})
    assert said("wait", "one", "two", "--for=suspended", "--timeout=0s", code=1)[1].count("still ") == 2
    out, err = said("delete", "one", "--namespace", cluster.namespace, "nobody", code=1)
    assert out == "jobs/one deleted\n"
    assert "hvd-elastic delete: there is no job nobody" in err
    assert said("wait", "one", "--for=delete", "--timeout=60s")[0] == "one: Gone\n"
    out, _ = said("delete", "-l", "team=t")
    assert sorted(out.splitlines()) == ["jobs/three deleted", "jobs/two deleted"]
    assert said("delete", "-l", "team=t")[1] == f"no job has the labels team=t in namespace {cluster.namespace}\n"
    assert "no job has the labels" in said("wait", "-l", "team=t", code=1)[1]


def test_a_name_of_two_kinds_is_deleted_once(cluster: Cluster, said) -> None:
    made(cluster, "mpijob", labels={"team": "a"})
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.com/c"}]}
    labels = {"app.kubernetes.io/managed-by": "hvd-elastic", "hvd-elastic-job": "digits", "team": "a"}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "digits", "labels": labels}}
    cluster.create({**body, "spec": {"template": {"spec": pod}}})
    out, _ = said("delete", "-l", "team=a")
    assert {"mpijobs/digits deleted", "jobs/digits deleted"} <= {*out.splitlines()}


def test_who_may_not_list_jobs_is_told_that_one_is_not_there(
    cluster: Cluster, said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise ApiError(Reason.FORBIDDEN, "you cannot list jobs", status=403)

    monkeypatch.setattr(Cluster, "listed", refuses)
    err = said("get", "nobody", code=1)[1]
    assert f"there is no job nobody in namespace {cluster.namespace}; its jobs could not be listed" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["get", "digits", "-A"], "a resource cannot be retrieved by name across all namespaces"),
        (["get", "digits", "-l", "a=b"], "name cannot be provided when a selector is specified"),
        (["delete", "digits", "-l", "a=b"], "name cannot be provided when a selector is specified"),
        (["list", "-n", ".."], "namespace '..': small letters, digits and '-'"),
        (["delete", "-l", "a=b", "-n", "a/b"], "namespace 'a/b': small letters"),
        (["delete"], "NAME is missing; name jobs, or give --selector LABELS"),
        (["wait", "digits", "--for=done"], "invalid choice: 'done'"),
        (["wait", "digits", "--timeout=soon"], "--timeout 'soon': write a time"),
        (["scale", "digits", "many"], "write a whole number"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(said, words: list[str], why: str) -> None:
    _, err = said(*words, code=2)
    assert why in err


def test_kubectls_conditions_are_states(cluster: Cluster, said) -> None:
    made(cluster, "mpijob")
    for condition in ("condition=Complete", "condition=succeeded=true", "Succeeded"):
        assert "still " in said("wait", "digits", f"--for={condition}", "--timeout=0", code=1)[1]


def test_shells_know_them() -> None:
    commands = {name: cli._completed(name) for name in ("list", "get", "delete", "wait", "logs", "attach")}
    script = completion.bash(commands)
    for name, options in {
        "list": "-A --all-namespaces -l --selector",
        "logs": "--since",
        "attach": "--container",
    }.items():
        assert {*options.split()} <= {option for each in commands[name].options for option in each.names}
    assert all(commands[name].named for name in ("delete", "wait"))
    assert "--all-namespaces" in script


@pytest.mark.usefixtures("unattended")
def test_a_job_or_pod_that_is_not_as_it_must_be_ends_with_1_as_of_kubectl(cluster: Cluster, said) -> None:
    made(cluster, "mpijob")
    assert "digits has no pods; hvd-elastic get digits says why" in said("logs", "digits", code=1)[1]
    assert "digits has no pod 'x'; its pods: none" in said("logs", "digits", "-i", "x", code=1)[1]
    assert "no pod of digits runs; hvd-elastic get digits says why" in said("attach", "digits", code=1)[1]
    again = ["submit", "digits", "--kind=mpijob", "--image=example.org/none:1", "python t.py"]
    assert "MPIJob digits already exists" in said(*again, code=1)[1]

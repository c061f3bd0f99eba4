"""The rights of the manifests' containers on their node, and who reaches their pods."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.manifests import Body, containers, documents, names, of_kind, pod_templates, pods

JOBS = ["mpijob-older.yaml", "mpijob.yaml", "statefulset.yaml", "trainingjob.yaml"]
WITH_PODS = [*JOBS, "pytorchjob.yaml"]

NOBODY = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "capabilities": {"drop": ["ALL"]}}
ROOT = {
    ("trainingjob.yaml", "launcher"): ["DAC_OVERRIDE", "SETGID"],
    ("trainingjob.yaml", "worker"): ["NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT"],
}
"""Containers that must be root, since the et-operator's keys are in /root/.ssh, and the rights that each needs.

tests/integration/docker/test_worker_sshd.py checks them with a real sshd and ssh.
"""

SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
"""The et-operator's API drops the field, and has this instead."""


def templates(name: str) -> dict[str, Body]:
    return {role: template for body in documents(name) for role, template in pod_templates(body)}


EVERY_CONTAINER = [
    (name, role, container) for name in WITH_PODS for role, pod in pods(name).items() for container in containers(pod)
]


def test_all_files_with_pods_are_listed() -> None:
    assert {name for name in names() if pods(name)} == set(WITH_PODS)
    assert len(EVERY_CONTAINER) == 13


@pytest.mark.parametrize(("name", "role", "container"), EVERY_CONTAINER)
def test_a_container_has_no_right_that_it_does_not_need(name: str, role: str, container: str) -> None:
    template = templates(name)[role]
    security: dict[str, Any] = {
        **template["spec"].get("securityContext", {}),
        **containers(template["spec"])[container]["securityContext"],
    }
    for of_files in ("fsGroup", "readOnlyRootFilesystem"):
        security.pop(of_files, None)
    if name == "trainingjob.yaml":
        assert template["metadata"]["annotations"][SECCOMP] == "runtime/default"
        security["seccompProfile"] = {"type": "RuntimeDefault"}
    who = NOBODY
    if (name, container) in ROOT:
        who = {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ROOT[name, container]}}
    assert security == {**who, "allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("name", WITH_PODS)
def test_a_pod_shares_nothing_with_its_node(name: str) -> None:
    for pod in pods(name).values():
        assert {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"}.isdisjoint(pod)
        kinds = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "projected", "secret"}


@pytest.mark.parametrize("name", JOBS)
def test_a_policy_has_not_the_jobs_own_name_which_an_operators_may_have(name: str) -> None:
    (policy,) = of_kind(name, "NetworkPolicy")
    assert policy["metadata"]["name"] == "hvd-elastic-digits"


@pytest.mark.parametrize("name", names())
def test_every_account_is_one_jobs_own(name: str) -> None:
    accounts = {body["metadata"]["name"] for body in of_kind(name, "ServiceAccount")}
    accounts |= {who["name"] for each in of_kind(name, "RoleBinding", "ClusterRoleBinding") for who in each["subjects"]}
    accounts |= {pod["serviceAccountName"] for pod in pods(name).values() if "serviceAccountName" in pod}
    assert all("digits" in account for account in accounts)
    for binding in of_kind(name, "RoleBinding", "ClusterRoleBinding"):  # otherwise a second job's replaces the first's
        assert "digits" in binding["metadata"]["name"]


# Who reaches whom


def matches(selector: Body, labels: Body) -> bool:
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def lets(peers: list[Body] | None, ports: list[Body] | None, *, labels: Body, port: int) -> bool:
    """Whether a rule with these peers and ports allows this; no list means all."""
    of_port = ports is None or any(each["port"] == port for each in ports)
    return of_port and (peers is None or any(matches(each["podSelector"], labels) for each in peers))


def reaches(policies: list[Body], *, source: Body, target: Body, port: int) -> bool:
    """Read policies as network plugins do, for pods of one namespace with these labels."""
    for direction, end, own, peers in (("Ingress", target, source, "from"), ("Egress", source, target, "to")):
        applied = [
            each["spec"]
            for each in policies
            if direction in each["spec"]["policyTypes"] and matches(each["spec"]["podSelector"], end)
        ]
        rules = [rule for spec in applied for rule in spec.get(direction.lower(), [])]
        if applied and not any(lets(rule.get(peers), rule.get("ports"), labels=own, port=port) for rule in rules):
            return False
    return True


def policies(*files: str) -> list[Body]:
    return [body for file in files for body in of_kind(file, "NetworkPolicy")]


def labels(name: str, role: str) -> Body:
    found: Body = templates(name)[role].get("metadata", {}).get("labels", {})
    return found


STRANGERS: list[Body] = [{}, {"app": "other"}, {"hvd-elastic-job": "other", "hvd-elastic-role": "launcher"}]
PORTS = [22, 2222, 43211]
"""ssh's, and one that the system chose, as for the control port and Gloo."""


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("more", [[], ["network.yaml"]])
@pytest.mark.parametrize("name", JOBS)
def test_pods_of_a_job_reach_one_another_and_nobody_else_reaches_them(name: str, more: list[str], port: int) -> None:
    given = policies(name, *more)
    both = [labels(name, "launcher"), labels(name, "worker")]
    for target in both:
        assert all(reaches(given, source=source, target=target, port=port) for source in both)
        for stranger in STRANGERS:
            assert not reaches(given, source=stranger, target=target, port=port), stranger


@pytest.mark.parametrize("name", JOBS)
def test_with_network_yaml_pods_reach_only_one_another_and_dns_and_the_launcher_the_api_server(
    name: str,
) -> None:
    given = policies(name, "network.yaml")
    launcher, worker = labels(name, "launcher"), labels(name, "worker")
    for target in STRANGERS[:2]:
        assert [
            port for port in (53, 80, 443, 2222, 6443) if reaches(given, source=worker, target=target, port=port)
        ] == [53]
        reached = [
            port for port in (53, 80, 443, 2222, 6443) if reaches(given, source=launcher, target=target, port=port)
        ]
        assert reached == [53, 443, 6443]
        assert reaches(
            policies(name), source=worker, target=target, port=80
        )  # otherwise storage and data cannot be reached

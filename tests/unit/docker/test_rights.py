"""The Roles of the manifests grant exactly what is needed, to those who need it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from hvd_elastic_ext.launcher.agents.transports import pods as pod_exec
from tests.support import rights
from tests.support.kube.access import service_account
from tests.support.kube.calls import Call, User
from tests.support.kube.fixtures import kube
from tests.support.kube.resources import resource
from tests.support.kube.server import KubeServer
from tests.support.kube.statuses import ApiError
from tests.support.manifests import documents, names, of_kind, pods
from tests.support.rights import Right, granted

__all__ = ["kube"]

ROLES = {
    "rbac.yaml": rights.DAEMON,
    "nodes.yaml": rights.NODES,
    "reap.yaml": rights.REAP,
    "configmap.yaml": rights.CONFIGMAP,
    "standalone.yaml": rights.READ_JOB["mpi"],
    "exec.yaml": rights.EXEC,
    "sleep.yaml": rights.SLEEP["mpi"],
    "sleep-statefulset.yaml": rights.SLEEP["statefulset"],
    "mpijob.yaml": rights.READ_JOB["mpi"],
    "mpijob-older.yaml": rights.READ_JOB["mpi"],
    "trainingjob.yaml": rights.READ_JOB["et"],
    "statefulset.yaml": rights.READ_JOB["statefulset"],
}
LAUNCHERS = {
    "mpijob.yaml": "mpi",
    "mpijob-older.yaml": "mpi",
    "statefulset.yaml": "statefulset",
    "trainingjob.yaml": "et",
}


def account_of(name: str) -> str:
    """The service account of a manifest's launcher."""
    if name == "trainingjob.yaml":  # the et-operator always sets its own
        assert "serviceAccountName" not in pods(name)["launcher"]
        return "digits-launcher"
    account: str = pods(name)["launcher"]["serviceAccountName"]
    return account


WITH_RIGHTS = [name for name in names() if name != "network.yaml"]


@pytest.mark.parametrize("name", WITH_RIGHTS)
def test_each_role_grants_exactly_what_is_needed(name: str) -> None:
    (role,) = of_kind(name, "Role", "ClusterRole")
    assert granted(role["rules"]) == ROLES[name]


def test_rules_grant_the_rights_that_they_are_made_of() -> None:
    for wanted in ROLES.values():
        assert granted(rights.rules(wanted)) == wanted


@pytest.mark.parametrize("name", WITH_RIGHTS)
def test_each_binding_binds_an_existing_role_to_the_launchers_account(name: str) -> None:
    roles = {
        (each["kind"], each["metadata"]["name"]) for file in names() for each in of_kind(file, "Role", "ClusterRole")
    }
    accounts = {account_of(name) if name in LAUNCHERS else "hvd-launcher-digits"}
    bindings = of_kind(name, "RoleBinding", "ClusterRoleBinding")
    assert bindings
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        assert {subject["name"] for subject in binding["subjects"]} == accounts
        assert {subject["kind"] for subject in binding["subjects"]} == {"ServiceAccount"}


def everything() -> Iterator[Right]:
    """Rights that a careless Role might grant."""
    kinds = (
        "pods",
        "nodes",
        "secrets",
        "configmaps",
        "events",
        "services",
        "statefulsets",
        "roles",
        "mpijobs",
        "trainingjobs",
        "leases",
    )
    for kind in kinds:
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"):
            yield Right(resource(kind).group, kind, verb)
            yield Right(resource(kind).group, kind, verb, "digits")
            yield Right(resource(kind).group, kind, verb, "digits-worker")
    yield from (Right("", "pods/exec", verb) for verb in ("get", "create"))
    for name in ("", "digits", "digits-worker"):
        yield from (Right("apps", "statefulsets/scale", verb, name) for verb in ("get", "update", "patch"))


def allowed(kube: KubeServer, account: str, right: Right, *, namespace: str = "default") -> bool:
    plural, _, subresource = right.resource.partition("/")
    of = resource(plural)
    user = User(*service_account("default", account))
    name = right.name or ("one" if right.verb in ("get", "update", "patch", "delete") else "")
    call = Call(right.verb, of, namespace if of.namespaced else "", name, subresource, query={}, user=user)
    try:
        kube.access.authorize(call)
    except ApiError as refused:
        if refused.code != 403:
            raise
        return False
    return True


@pytest.mark.parametrize("name", sorted(LAUNCHERS))
def test_with_these_files_applied_a_launchers_account_may_do_exactly_that(kube: KubeServer, name: str) -> None:
    kube.apply([*documents("rbac.yaml"), *documents(name)])
    account = account_of(name)
    wanted = rights.DAEMON | rights.READ_JOB[LAUNCHERS[name]]
    for right in everything():
        expected = right in wanted or right._replace(name="") in wanted
        assert allowed(kube, account, right) is expected, right
        assert not allowed(kube, account, right, namespace="kube-system"), right
        assert not allowed(kube, "default", right), right


def test_nodes_may_be_read_only_with_an_administrators_role(kube: KubeServer) -> None:
    watch = Right("", "nodes", "watch")
    kube.apply(documents("rbac.yaml"))
    assert not allowed(kube, "hvd-launcher-digits", watch)
    kube.apply(documents("nodes.yaml"))
    assert allowed(kube, "hvd-launcher-digits", watch)
    assert not allowed(kube, "hvd-launcher-digits", Right("", "nodes", "patch"))


def test_each_further_role_adds_only_its_own_rights(kube: KubeServer) -> None:
    kube.apply(documents("rbac.yaml"))
    before = {right for right in everything() if allowed(kube, "hvd-launcher-digits", right)}
    kube.apply([*documents("reap.yaml"), *documents("exec.yaml")])
    after = {right for right in everything() if allowed(kube, "hvd-launcher-digits", right)}
    assert {right._replace(name="") for right in after - before} == (rights.REAP | rights.EXEC) - rights.DAEMON


@pytest.mark.parametrize(("name", "kind"), [("sleep.yaml", "mpi"), ("sleep-statefulset.yaml", "statefulset")])
def test_a_launcher_that_scales_workers_may_change_only_its_own_job(kube: KubeServer, name: str, kind: str) -> None:
    kube.apply([*documents("rbac.yaml"), *documents(name)])
    wanted = rights.DAEMON | rights.SLEEP[kind]
    for right in everything():
        expected = right in wanted or right._replace(name="") in wanted
        assert allowed(kube, "hvd-launcher-digits", right) is expected, right
        assert not allowed(kube, "hvd-launcher-digits", right, namespace="kube-system"), right


def test_the_right_to_a_configmap_covers_one_and_the_lease_of_its_name(kube: KubeServer) -> None:
    kube.apply([*documents("rbac.yaml"), *documents("configmap.yaml")])
    for kind in ("configmaps", "leases"):
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
            right = Right(resource(kind).group, kind, verb)
            named = right._replace(name="digits-hosts")
            assert allowed(kube, "hvd-launcher-digits", right) is (right in rights.CONFIGMAP), right
            if verb not in ("create", "list", "watch"):
                assert allowed(kube, "hvd-launcher-digits", named) is (named in rights.CONFIGMAP), named


def test_the_role_in_the_launchers_message_is_the_manifests() -> None:
    rules = [yaml.safe_load(rule) for rule in re.findall(r"\{.*?\}", pod_exec.ROLE)]
    assert granted(rules) == rights.EXEC

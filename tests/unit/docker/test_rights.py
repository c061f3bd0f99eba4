"""The Roles of the manifests grant exactly what is needed, to those who need it."""

from __future__ import annotations

import re

import pytest
import yaml

from hvd_elastic_ext.launcher.agents.transports import pod_exec
from tests.support import rights
from tests.support.manifests import names, of_kind, pods
from tests.support.rights import granted

ROLES = {
    "rbac.yaml": rights.DAEMON,
    "nodes.yaml": rights.NODES,
    "reap.yaml": rights.REAP,
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


WITH_RIGHTS = [name for name in names() if name not in ("network.yaml", "pytorchjob.yaml")]


@pytest.mark.parametrize("name", WITH_RIGHTS)
def test_each_role_grants_exactly_what_is_needed(name: str) -> None:
    (role,) = of_kind(name, "Role", "ClusterRole")
    assert granted(role["rules"]) == ROLES[name]
    assert role["kind"] == ("ClusterRole" if name == "nodes.yaml" else "Role")


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


def test_the_role_in_the_launchers_message_is_the_manifests() -> None:
    rules = [yaml.safe_load(rule) for rule in re.findall(r"\{.*?\}", pod_exec.ROLE)]
    assert granted(rules) == rights.EXEC

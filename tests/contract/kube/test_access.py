"""Who may do what, and how a refusal is worded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.kube.client import Api
from tests.contract.kube.conftest import Space, eventually

RBAC = "rbac.authorization.k8s.io/v1"


@pytest.fixture
def reader(space: Space) -> Api:
    """A service account that may read pods of the namespace, and patch one of its config maps."""
    rules: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["get", "patch"]},
    ]
    return account(space, "reader", rules)


def account(space: Space, name: str, rules: list[dict[str, Any]]) -> Api:
    post = space.api.done
    post("POST", space.path("serviceaccounts"), {"metadata": {"name": name}})
    post("POST", space.path("roles", group=RBAC), {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": space.name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
    post("POST", space.path("rolebindings", group=RBAC), binding)
    request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 600}}
    reply = post("POST", space.path("serviceaccounts", name, "token"), request)
    return space.api.as_user(reply.body["status"]["token"])


def test_what_a_role_allows_is_done(space: Space, reader: Api) -> None:
    space.pod("a")

    assert reader.done("GET", space.pods).names == ["a"]
    assert reader.done("GET", space.path("pods", "a")).code == 200
    watch = reader.watch(space.pods, timeoutSeconds=1)
    assert watch.next()[0] == "ADDED"
    watch.close()


def test_what_no_role_allows_is_forbidden_and_the_message_says_what_it_was(space: Space, reader: Api) -> None:
    reply = reader.ask("GET", "/api/v1/nodes")

    user = f"system:serviceaccount:{space.name}:reader"
    assert (reply.code, reply.body["reason"]) == (403, "Forbidden")
    assert reply.body["message"] == (
        f'nodes is forbidden: User "{user}" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    assert reply.body["details"] == {"kind": "nodes"}


def test_a_watch_that_is_forbidden_is_so_before_it_begins(space: Space, reader: Api) -> None:
    watch = reader.watch("/api/v1/nodes")

    assert watch.code == 403
    assert b'cannot watch resource \\"nodes\\"' in watch.raw()
    watch.close()


def test_a_rule_can_name_objects(space: Space, reader: Api) -> None:
    for name in ("mine", "yours"):
        space.api.done("POST", space.path("configmaps"), {"metadata": {"name": name}})
    patch = {"data": {"x": "1"}}
    media = "application/merge-patch+json"

    assert reader.done("PATCH", space.path("configmaps", "mine"), patch, media=media).body["data"] == {"x": "1"}
    assert reader.ask("PATCH", space.path("configmaps", "yours"), patch, media=media).code == 403
    assert reader.ask("GET", space.path("configmaps")).code == 403
    assert reader.ask("GET", space.path("configmaps"), fieldSelector="metadata.name=mine").code == 403  # no list


def test_rights_come_before_what_there_is_and_everybody_may_know_what_there_is(reader: Api) -> None:
    for path in ("/apis/none.example.org/v1/namespaces/a/foos/x", "/apis/apps/v1/namespaces/a/foos"):
        assert (reader.ask("GET", path).code, reader.ask("DELETE", path).code) == (403, 403)
    assert {"apps", "batch"} <= {each["name"] for each in reader.done("GET", "/apis").body["groups"]}
    assert "statefulsets" in {each["name"] for each in reader.done("GET", "/apis/apps/v1").body["resources"]}
    assert reader.ask("GET", "/apis/none.example.org/v1").code == 404


def test_nobody_grants_what_is_not_his_own_and_a_binding_looks_for_its_role(space: Space) -> None:
    rules: list[dict[str, Any]] = [
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]
    half = account(space, "half", rules)
    roles, bindings = space.path("roles", group=RBAC), space.path("rolebindings", group=RBAC)

    def role(*verbs: str) -> dict[str, Any]:
        return {"metadata": {"name": "new"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [*verbs]}]}

    refused = half.ask("POST", roles, role("get", "delete"))
    assert (refused.code, "attempting to grant RBAC permissions not currently held" in str(refused.body)) == (403, True)
    assert half.ask("POST", roles, role("get"), dryRun="All").code == 201
    bound = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "new"}
    binding = {"metadata": {"name": "new"}, "subjects": [], "roleRef": bound}
    assert half.ask("POST", bindings, binding, dryRun="All").code == 404  # since a dry run has kept no role
    assert half.ask("POST", roles, role("get")).code == 201
    assert half.ask("POST", bindings, binding, dryRun="All").code == 201


def test_a_role_that_changes_holds_from_then_on(space: Space, reader: Api) -> None:
    assert reader.ask("GET", space.path("services")).code == 403
    rule = {"apiGroups": [""], "resources": ["services"], "verbs": ["*"]}
    space.api.done(
        "PATCH", space.path("roles", "reader", group=RBAC), {"rules": [rule]}, media="application/merge-patch+json"
    )
    eventually(lambda: reader.ask("GET", space.path("services")).code == 200, "the role to hold")
    eventually(lambda: reader.ask("GET", space.pods).code == 403, "the old role to hold no more")


def test_a_token_that_is_none_is_unauthorized_in_so_many_words(space: Space) -> None:
    reply = space.api.as_user("nonsense").ask("GET", space.pods)

    assert reply.code == 401
    assert reply.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Unauthorized",
        "reason": "Unauthorized",
        "code": 401,
    }

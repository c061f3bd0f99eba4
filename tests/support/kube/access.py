"""Finds the user of a request by token or client certificate, and whether the RBAC objects in the store allow it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.kube import statuses
from tests.support.kube.clock import ServerClock
from tests.support.kube.requests import ANONYMOUS, Call, User
from tests.support.kube.resources import TABLE, Key, Resource, resource
from tests.support.kube.store import Store

MASTERS: Final = "system:masters"
_AUTHENTICATED: Final = "system:authenticated"

_ALL: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
NAMESPACE_ADMIN: Final = (
    {
        "apiGroups": [""],
        "resources": [
            *("pods", "pods/attach", "pods/eviction", "pods/exec", "pods/log", "pods/portforward", "configmaps"),
            *("events", "persistentvolumeclaims", "secrets", "serviceaccounts", "serviceaccounts/token", "services"),
        ],
        "verbs": [*_ALL],
    },
    {"apiGroups": [""], "resources": ["namespaces", "resourcequotas"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["apps"],
        "resources": ["deployments", "deployments/scale", "statefulsets", "statefulsets/scale"],
        "verbs": [*_ALL],
    },
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": [*_ALL]},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": [*_ALL]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": [*_ALL]},
    {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": [*_ALL]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*_ALL]},
)
"""What Kubernetes' own ClusterRole ``admin`` allows of the kinds that this server has. It knows no operators."""

_ROLES, _BINDINGS = resource("roles"), resource("rolebindings")
_CLUSTER_ROLES, _CLUSTER_BINDINGS = resource("clusterroles"), resource("clusterrolebindings")


@dataclass(frozen=True, slots=True)
class _Token:
    user: User
    expires: float | None


class Access:
    """Users, tokens and rights. ``admin``: a token that may do everything."""

    def __init__(self, store: Store, clock: ServerClock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._tokens: dict[str, _Token] = {}
        self._warm_at = float("-inf")
        self.admin = self.issue("admin", MASTERS)

    def cold(self, seconds: float) -> None:
        """Know no roles for so many seconds of the server's clock, like a server that has just started."""
        self._warm_at = self._clock.now() + seconds

    def issue(self, user: str, *groups: str, lasts: float | None = None) -> str:
        """Return a new token of ``user``. ``lasts``: seconds of the server's clock; None is for ever."""
        token = "t-" + secrets.token_urlsafe(24)
        expires = None if lasts is None else self._clock.now() + lasts
        with self._lock:
            self._tokens[token] = _Token(User(user, (*groups, _AUTHENTICATED)), expires)
        return token

    def issue_for(self, namespace: str, account: str, *, lasts: float | None = None) -> str:
        """Return a new token of a service account."""
        name, groups = service_account(namespace, account)
        return self.issue(name, *groups, lasts=lasts)

    def revoke(self, *tokens: str) -> None:
        """Answer 401 to these tokens from now on. Open watches continue, as on a real server."""
        with self._lock:
            for each in tokens:
                self._tokens.pop(each, None)

    def authenticate(self, authorization: str, certificate: Mapping[str, Any] | None) -> User:
        """Return the user of a request. Raises ApiError 401 for a token that is not valid."""
        kind, _, token = authorization.partition(" ")
        if kind.lower() == "bearer" and token.strip():
            with self._lock:
                known = self._tokens.get(token.strip())
            if known is None or (known.expires is not None and self._clock.now() >= known.expires):
                raise statuses.unauthorized()
            return known.user
        return _of_certificate(certificate) or ANONYMOUS

    def authorize(self, call: Call) -> None:
        """Raises ApiError 403 if the user of ``call`` has no right to it."""
        if MASTERS in call.user.groups:
            return
        missing: list[str] = []
        warm = self._clock.now() >= self._warm_at
        if not (warm and any(_matches(rule, call) for rule in self._rules(call, missing))):
            raise statuses.forbidden(
                call.user.name,
                call.verb,
                call.resource,
                subresource=call.subresource,
                namespace=call.namespace,
                name=call.name,
                missing=missing,
            )

    def check_grant(self, call: Call, body: Mapping[str, Any]) -> None:
        """Let nobody grant what is not his own, by a Role or a binding to one. Raises ApiError 403, and 404 for a
        binding to a Role that does not exist, as after a dry run."""
        if MASTERS in call.user.groups:
            return
        match call.resource.kind, body.get("roleRef") or {}:
            case "Role", _:
                rules = body.get("rules") or []
            case "RoleBinding", {"kind": "Role", "name": str(name)}:
                record = self._store.get(_ROLES, Key(call.namespace, name))
                if record is None:
                    raise statuses.not_found(_ROLES, name)
                rules = record.body().get("rules") or []
            case _:
                return
        held = list(self._rules(call, []))
        missing = [
            each for rule in rules for each in _calls(rule, call) if not any(_matches(own, each) for own in held)
        ]
        if missing:
            raise statuses.escalation(call.user.name, call.resource, body["metadata"]["name"], map(_told, missing))

    def review(self, call: Call) -> dict[str, Any]:
        """Return the answer to a SelfSubjectAccessReview."""
        body = call.json()
        asked = body["spec"]["resourceAttributes"]
        found = next(each for each in TABLE if (each.group, each.plural) == (asked.get("group", ""), asked["resource"]))
        space, name, below = asked.get("namespace", ""), asked.get("name", ""), asked.get("subresource", "")
        try:
            self.authorize(Call(asked["verb"], found, space, name, below, {}, user=call.user))
        except statuses.ApiError:
            return {**body, "status": {"allowed": False}}
        return {**body, "status": {"allowed": True}}

    def _rules(self, call: Call, missing: list[str]) -> Iterator[Mapping[str, Any]]:
        with self._store.lock:
            spaces = [(_CLUSTER_BINDINGS, ""), *([(_BINDINGS, call.namespace)] if call.namespace else [])]
            for bindings, namespace in spaces:
                for body in self._bodies(bindings, namespace):
                    if _binds(body, call.user):
                        yield from self._of_role(body["roleRef"], namespace, missing)

    def _bodies(self, of: Any, namespace: str) -> Iterator[dict[str, Any]]:
        for key, record in self._store.shelf(of).records.items():
            if key.namespace == namespace:
                yield record.body()

    def _of_role(self, reference: Mapping[str, str], namespace: str, missing: list[str]) -> Iterable[Mapping[str, Any]]:
        if reference["kind"] == "ClusterRole":
            record = self._store.get(_CLUSTER_ROLES, Key("", reference["name"]))
        else:
            record = self._store.get(_ROLES, Key(namespace, reference["name"]))
        if record is None:
            missing.append(f'{reference["kind"].lower()}.rbac.authorization.k8s.io "{reference["name"]}" not found')
            return []
        return record.body().get("rules") or []


def service_account(namespace: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the user name and the groups of a service account."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return f"system:serviceaccount:{namespace}:{name}", groups


def _of_certificate(certificate: Mapping[str, Any] | None) -> User | None:
    if not certificate:
        return None
    facts = [pair for part in certificate.get("subject", ()) for pair in part]
    name = next((value for kind, value in facts if kind == "commonName"), "")
    groups = tuple(value for kind, value in facts if kind == "organizationName")
    return User(name, (*groups, _AUTHENTICATED)) if name else None


def _binds(binding: Mapping[str, Any], user: User) -> bool:
    for subject in binding.get("subjects") or ():
        match subject.get("kind"):
            case "User":
                found = subject["name"] == user.name
            case "Group":
                found = subject["name"] in user.groups
            case "ServiceAccount":
                namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
                found = service_account(namespace, subject["name"])[0] == user.name
            case _:
                found = False
        if found:
            return True
    return False


def _matches(rule: Mapping[str, Any], call: Call) -> bool:
    def has(field: str, *values: str) -> bool:
        return any(value in (rule.get(field) or ()) for value in ("*", *values))

    what = f"{call.resource.plural}/{call.subresource}" if call.subresource else call.resource.plural
    whatever = (what, f"*/{call.subresource}") if call.subresource else (what,)
    names = rule.get("resourceNames") or ()
    named = call.name or _selected_name(call)
    return (
        has("verbs", call.verb)
        and has("apiGroups", call.resource.group)
        and has("resources", *whatever)
        and (not names or named in names)
    )


def _calls(rule: Mapping[str, Any], call: Call) -> Iterator[Call]:
    """Yield a request for each right of a rule."""
    for group in rule.get("apiGroups") or ():
        for what in rule.get("resources") or ():
            plural, _, below = what.partition("/")
            for name in rule.get("resourceNames") or ("",):
                for verb in rule.get("verbs") or ():
                    yield Call(verb, Resource(group, "", plural, ""), call.namespace, name, below, {}, user=call.user)


def _told(call: Call) -> str:
    what = f"{call.resource.plural}/{call.subresource}" if call.subresource else call.resource.plural
    names = f', ResourceNames:["{call.name}"]' if call.name else ""
    return f'{{APIGroups:["{call.resource.group}"], Resources:["{what}"]{names}, Verbs:["{call.verb}"]}}'


def _selected_name(call: Call) -> str:
    """Return the name that a field selector selects: a rule for that name also allows such a list or watch."""
    field, _, name = call.option("fieldSelector").partition("=")
    return name if field == "metadata.name" and call.verb in ("list", "watch", "deletecollection") else ""

"""Requests about jobs to one namespace of a cluster. The first request loads the official client."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.io.kube.pods import client_needed, refusal

if TYPE_CHECKING:
    from hvd_elastic_ext.io.kube.access import Access, Endpoint

Body = dict[str, Any]

TIMEOUT: Final = (5.0, 30.0)
"""Seconds to connect, and seconds without a byte of the answer."""
REMEDIES: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "your token is none, or has expired",
    HTTPStatus.FORBIDDEN: "ask for the right; docs/submit.md lists all that are needed",
}
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PLURALS: Final[Mapping[str, str]] = {"NetworkPolicy": "networkpolicies"}
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""A valid namespace. In a path, ".." would mean all namespaces."""
MISSING: Final = "what this command asks a cluster for"


class ClusterRefused(Permanent):
    """An API server refused a request. ``code``: the HTTP status."""

    def __init__(self, code: int, why: str) -> None:
        self.code = code
        super().__init__(why)


class ClusterUnanswered(Permanent):
    """The API server did not answer. A change may have taken effect."""


class WrongState(UsageError):
    """A job or pod is not in the state that the command needs. The exit code is 1, as with kubectl."""

    exit_code = 1


class Cluster:
    """One namespace, with the credentials of a user. Raises :class:`ClusterRefused` and :class:`ClusterUnanswered`."""

    def __init__(self, access: Access, namespace: str = "") -> None:
        from hvd_elastic_ext.io.kube import access as kube_access

        self._io = kube_access
        with self._translated_errors():
            self._configuration = access.configuration()
            self._kept = kube_access.connections(self._configuration)
            self.namespace = namespace or access.namespace
        self._kinds: dict[str, frozenset[str]] = {}

    def within(self, namespace: str) -> Cluster:
        """Return the same cluster with another namespace; "" means all namespaces."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Body:
        """Send one request to a path that does not depend on the namespace."""
        target = f"{path}?{urlencode(query)}" if query else path
        with self._translated_errors():
            return self._io.ask(self._configuration, method, target, body, timeout=TIMEOUT, kept=self._kept)

    def endpoint(self) -> Endpoint:
        """Return the server's address and credentials."""
        with self._translated_errors():
            return self._io.Endpoint.of(self._configuration)

    def path(self, api_version: str, plural: str, name: str = "", subresource: str = "") -> str:
        """Return the path of an object in the namespace; without ``name`` that of all objects of its kind."""
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        named = "/".join(quote(each, safe="") for each in (plural, name, subresource) if each)
        return f"{root}/namespaces/{quote(self.namespace, safe='')}/{named}" if self.namespace else f"{root}/{named}"

    def path_of(self, body: Mapping[str, Any], *, named: bool = True) -> str:
        """Return the path of an object, or, without ``named``, of its kind."""
        return self.path(body["apiVersion"], plural(body["kind"]), body["metadata"]["name"] if named else "")

    def create(self, body: Mapping[str, Any], *, dry: bool = False) -> Body:
        """Create an object; the server refuses unknown fields. ``dry``: the server checks everything and creates
        nothing."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry else {})}
        return self.ask("POST", self.path_of(body, named=False), body, **query)

    def read(self, path: str) -> Body | None:
        """Return an object; None if it, or its kind, does not exist."""
        try:
            return self.ask("GET", path)
        except ClusterRefused as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def has(self, api_version: str, resource: str) -> bool:
        """Whether the server has a kind. Every account may ask that, while a request for a kind that is not there, or
        that is others', is forbidden (403)."""
        if api_version not in self._kinds:
            root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            named = (self.read(root) or {}).get("resources") or []
            self._kinds[api_version] = frozenset(str(each.get("name")) for each in named)
        return resource in self._kinds[api_version]

    def may(self, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """Whether this account may do that in the namespace. Every account may ask."""
        wanted = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**wanted, **({"subresource": subresource} if subresource else {})}},
        }
        return bool((self.ask("POST", REVIEWS, body).get("status") or {}).get("allowed"))

    def listed(self, api_version: str, resource: str, selector: str = "", *, fields: str = "") -> list[Body]:
        """Return the objects with these labels and fields; none if the cluster has no such kind."""
        wanted = {"labelSelector": selector, "fieldSelector": fields}
        query = urlencode({name: value for name, value in wanted.items() if value})
        found = self.read(f"{self.path(api_version, resource)}{'?' if query else ''}{query}")
        items = (found or {}).get("items")
        return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []

    def delete(self, path: str) -> bool:
        """Delete an object and its dependents. Return whether it existed."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            self.ask("DELETE", path, options)
        except ClusterRefused as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def lines(self, path: str, *, follow: bool) -> Iterator[str]:
        """Yield lines of a log. With ``follow`` there is no time limit for the next line."""
        with self._translated_errors():
            yield from self._io.lines(self._configuration, path, timeout=(TIMEOUT[0], None if follow else TIMEOUT[1]))

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except self._io.Refused as error:
            raise ClusterRefused(error.code, refusal(error.code, error.body, REMEDIES)) from None
        except self._io.Unanswered as error:
            raise ClusterUnanswered(f"no answer from the API server: {error}") from None
        except self._io.Unreadable as error:
            raise ClusterUnanswered(str(error)) from None


def found(kubeconfig: Path | None, environ: Mapping[str, str], namespace: str = "") -> Cluster:
    """Return the cluster of ``kubeconfig``, or else of ``$KUBECONFIG``. Raises :class:`UsageError` without one."""
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise UsageError(f"namespace {namespace!r}: small letters, digits and '-', 63 at most")
    with client_needed(MISSING):
        from hvd_elastic_ext.io.kube.access import Access
    return Cluster(Access.found(kubeconfig, environ), namespace)


def plural(kind: str) -> str:
    """Return the name of a kind in paths."""
    return PLURALS.get(kind, f"{kind.lower()}s")

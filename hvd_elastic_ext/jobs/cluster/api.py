"""Requests about jobs to one namespace of a cluster, and what long commands do while its API server is away.

The first request loads the official client. Once a command has had an answer, it waits for a server that does not
answer any more: it tries again, with growing pauses, and says so once.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.io.kube.errors import ApiError, Reason, client_needed
from hvd_elastic_ext.io.kube.paths import is_label, path_of, version_path

if TYPE_CHECKING:
    from hvd_elastic_ext.io.kube.access import Access


Body = dict[str, Any]

REMEDIES: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "your token is invalid, or has expired",
    HTTPStatus.FORBIDDEN: "ask for the right; docs/submit.md lists all that are needed",
}
AUTHORIZATION: Final = "authorization.k8s.io/v1"
PLURALS: Final[Mapping[str, str]] = {"NetworkPolicy": "networkpolicies"}
MISSING: Final = "what this command asks a cluster for"


class WrongState(UsageError):
    """A job or pod is not in the state that the command needs. The exit code is 1, as with kubectl."""

    exit_code = 1


class Cluster:
    """One namespace, with the credentials of a user. Every request may raise :class:`ApiError`."""

    def __init__(self, access: Access, namespace: str = "") -> None:
        from hvd_elastic_ext.io.kube.client import Client

        self.client = Client(access, remedies=REMEDIES)
        self.namespace = namespace or self.client.namespace
        self.client.session()  # credentials that cannot be read are said at once
        self._kinds: dict[str, frozenset[str]] = {}

    def within(self, namespace: str) -> Cluster:
        """Return the same cluster with another namespace; "" means all namespaces."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Body:
        """Send one request to a path that does not depend on the namespace."""
        return self.client.request(method, path, body, query=query)

    def path(self, api_version: str, plural: str, name: str = "", subresource: str = "") -> str:
        """Return the path of an object in the namespace; without ``name`` that of all objects of its kind."""
        return path_of(api_version, plural, self.namespace, name, subresource)

    def path_of(self, body: Mapping[str, Any], *, named: bool = True) -> str:
        """Return the path of an object, or, without ``named``, of its kind."""
        return self.path(body["apiVersion"], plural(body["kind"]), body["metadata"]["name"] if named else "")

    def create(self, body: Mapping[str, Any], *, dry: bool = False) -> Body:
        """Create an object; the server refuses unknown fields. ``dry``: the server checks everything and creates
        nothing."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry else {})}
        return self.ask("POST", self.path_of(body, named=False), body, **query)

    def read(self, path: str, **query: str) -> Body | None:
        """Return an object; None if it, or its kind, does not exist."""
        try:
            return self.ask("GET", path, None, **query)
        except ApiError as error:
            if error.reason is Reason.NOT_FOUND:
                return None
            raise

    def has(self, api_version: str, resource: str) -> bool:
        """Whether the server has a kind. Every account may ask that, while a request for a kind that is not there, or
        that is others', is forbidden (403)."""
        if api_version not in self._kinds:
            named = (self.read(version_path(api_version)) or {}).get("resources") or []
            self._kinds[api_version] = frozenset(str(each.get("name")) for each in named)
        return resource in self._kinds[api_version]

    def may(self, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """Whether this account may do that in the namespace. Every account may ask."""
        wanted = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        body = {
            "apiVersion": AUTHORIZATION,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**wanted, **({"subresource": subresource} if subresource else {})}},
        }
        review = self.ask("POST", path_of(AUTHORIZATION, "selfsubjectaccessreviews"), body)
        return bool((review.get("status") or {}).get("allowed"))

    def listed(self, api_version: str, resource: str, selector: str = "", *, fields: str = "") -> list[Body]:
        """Return the objects with these labels and fields; none if the cluster has no such kind."""
        wanted = {"labelSelector": selector, "fieldSelector": fields}
        query = {name: value for name, value in wanted.items() if value}
        answer = self.read(self.path(api_version, resource), **query)
        items = (answer or {}).get("items")
        return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []

    def delete(self, path: str) -> bool:
        """Delete an object and its dependents. Return whether it existed."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            self.ask("DELETE", path, options)
        except ApiError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return False
        return True


def found(kubeconfig: Path | None, environ: Mapping[str, str], namespace: str = "") -> Cluster:
    """Return the cluster of ``kubeconfig``, or else of ``$KUBECONFIG``. Raises :class:`UsageError` without one."""
    if namespace and not is_label(namespace):
        raise UsageError(f"namespace {namespace!r}: small letters, digits and '-', 63 at most")
    with client_needed(MISSING):
        from hvd_elastic_ext.io.kube.access import Access
    return Cluster(Access.found(kubeconfig, environ), namespace)


def plural(kind: str) -> str:
    """Return the name of a kind in paths."""
    return PLURALS.get(kind, f"{kind.lower()}s")


# --- a server that is away


LOG: Final = logging.getLogger(__name__)

AWAY_S: Final = 600.0
"""How long a server may be away: an upgrade of a control plane takes minutes."""
REFUSED_S: Final = 15.0
"""How long a server may refuse what it allowed before: one that has just started knows no roles for about a second."""
FIRST_S, LONGEST_S = 0.5, 10.0

Sleep = Callable[[float], None]
Say = Callable[[str], object]
T = TypeVar("T")


def limit_of(error: ElasticError) -> float:
    """Return for how many seconds requests that fail like this are repeated; 0 if trying again cannot help. Pure."""
    if not isinstance(error, ApiError):
        return 0.0
    if error.reason in (Reason.UNAUTHORIZED, Reason.FORBIDDEN):
        return REFUSED_S
    return AWAY_S if error.transient else 0.0


def next_pause(now: float, *, since: float, failures: int, limit: float) -> float | None:
    """Return the seconds until the next try, after ``failures`` in a row since ``since``; None if it was tried long
    enough. Pure."""
    left = since + limit - now
    return min(left, pause_after(failures, first=FIRST_S, longest=LONGEST_S)) if left > 0 else None


class Patience:
    """Repeats the requests of one command, from any thread, once one of them was answered: before that, an error may
    as well be a wrong address, or a missing right.

    ``say`` takes a line at the begin of an outage, one at its end, and what else a command that waits has to tell.
    """

    def __init__(
        self, *, say: Say = LOG.warning, sleep: Sleep = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.say, self._sleep, self._clock = say, sleep, clock
        self._lock = threading.Lock()
        self._answered = False
        self._failures = 0
        self._limit = 0.0
        self._since = 0.0

    def of(self, ask: Callable[[], T]) -> T:
        """Return the answer to a request. Raises its error if that stays."""
        while True:
            try:
                answer = ask()
            except UsageError:  # an answer, too
                self.answered()
                raise
            except ElasticError as error:
                if not self.again(error):
                    raise
            else:
                self.answered()
                return answer

    def answered(self) -> None:
        """Note an answer."""
        with self._lock:
            away, self._failures, self._limit = self._failures, 0, 0.0
            self._answered = True
        if away:
            self.say("the API server answers again")

    def again(self, error: ElasticError, *, until: float | None = None) -> bool:
        """Sleep, and return True if the request is to be repeated then. ``until``: not after this time."""
        with self._lock:
            now, limit = self._clock(), limit_of(error)
            if not self._answered or not limit:
                return False
            first = not self._failures
            if limit != self._limit:
                self._since, self._limit = now, limit
            self._failures += 1
            pause = next_pause(now, since=self._since, failures=self._failures, limit=limit)
        if pause is not None and until is not None:
            pause = min(pause, until - now)
        if pause is None or pause <= 0:
            return False
        if first:
            self.say(f"{error}; trying again for up to {limit:g} s")
        self._sleep(pause)
        return True

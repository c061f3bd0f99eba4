"""Parses a request: which verb, for which resource or object. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.kube import statuses
from tests.support.kube.resources import BY_PATH, Key, Resource


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...] = ()


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class Call:
    """One request for a resource. ``verb``: as in RBAC, one of get, list, watch, create, update, patch, delete and
    deletecollection. ``namespace``: empty for all namespaces.
    """

    verb: str
    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    body: bytes = b""
    media: str = ""
    user: User = ANONYMOUS

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    def option(self, name: str) -> str:
        return self.query.get(name, "")

    def flag(self, name: str) -> bool:
        return self.option(name) in ("1", "t", "T", "true", "True", "TRUE")

    def number(self, name: str) -> int | None:
        """Return an option as a number, None without it. Raises ApiError 400 if it is not a number."""
        text = self.option(name)
        try:
            return int(text) if text else None
        except ValueError:
            message = f'strconv.ParseInt: parsing "{text}": invalid syntax'
            raise statuses.bad_request(message) from None

    def json(self) -> Any:
        """Return the body, parsed. Raises ApiError 400, and 415 if its media type is not JSON."""
        if self.media and not self.media.endswith("json"):
            raise statuses.unsupported_media(["application/json"])
        try:
            return json.loads(self.body)
        except ValueError as error:
            what = f"the object provided is unrecognized (must be of type {self.resource.kind})"
            raise statuses.bad_request(f"{what}: couldn't get version/kind; json parse error: {error}") from error


def parse(method: str, target: str, *, body: bytes = b"", media: str = "", user: User = ANONYMOUS) -> Call:
    """Parse a request. Raises ApiError 404 if the path is not that of a resource, 405 for an unknown method."""
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    parts = [unquote(each) for each in url.path.strip("/").split("/")]
    match parts:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest] if group:
            pass
        case _:
            raise statuses.no_such_path()
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and (group, version, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    name, subresource = rest[1] if len(rest) > 1 else "", "/".join(rest[2:])
    resource = BY_PATH.get((group, version, rest[0] if rest else ""))
    if resource is None or (namespace and not resource.namespaced) or (name and resource.namespaced and not namespace):
        raise statuses.no_such_path()
    if subresource and subresource not in resource.subresources:
        raise statuses.no_such_path()
    watching = query.get("watch") in ("1", "t", "T", "true", "True", "TRUE")
    return Call(
        verb=_verb(method, named=bool(name), watching=watching),
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=query,
        body=body,
        media=media.partition(";")[0].strip(),
        user=user,
    )


def unknown(method: str, target: str, *, user: User) -> Call | None:
    """Return the request for a kind that the server does not have; None if the path is not that of a resource."""
    match [unquote(each) for each in urlsplit(target).path.strip("/").split("/")]:
        case ["apis", group, version, "namespaces", namespace, plural, *rest] if group:
            pass
        case ["apis", group, version, plural, *rest] if group:
            namespace = ""
        case _:
            return None
    kind = Resource(group, version, plural, plural)
    name, subresource = rest[0] if rest else "", "/".join(rest[1:])
    verb = _verb(method, named=bool(name), watching="watch=" in urlsplit(target).query)
    return Call(verb, kind, namespace, name, subresource, {}, user=user)


def _verb(method: str, *, named: bool, watching: bool) -> str:
    match method:
        case "GET" | "HEAD":
            return "get" if named else "watch" if watching else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "PATCH":
            return "patch"
        case "DELETE":
            return "delete" if named else "deletecollection"
    raise statuses.method_not_allowed()

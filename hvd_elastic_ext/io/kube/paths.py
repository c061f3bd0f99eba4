"""Paths of an API server. Pure.

A name is checked and escaped here, so that no name of a job, pod or namespace asks for anything but that object: in a
path, ".." would mean all objects above.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from hvd_elastic_ext.io.kube.errors import ApiError, Reason

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_GROUP: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)


def path_of(api_version: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the path of an object, or that of all objects of its kind if ``name`` is "".

    ``api_version``: ``v1``, or a group and its version, such as ``apps/v1``. ``namespace``: "" for the whole cluster.
    ``subresource``: such as ``scale``. Raises :class:`ApiError` for what cannot be the name of a kind, namespace or
    object.
    """
    group, _, version = api_version.rpartition("/")
    if subresource and not name:
        raise ApiError(Reason.REFUSED, f"{plural}/{subresource} needs the name of an object")
    for what, pattern in ((group, _GROUP), (version, _LABEL), (plural, _LABEL), (subresource, _LABEL)):
        if what and not pattern.fullmatch(what):
            raise ApiError(Reason.REFUSED, f"{what!r} is not the name of a kind of objects")
    if namespace and not is_label(namespace):
        raise ApiError(Reason.REFUSED, f"namespace {namespace!r}: small letters, digits and '-', 63 at most")
    if name in (".", ".."):
        raise ApiError(Reason.REFUSED, f"{name!r} is not the name of an object")
    scope = ("namespaces", namespace) if namespace else ()
    return "/".join((version_path(api_version), *scope, *filter(None, (plural, quote(name, safe=""), subresource))))


def version_path(api_version: str) -> str:
    """Return the path at which the server lists the kinds of a version."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def is_label(text: str) -> bool:
    """Whether this can be the name of a namespace, or another one without dots."""
    return _LABEL.fullmatch(text) is not None

"""The port through which an API server is changed: one small request at a time, its answer whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from discover.kube.transport import Failure, RequestFailed

JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"

NOT_ALLOWED: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409


NOT_YET: Final = 2.0
"""Seconds until who was allowed before and lacks a right now asks once more, before the right counts as missing: a
server that has just started knows no roles for about a second."""


class Sender(Protocol):
    """Used by one thread at a time, but for :meth:`interrupt`."""

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, media: str = JSON
    ) -> Mapping[str, Any]:
        """Send one request and return the answer's object; ``path`` as :func:`path_of` writes it.

        Waits some seconds at most. Raises :class:`RequestFailed`; whether the request took effect is then unknown
        unless the server answered.
        """

    def interrupt(self) -> None:
        """Break off what is under way, from any thread; whatever is sent from now on fails."""

    def close(self) -> None:
        """Give up all connections. May be repeated."""


def path_of(version: str, namespace: str, plural: str, name: str = "") -> str:
    """The path of an object, or of all of a namespace. ``version``: ``v1``, or a group and its version."""
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return "/".join(filter(None, (f"{root}/namespaces/{namespace}", plural, name)))


def said(error: RequestFailed, code: int) -> bool:
    """Whether the server answered, and with ``code``."""
    return error.failure is Failure.ANSWERED and error.code == code


def lacks_right(error: RequestFailed) -> bool:
    """Whether a right is missing. Quotas, webhooks and namespaces that end say 403, too, and manifests help with none
    of those; only authorization says what a user "cannot" do."""
    return said(error, NOT_ALLOWED) and " cannot " in str(error) and " resource " in str(error)

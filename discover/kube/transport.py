"""The interfaces to an API server, one for reading a collection and one for writing, and how requests fail."""

from __future__ import annotations

from collections.abc import Container, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol
from urllib.parse import quote

from hvd_elastic_ext.core.errors import Transient

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409

RECHECK_RIGHT: Final = 2.0
"""Seconds after which a right that was there before and is missing now is tried once more before it counts as missing:
an API server that has just started knows no roles for about a second."""


class RequestKind(Enum):
    """PAGED: a consistent list, in pages. UNPAGED: the same in one piece. RELIST: a list no older than a known version,
    in one piece, which the server answers from memory. WATCH: the changes since a version."""

    PAGED = "list"
    UNPAGED = "whole list"
    RELIST = "relist"
    WATCH = "watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """``version``: where RELIST and WATCH begin. ``more``: the server's token for the next page of a list. ``ends``:
    seconds after which the server is to end a WATCH."""

    ask: RequestKind
    version: str = ""
    more: str = ""
    ends: int = 0


class Ending(Enum):
    """How a request ended. What is done about each: :mod:`discover.kube.watch_policy`.

    DONE: as it should: a complete list, or a watch that the server closed in time. EXPIRED: the server no longer knows
    the version (or the page). AHEAD: the server does not know the version yet. DENIED: 401. FORBIDDEN: 403. BUSY: 429
    or 503. SERVER_ERROR: 5xx, or an unreadable answer: a retry may do. OTHER: any other refusal. MISSED: a comparison
    showed that the watch missed changes. SILENT: connected, and no byte for longer than a live server is quiet. CUT:
    the connection broke. UNREACHABLE: no connection. NO_CREDENTIALS: our credentials cannot be read.
    """

    DONE = "done"
    EXPIRED = "expired"
    AHEAD = "too large resource version"
    DENIED = "unauthorized"
    FORBIDDEN = "forbidden"
    BUSY = "busy"
    SERVER_ERROR = "broken"
    OTHER = "refused"
    MISSED = "deaf"
    SILENT = "silent"
    CUT = "cut"
    UNREACHABLE = "unreachable"
    NO_CREDENTIALS = "no credentials"


class RequestFailed(Transient):
    """A request failed; ``str()`` says why in one line, without secrets.

    ``code`` is the server's, 0 if it did not answer; ``retry_after``: the seconds that it asks to wait.
    """

    def __init__(self, ending: Ending, why: str, *, code: int = 0, retry_after: float | None = None) -> None:
        self.ending = ending
        self.code = code
        self.retry_after = retry_after
        super().__init__(" ".join(why.split())[:500] or ending.value)

    @property
    def lacks_right(self) -> bool:
        """Whether RBAC refused. Quotas, webhooks and namespaces that end answer 403, too, and no manifest helps with
        those; only authorization says what a user "cannot" do."""
        return self.code == FORBIDDEN and " cannot " in str(self) and " resource " in str(self)


_CODES: Final = {401: Ending.DENIED, 403: Ending.FORBIDDEN, 410: Ending.EXPIRED, 429: Ending.BUSY, 503: Ending.BUSY}

_REASONS: Final = {
    "Expired": Ending.EXPIRED,
    "Gone": Ending.EXPIRED,
    "Unauthorized": Ending.DENIED,
    "Forbidden": Ending.FORBIDDEN,
    "TooManyRequests": Ending.BUSY,
    "ServiceUnavailable": Ending.BUSY,
    "InternalError": Ending.SERVER_ERROR,
}


def refusal(
    why: str, *, code: int = 0, reason: str = "", causes: Container[str] = (), retry_after: float | None = None
) -> RequestFailed:
    """The fields of the server's Status. Code and reason may be missing (rule R6)."""
    if "ResourceVersionTooLarge" in causes or (code == 504 and "Too large resource version" in why):
        ending = Ending.AHEAD
    else:
        by_code = _CODES.get(code) or (Ending.SERVER_ERROR if 500 <= code <= 599 else None)
        ending = by_code or _REASONS.get(reason) or Ending.OTHER
    return RequestFailed(ending, why, code=code, retry_after=retry_after)


class Collection(Protocol):
    """All objects of one kind that are followed, say the pods of one job. Used by one thread at a time."""

    @property
    def where(self) -> str:
        """What and where, for people: "pods of namespace a at https://10.0.0.1"."""

    def open(self, request: Request) -> Generator[bytes, None, None]:
        """Send ``request`` and, once it is answered, return the body, which comes in pieces as they arrive.

        Close the generator if you leave it early. Raises :class:`RequestFailed`, here and between pieces.
        """

    def reload_credentials(self) -> None:
        """Read credentials and configuration again before the next request."""

    def interrupt(self) -> None:
        """Break off the current request, from any thread: its reader gets :class:`RequestFailed`."""

    def close(self) -> None:
        """Close all connections."""


class Sender(Protocol):
    """Writes objects, one small request at a time. Used by one thread at a time, except for :meth:`interrupt`."""

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, media: str = JSON
    ) -> Mapping[str, Any]:
        """Send one request and return the answer's object; ``path`` is one of :func:`object_path`.

        Waits some seconds at most. Raises :class:`RequestFailed`; unless the server answered, the request may have
        taken effect.
        """

    def interrupt(self) -> None:
        """Break off the current request, from any thread; later ones fail."""

    def close(self) -> None:
        """Close all connections. May be repeated."""


def object_path(version: str, namespace: str, plural: str, name: str = "") -> str:
    """Return the path of an object, or of all in a namespace, or (``namespace`` "") of the cluster.

    ``version``: ``v1``, or a group and its version.
    """
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"namespaces/{quote(namespace, safe='')}" if namespace else ""
    return "/".join(filter(None, (root, scope, plural, quote(name, safe=""))))


def failure_from_status(status: Mapping[str, Any], *, code: int = 0, retry_after: float | None = None) -> RequestFailed:
    """Read a Status object, whose fields may all be missing (rule R6). ``code``: that of HTTP, if there is one."""
    details = status.get("details")
    details = details if isinstance(details, Mapping) else {}
    causes = details.get("causes")
    reasons = (
        [str(each.get("reason")) for each in causes if isinstance(each, Mapping)] if isinstance(causes, list) else []
    )
    own = status.get("code")
    wait = details.get("retryAfterSeconds")
    code = own if isinstance(own, int) and not code else code
    reason = str(status.get("reason") or "")
    shown = " ".join(filter(None, [str(code or ""), reason])) or "no"
    return refusal(
        f"the server says {shown}: {status.get('message') or 'it gives no reason'}",
        code=code,
        reason=reason,
        causes=reasons,
        retry_after=wait if retry_after is None and isinstance(wait, (int, float)) and wait > 0 else retry_after,
    )

"""How requests to an API server fail, and the paths that they name."""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import Enum
from typing import Any, Final
from urllib.parse import quote

from hvd_elastic_ext.core.errors import Transient

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409


class Ending(Enum):
    """How a request ended. :mod:`discover.kube.watch_policy` has the next request for each.

    DONE: normally, with a complete list or a watch that the server closed in time. EXPIRED: the server no longer knows
    the version or the page. AHEAD: the server does not know the version yet. DENIED: 401. FORBIDDEN: 403. BUSY: 429 or
    503. SERVER_ERROR: another 5xx, or an answer that cannot be parsed; a retry may succeed. OTHER: any other refusal.
    MISSED: a comparison has shown that the watch missed changes. SILENT: connected, but no byte has arrived for longer
    than a server that works would need. CUT: the connection broke. UNREACHABLE: no connection. NO_CREDENTIALS: our
    credentials cannot be read.
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
    """A request has failed. ``str()`` gives the reason in one line, without secrets.

    ``code``: the server's status, 0 if it did not answer. ``retry_after``: the seconds that it asks to wait.
    """

    def __init__(self, ending: Ending, why: str, *, code: int = 0, retry_after: float | None = None) -> None:
        self.ending = ending
        self.code = code
        self.retry_after = retry_after
        super().__init__(" ".join(why.split())[:500] or ending.value)

    @property
    def lacks_right(self) -> bool:
        """Whether RBAC has refused the request. Quotas, webhooks and namespaces that end also answer 403, but then no
        manifest helps. Only RBAC's message says what a user "cannot" do.
        """
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
    """Return the failure for the fields of a server's Status. Code and reason may be missing (rule R6).

    ``causes``: the reasons in its details. ``retry_after``: the seconds that the server asks to wait.
    """
    if "ResourceVersionTooLarge" in causes or (code == 504 and "Too large resource version" in why):
        ending = Ending.AHEAD
    else:
        by_code = _CODES.get(code) or (Ending.SERVER_ERROR if 500 <= code <= 599 else None)
        ending = by_code or _REASONS.get(reason) or Ending.OTHER
    return RequestFailed(ending, why, code=code, retry_after=retry_after)


def object_path(version: str, namespace: str, plural: str, name: str = "") -> str:
    """Return the path of an object, or of all objects if ``name`` is "".

    ``version``: ``v1``, or a group and its version. ``namespace``: "" for the whole cluster.
    """
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"namespaces/{quote(namespace, safe='')}" if namespace else ""
    return "/".join(filter(None, (root, scope, plural, quote(name, safe=""))))


def failure_from_status(status: Mapping[str, Any], *, code: int = 0, retry_after: float | None = None) -> RequestFailed:
    """Return the failure that a Status object describes. Each of its fields may be missing (rule R6).

    ``code``: the HTTP status, 0 if there is none. ``retry_after``: seconds from the HTTP header, None without one.
    """
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

"""Why a request to an API server failed: one error for all that send any, without the official client.

The reason says what a caller may do. A server's own reason and code may be missing (rule R6), and a message may have
megabytes, so an error is made of an answer here, in one line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from hvd_elastic_ext.core.errors import ElasticError, UsageError

MAX_TEXT: Final = 500
"""Most characters of a server's own text in a message."""
MAX_LINE: Final = 900
"""Most characters of a message."""

NO_REMEDIES: Final[Mapping[int, str]] = MappingProxyType({})


class Reason(Enum):
    """Why a request failed. The first ones are answers, in the words of Kubernetes.

    EXPIRED: the server no longer knows the version or the page. AHEAD: it does not know the version yet. UNAUTHORIZED:
    401. FORBIDDEN: 403. NOT_FOUND: 404. CONFLICT: 409, or the object's state does not allow the request. BUSY: 429 or
    503. SERVER_ERROR: another 5xx, or an answer that cannot be read. REFUSED: any other refusal. SILENT: connected, but
    no byte came for longer than a server that works would need. CUT: the connection broke. UNREACHABLE: no connection.
    NO_CREDENTIALS: our credentials cannot be read: a writer may be about to replace them.
    """

    EXPIRED = "expired"
    AHEAD = "too large resource version"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not found"
    CONFLICT = "conflict"
    BUSY = "busy"
    SERVER_ERROR = "broken"
    REFUSED = "refused"
    SILENT = "silent"
    CUT = "cut"
    UNREACHABLE = "unreachable"
    NO_CREDENTIALS = "no credentials"


_TRANSIENT: Final = frozenset(
    {
        *(Reason.AHEAD, Reason.BUSY, Reason.SERVER_ERROR),
        *(Reason.SILENT, Reason.CUT, Reason.UNREACHABLE, Reason.NO_CREDENTIALS),
    }
)

_OF_CODE: Final = {
    HTTPStatus.UNAUTHORIZED: Reason.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: Reason.FORBIDDEN,
    HTTPStatus.NOT_FOUND: Reason.NOT_FOUND,
    HTTPStatus.CONFLICT: Reason.CONFLICT,
    HTTPStatus.GONE: Reason.EXPIRED,
    HTTPStatus.TOO_MANY_REQUESTS: Reason.BUSY,
    HTTPStatus.SERVICE_UNAVAILABLE: Reason.BUSY,
}

_OF_REASON: Final = {
    "Expired": Reason.EXPIRED,
    "Gone": Reason.EXPIRED,
    "Unauthorized": Reason.UNAUTHORIZED,
    "Forbidden": Reason.FORBIDDEN,
    "NotFound": Reason.NOT_FOUND,
    "AlreadyExists": Reason.CONFLICT,
    "Conflict": Reason.CONFLICT,
    "TooManyRequests": Reason.BUSY,
    "ServiceUnavailable": Reason.BUSY,
    "InternalError": Reason.SERVER_ERROR,
}


class ApiError(ElasticError):
    """A request to an API server failed. ``str()`` is one line, without secrets, with a remedy where one is known.

    ``reason``: see :class:`Reason`. ``status``: the HTTP status, 0 without an answer. ``retry_after``: the seconds that
    the server asks to wait, None if it does not.
    """

    def __init__(self, reason: Reason, why: str = "", *, status: int = 0, retry_after: float | None = None) -> None:
        self.reason = reason
        self.status = status
        self.retry_after = retry_after
        super().__init__(" ".join(why.split())[:MAX_LINE] or reason.value)

    @classmethod
    def of_status(
        cls,
        status: Mapping[str, Any],
        *,
        code: int = 0,
        retry_after: float | None = None,
        remedies: Mapping[int, str] = NO_REMEDIES,
    ) -> ApiError:
        """Return the error that a Status object describes; any of its fields may be missing.

        ``code``: the HTTP status, 0 if there is none. ``retry_after``: seconds from the HTTP header. ``remedies``: what
        to do, by HTTP status. It comes before the server's own text, because long lines are cut at the end.
        """
        own, details = status.get("code"), status.get("details")
        details = details if isinstance(details, Mapping) else {}
        code = own if isinstance(own, int) and not code else code
        named, text = str(status.get("reason") or ""), line_of(str(status.get("message") or ""))
        shown = " ".join(filter(None, [str(code or ""), named])) or "no"
        remedy = f"; {remedies[code]}" if code in remedies else ""
        wait = details.get("retryAfterSeconds")
        return cls(
            _reason(code, named, text, details.get("causes")),
            f"the API server says {shown}{remedy}{': ' if text else ''}{text}",
            status=code,
            retry_after=wait if retry_after is None and isinstance(wait, (int, float)) and wait > 0 else retry_after,
        )

    @classmethod
    def of_answer(
        cls, code: int, body: bytes, *, retry_after: str = "", remedies: Mapping[int, str] = NO_REMEDIES
    ) -> ApiError:
        """Return the error of an answer: its HTTP status, its body (a Status, or what a proxy sends), the header
        ``Retry-After``, and the remedies as in :meth:`of_status`."""
        status = object_of(body)
        if not status.get("message"):
            status = {**status, "message": body[: 4 * MAX_TEXT].decode("utf-8", "replace")}
        wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
        return cls.of_status(status, code=code, retry_after=wait, remedies=remedies)

    @property
    def answered(self) -> bool:
        """Whether the server refused it. Otherwise the request may have taken effect."""
        return self.status != 0

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later without anyone's help."""
        return self.reason in _TRANSIENT

    @property
    def lacks_right(self) -> bool:
        """Whether RBAC has refused the request. Quotas, webhooks and namespaces that end also answer 403, but then no
        manifest helps. Only RBAC's message says what a user "cannot" do.
        """
        return self.reason is Reason.FORBIDDEN and " cannot " in str(self) and " resource " in str(self)


def _reason(code: int, named: str, text: str, causes: object) -> Reason:
    said = [each.get("reason") for each in causes if isinstance(each, Mapping)] if isinstance(causes, list) else []
    if "ResourceVersionTooLarge" in said or (code == 504 and "Too large resource version" in text):
        return Reason.AHEAD
    of_code = _OF_CODE.get(code) or (Reason.SERVER_ERROR if 500 <= code <= 599 else None)  # type: ignore[call-overload]
    return of_code or _OF_REASON.get(named) or Reason.REFUSED


def object_of(data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``; an empty one if there is none. Pure."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def line_of(text: str) -> str:
    """Return a foreign text as a line of bounded length. Pure."""
    return " ".join(text.split())[:MAX_TEXT]


@contextlib.contextmanager
def client_needed(option: str) -> Iterator[None]:
    """Import the official client within this. Raises :class:`UsageError` where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("kubernetes", "urllib3", "websocket"):
            raise
        remedy = "pip install kubernetes websocket-client"
        raise UsageError(f"{option} needs the package 'kubernetes'; install it: {remedy}") from None

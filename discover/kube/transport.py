"""The port to an API server: one collection of objects, listed and watched as bytes; and how that fails."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from hvd_elastic_ext.core.errors import Transient


class RequestKind(Enum):
    """What a request is for.

    FRESH: a consistent list, in pages. WHOLE: the same in one piece. SINCE: a list no older than a version that is
    known, in one piece, which the server answers from memory. WATCH: the changes since a version.
    """

    PAGED = "list"
    UNPAGED = "whole list"
    RELIST = "relist"
    WATCH = "watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """``version`` is where SINCE and WATCH begin; ``more`` the server's word for a further page of FRESH (or of
    any list that it cut); ``ends`` after how many seconds the server is to end a WATCH; ``most`` how many objects of
    a page of FRESH are wanted, 0 for as many as is usual."""

    ask: RequestKind
    version: str = ""
    more: str = ""
    ends: int = 0
    most: int = 0


class Failure(Enum):
    """Ways in which no answer, or half of one, is had. What to do about each: :mod:`discover.kube.watch_policy`.

    ANSWERED: there was an answer, and it was no: see ``code``. REFUSED: nobody listens there. UNREACHABLE: no
    connection, for another reason (name, route, TLS). SILENT: connected, and not a byte for longer than a live
    server is quiet. CUT: the connection broke. GARBAGE: bytes came that are no answer. UNARMED: our own
    credentials cannot be read just now.
    """

    ANSWERED = 1
    REFUSED = 2
    UNREACHABLE = 3
    SILENT = 4
    CUT = 5
    UNREADABLE = 6
    NO_CREDENTIALS = 7


class RequestFailed(Transient):
    """A request came to nothing; ``str()`` says why in one line, without secrets.

    ``code``, ``reason`` and ``causes`` are those of the server's Status, where it sent one (0 and empty where not);
    ``retry_after`` is how many seconds it asks to be left alone.
    """

    def __init__(
        self,
        failure: Failure,
        why: str,
        *,
        code: int = 0,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        self.failure = failure
        self.code = code
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after
        super().__init__(" ".join(why.split())[:500] or failure.name.lower())


class Collection(Protocol):
    """All objects of one kind that are looked at, say the pods of one job. Used by one thread at a time."""

    @property
    def where(self) -> str:
        """What and where, for people: "pods of namespace a at https://10.0.0.1"."""

    def open(self, request: Request) -> Generator[bytes, None, None]:
        """Send ``request`` and, once it is answered, return the body, which comes in pieces as they arrive.

        Close the generator if you leave it early. Raises :class:`RequestFailed`, here and between pieces.
        """

    def reload_credentials(self) -> None:
        """Read credentials and configuration anew before the next request."""

    def interrupt(self) -> None:
        """Break off what is under way, from any thread: whoever waits for bytes gets :class:`RequestFailed`."""

    def close(self) -> None:
        """Give up all connections."""


def failure_from_status(status: Mapping[str, Any], *, code: int = 0, retry_after: float | None = None) -> RequestFailed:
    """Read a Status object, all of whose fields may be missing (rule R6); ``code`` is that of HTTP, if there is one."""
    details = status.get("details")
    details = details if isinstance(details, Mapping) else {}
    causes = details.get("causes")
    reasons = [each.get("reason") for each in causes if isinstance(each, Mapping)] if isinstance(causes, list) else []
    own = status.get("code")
    wait = details.get("retryAfterSeconds")
    code = own if isinstance(own, int) and not code else code
    reason = str(status.get("reason") or "")
    said = " ".join(filter(None, [str(code or ""), reason])) or "no"
    return RequestFailed(
        Failure.ANSWERED,
        f"the server says {said}: {status.get('message') or 'it gives no reason'}",
        code=code,
        reason=reason,
        causes=tuple(str(each) for each in reasons if each),
        retry_after=wait if retry_after is None and isinstance(wait, (int, float)) and wait > 0 else retry_after,
    )

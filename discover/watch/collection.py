"""How the daemon reads a collection of an API server, and how it writes objects. Does not load the official client."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from hvd_elastic_ext.io.kube.errors import ApiError, Reason

if TYPE_CHECKING:
    from hvd_elastic_ext.io.kube.client import Client


class RequestKind(Enum):
    """PAGED: a consistent list, in pages. UNPAGED: the same in one piece. RELIST: a list that is no older than a known
    version, in one piece; the server answers it from memory. WATCH: the changes since a version.
    """

    PAGED = "list"
    UNPAGED = "whole list"
    RELIST = "relist"
    WATCH = "watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request."""

    ask: RequestKind
    version: str = ""
    """Where RELIST and WATCH begin."""
    more: str = ""
    """The server's token for the next page of a list."""
    ends: int = 0
    """Seconds after which the server should end a WATCH."""


class Collection(Protocol):
    """All objects of one kind that are followed, for example the pods of one job. For one thread at a time."""

    @property
    def where(self) -> str:
        """What is followed and on which server, for people: "pods of namespace a at https://10.0.0.1"."""

    def open(self, request: Request) -> Generator[bytes, None, None]:
        """Send ``request``, wait for the answer to begin, and return its body in pieces, as they arrive.

        Close the generator if you do not read it to the end. Raises :class:`ApiError`, here and between pieces.
        """

    def reload_credentials(self) -> None:
        """Read credentials and configuration again before the next request."""

    def interrupt(self) -> None:
        """Abort the current request, from any thread. Its reader gets :class:`ApiError`."""

    def close(self) -> None:
        """Close all connections."""


class Sender:
    """Writes objects, one small request at a time. For one thread at a time, except for :meth:`interrupt`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._interrupted = False
        self.close = client.close

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send one request and return the answer's object. ``path``: from
        :func:`hvd_elastic_ext.io.kube.paths.path_of`. The ``body`` of a PATCH is a merge patch.

        Waits a few seconds at most. Raises :class:`ApiError`. If the server did not answer, the request may have
        taken effect.
        """
        if self._interrupted:
            raise ApiError(Reason.CUT, "broken off")
        return self._client.request(method, path, body)

    def interrupt(self) -> None:
        """Abort the current request, from any thread. Later ones fail and are not sent."""
        self._interrupted = True
        self._client.interrupt()

"""The part of HTTP/1.1 that Horovod's clients use: one request per connection, and its answer. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_HEAD: Final = 8 << 10
"""Bytes of the request line and the header fields."""
MAX_BODY: Final = 1 << 20
METHODS: Final = ("GET", "PUT", "DELETE")

_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    507: "Insufficient Storage",
}


class BadRequest(ValueError):
    """An invalid request; ``status``: the HTTP status of the answer."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Request(NamedTuple):
    """One request. ``path`` is as in its first line, escapes and query included."""

    method: str
    path: str
    body: bytes = b""


class Reader:
    """Assembles one request from the pieces that arrive."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: Request | None = None
        self._missing = 0

    def feed(self, data: bytes) -> Request | None:
        """The request, once it is whole. What follows it is ignored. Raises :class:`BadRequest`."""
        self._data += data
        if self._head is None:
            end = self._data.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(self._data) >= MAX_HEAD:
                    raise BadRequest(431, f"its head is longer than {MAX_HEAD} bytes")
                return None
            self._head, self._missing = _head(bytes(self._data[:end]))
            del self._data[: end + 4]
        if len(self._data) < self._missing:
            return None
        return self._head._replace(body=bytes(self._data[: self._missing]))


def _head(data: bytes) -> tuple[Request, int]:
    """The request without its body, and how long that is."""
    first, *lines = data.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not _is_path(words[1]):
        raise BadRequest(400, "its first line is not as HTTP has it")
    if words[0] not in METHODS:
        raise BadRequest(405, "its method is not one of GET, PUT and DELETE")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "transfer-encoding" in fields:
        raise BadRequest(501, "its body comes in an encoding")
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequest(400, "the length of its body is not a number")
    if len(length) > 10 or int(length) > MAX_BODY:
        raise BadRequest(413, f"its body is longer than {MAX_BODY} bytes")
    return Request(words[0], words[1]), int(length)


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isascii() and text.isprintable()


def response(status: int, body: bytes = b"", kind: str = "") -> bytes:
    """An answer, after which the connection ends. ``kind``: the type of its body."""
    phrase = _PHRASES.get(status, "Other")
    typed = f"Content-Type: {kind}\r\n" if kind else ""
    head = f"HTTP/1.1 {status} {phrase}\r\n{typed}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode("ascii") + body

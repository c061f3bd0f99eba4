"""One connection: answers HTTP/1.1 requests one after another, and applies faults to the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from tests.support.kube import faults, request_counts, resources, statuses, web
from tests.support.kube.requests import ANONYMOUS, Call, User, parse, unknown
from tests.support.kube.store import dumps

if TYPE_CHECKING:
    from tests.support.kube.server import KubeServer

LOOK_S = 0.05

_VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.1", "platform": "linux/amd64"}
_HEALTH = ("/healthz", "/livez", "/readyz")


class _Lines:
    """The input of a connection. ``last``: the last line that was read."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._source.readline(limit)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "kube-apiserver", ""
    server: KubeServer  # type: ignore[assignment]
    connection: socket.socket

    def __init__(self, connection: socket.socket, server: KubeServer) -> None:
        super().__init__(connection, ("127.0.0.1", 0), cast(Any, server))

    def setup(self) -> None:
        super().setup()
        self.rfile = cast(Any, _Lines(self.rfile))

    def parse_request(self) -> bool:
        whole = super().parse_request()
        if whole and cast(_Lines, self.rfile).last not in (b"\r\n", b"\n"):  # the connection broke within the headers
            self.close_connection = True
            return False
        return whole

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: :class:`request_counts.Counts` counts the requests."""

    def version_string(self) -> str:
        return self.server_version

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.server.clock.now())

    def _serve(self) -> None:
        with self.server.answering():
            self._answer_one()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve

    def _answer_one(self) -> None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:
                raise ConnectionResetError
            user = self._authenticated()
            if (known := self._unauthorized_paths(user)) is not None:
                self._whole(200, known)
                return
            media = self.headers.get("Content-Type", "")
            call = self._parsed(body, media, user)
            self._count(call)
            self._faulty(call)
        except statuses.ApiError as error:
            self._refuse(error)
        except OSError:
            self.close_connection = True

    def _authenticated(self) -> User:
        certificate = self._certificate()
        try:
            return self.server.access.authenticate(self.headers.get("Authorization", ""), certificate)
        except statuses.ApiError:
            path = urlsplit(self.path).path
            self.server.counts.asked(
                request_counts.Seen(request_counts.now(), self.command.lower(), "", {}, "", path, 401)
            )
            raise

    def _certificate(self) -> Any:
        if not isinstance(self.connection, ssl.SSLSocket):
            return None
        try:
            return self.connection.getpeercert()
        except ValueError:  # the TLS session is gone: the connection was reset while the request was read
            raise ConnectionResetError from None

    def _parsed(self, body: bytes, media: str, user: User) -> Call:
        """Return the request. Raises ApiError 403 or 404: rights come first, also for kinds that are not there."""
        try:
            call = parse(self.command, self.path, body=body, media=media, user=user)
            if self.server.has(call.resource):
                return call
            refusal = statuses.no_such_path()
        except statuses.ApiError as error:
            if error.code != 404:
                raise
            refusal = error
        if (of_nobody := unknown(self.command, self.path, user=user)) is not None:
            self.server.access.authorize(of_nobody)
        raise refusal

    def _unauthorized_paths(self, user: User) -> bytes | None:
        """Answer what needs no right: of discovery, every user may read all, and nobody else."""
        path = urlsplit(self.path).path
        if path in _HEALTH:
            return b"ok"
        if path == "/version":
            return dumps(_VERSION)
        if self.command != "GET" or user == ANONYMOUS:
            return None
        found = resources.discovery(path, filter(self.server.has, resources.TABLE))
        return None if found is None else dumps(found)

    def _count(self, call: Call) -> None:
        path = urlsplit(self.path).path
        seen = request_counts.Seen(
            request_counts.now(), call.verb, call.resource.plural, call.query, call.user.name, path
        )
        self.server.counts.asked(seen)

    # Answers

    def _faulty(self, call: Call) -> None:
        match fault := self.server.faults.take(call):
            case faults.Answer(status, headers, raw):
                self._plan(status, headers, raw)
            case faults.Hang(headers=False):
                self._wait_until_gone()
            case faults.Reset():
                self.abort()
            case _ if call.resource.plural == "selfsubjectaccessreviews":  # every user may ask for this
                self._whole(201, dumps(self.server.access.review(call)))
            case _:
                self.server.access.authorize(call)
                if call.subresource == "exec":
                    if self.server.execs.create_too:
                        self.server.access.authorize(dataclasses.replace(call, verb="create"))
                    self.server.execs.run(self, call, self.server.verbs.existing(call).body())
                elif call.subresource == "log":
                    self.server.logs.answer(self, call, self.server.verbs.existing(call).body())
                elif call.verb == "watch":
                    self._watch(call, fault)
                else:
                    self._answer(call, fault)

    def _plan(self, status: Any, headers: Any, raw: bytes | None) -> None:
        if raw is None:
            self._refuse(statuses.ApiError(dict(status)), headers)
        else:
            self._whole(int(status["code"]), raw, headers)

    def _answer(self, call: Call, fault: faults.Fault | None) -> None:
        code, body = self.server.verbs.answer(call)
        match fault:
            case faults.Hang():
                self._begin(code, {"Content-Type": "application/json", "Content-Length": str(len(body))})
                self._wait_until_gone()
            case faults.Cut():
                self._begin(code, {"Content-Type": "application/json", "Content-Length": str(len(body))})
                self.wfile.write(body[: len(body) // 2])
                self.abort()
            case faults.Slow(before, chunk, delay):
                self._pause(before)
                self._begin(code, {"Content-Type": "application/json", "Content-Length": str(len(body))})
                for start in range(0, len(body), chunk):
                    self.wfile.write(body[start : start + chunk])
                    self._pause(delay)
            case _:
                self._whole(code, body)

    def _watch(self, call: Call, fault: faults.Fault | None) -> None:
        with self.server.watching(call) as watch:
            line = Line(self)
            if isinstance(fault, faults.Slow):
                self._pause(fault.before)
                line.pace = fault
            self._begin(200, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
            match fault:
                case faults.Hang():
                    watch.silence()
                case faults.Close():
                    watch.close()
                case faults.Cut():
                    watch.cut_next()
                case faults.Say(lines):
                    for each in lines:
                        line.send(each)
            watch.run(line)
            if not self.close_connection:
                self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, error: statuses.ApiError, headers: Any = None) -> None:
        again = (error.body.get("details") or {}).get("retryAfterSeconds")
        extra = {"Retry-After": str(again)} if again else {}
        self._whole(error.code, dumps(error.body), {**extra, **(headers or {})})

    def _whole(self, code: int, body: bytes, headers: Any = None) -> None:
        kind = "text/plain; charset=utf-8" if body == b"ok" else "application/json"
        self._begin(code, {"Content-Type": kind, **(headers or {}), "Content-Length": str(len(body))}, body)

    def _begin(self, code: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.server.counts.answered(code)  # before the client gets the answer
        self.send_response(code)
        for name, value in {"Audit-Id": "0", "Cache-Control": "no-cache, private", **headers}.items():
            self.send_header(name, value)
        self.end_headers_with(body if self.command != "HEAD" else b"")

    def end_headers_with(self, body: bytes) -> None:
        """End the headers, and send them and ``body`` in one write, so that no client sees half of a small answer."""
        self._headers_buffer.append(b"\r\n" + body)  # type: ignore[attr-defined]
        self.flush_headers()

    # The connection

    def abort(self) -> None:
        """Reset the connection in the middle of the answer."""
        self.close_connection = True
        web.reset(self.connection)

    def _wait_until_gone(self) -> None:
        self.close_connection = True
        while not (self.server.stopping.wait(LOOK_S) or web.peer_gone(self.connection)):
            pass

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.server.stopping.wait(min(left, LOOK_S)):
            if web.peer_gone(self.connection):
                raise ConnectionAbortedError


class Line:
    """Sends the lines of a watch to its client, as chunks."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.pace: faults.Slow | None = None

    def send(self, *parts: bytes) -> None:
        data = b"".join([b"%x\r\n%b\r\n" % (len(each), each) for each in parts])
        if self.pace is None:
            self._handler.wfile.write(data)
            return
        for start in range(0, len(data), self.pace.chunk):
            self._handler.wfile.write(data[start : start + self.pace.chunk])
            self._handler._pause(self.pace.delay)

    def gone(self) -> bool:
        if self._handler.server.stopping.is_set() or web.peer_gone(self._handler.connection):
            self._handler.close_connection = True
            return True
        return False

    def abort(self) -> None:
        self._handler.abort()


def serve(connection: socket.socket, server: KubeServer) -> None:
    """Answer the requests of a connection until it ends."""
    with contextlib.suppress(OSError):
        Handler(connection, server)

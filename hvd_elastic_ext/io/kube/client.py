"""Requests to one API server. Loads the official client, for credentials and connections.

Its models, methods, ``Watch`` and informers are not used: they differ between its versions, lose versions, hang, or
loop (docs/kubernetes.md).
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import urllib3
from kubernetes import client
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from hvd_elastic_ext.core.clock import Clock, SystemClock
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.kube.access import SOCKET_OPTIONS, Access, Endpoint
from hvd_elastic_ext.io.kube.errors import NO_REMEDIES, ApiError, Reason

CHUNK: Final = 1 << 16
KEPT: Final = 8
"""Most connections of one client: more requests at a time wait."""
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

T = TypeVar("T")


class Timeout(NamedTuple):
    """Most seconds to connect, and without a byte of the answer; None: for any time."""

    connect: float
    read: float | None


TIMEOUT: Final = Timeout(5.0, 30.0)


@dataclass(frozen=True, slots=True)
class Session:
    """Credentials as they were read at a time (monotonic seconds), and connections that use them."""

    configuration: client.Configuration
    endpoint: Endpoint
    namespace: str
    connections: urllib3.PoolManager
    at: float


class Client:
    """An API server. For any thread. Every failure is an :class:`ApiError`.

    Credentials are read before the first request, again after ``keep_s`` seconds (None: never), and at once after a
    refusal. Connections are kept for later requests. ``remedies``: what to do, by HTTP status. ``server``: how messages
    name the server; "" is by its URL.
    """

    def __init__(
        self,
        access: Access,
        *,
        timeout: Timeout = TIMEOUT,
        keep_s: float | None = None,
        remedies: Mapping[int, str] = NO_REMEDIES,
        server: str = "the API server",
        clock: Clock | None = None,
    ) -> None:
        self._access = access
        self._timeout = timeout
        self._keep_s = keep_s
        self.remedies = remedies
        self._server = server
        self._clock = clock or SystemClock()
        self._reading = threading.Lock()
        self._session: Session | None = None
        self._sockets = _Sockets()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def namespace(self) -> str:
        """The namespace of the credentials."""
        return self.session().namespace

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send one request and return the object that is the answer. ``path``: of
        :func:`hvd_elastic_ext.io.kube.paths.path_of`. The ``body`` of a PATCH is a merge patch.
        """
        data = None if body is None else to_text(body).encode()
        media = MERGE_PATCH if method == "PATCH" else JSON
        headers = {"Accept": JSON, **({} if body is None else {"Content-Type": media})}

        def act(session: Session) -> bytes:
            return bytes(self._send(session, method, _target(path, query), headers, data).data)

        answer = self.authorized(act)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise ApiError(Reason.SERVER_ERROR, f"the answer of the API server cannot be read: {error}") from None
        return found if isinstance(found, dict) else {}

    def stream(
        self, path: str, *, query: Mapping[str, str] | None = None, read: float | None = None, live: bool = False
    ) -> Generator[bytes, None, None]:
        """Send a GET, wait for the answer to begin, and return its body in pieces. ``read``: another limit for the
        seconds without a byte. ``live``: the pieces come as they arrive, and are not large ones.

        Close the generator if you do not read it to the end. After a refusal credentials are not read again.
        """
        timeout = self._timeout if read is None else Timeout(self._timeout.connect, read)
        return self._streamed(self.session(), _target(path, query), {"Accept": JSON}, timeout, live)

    def lines(self, path: str, *, query: Mapping[str, str] | None = None, follow: bool = False) -> Iterator[str]:
        """Yield lines of a text, over a connection of its own; the last one may lack its line end. ``follow``: they
        come as they arrive, and for the next one there is no time limit.
        """
        timeout = Timeout(self._timeout.connect, None) if follow else self._timeout

        def act(session: Session) -> Generator[bytes, None, None]:
            alone = replace(session, connections=self._connections(session.configuration))
            return self._streamed(alone, _target(path, query), {"Accept": "*/*"}, timeout, follow)

        with closing(self.authorized(act)) as pieces:
            rest = b""
            for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                yield from (f"{line.decode('utf-8', 'replace')}\n" for line in whole)
            if rest:
                yield rest.decode("utf-8", "replace")

    def session(self) -> Session:
        """Return the present credentials."""
        # One at a time: the official client keeps the files that it makes from a kubeconfig in one table. It may have
        # to run a program for the credentials, which may hang.
        limit = self._timeout.read
        if not self._reading.acquire(timeout=-1 if limit is None else limit):
            waited = f"what reads them has not ended for {limit:g} s"
            raise ApiError(Reason.NO_CREDENTIALS, f"credentials cannot be read: {waited}")
        try:
            kept = self._session
            if kept is None or (self._keep_s is not None and self._clock.mono() - kept.at >= self._keep_s):
                configuration = self._access.configuration()
                endpoint, space = Endpoint.of(configuration), self._access.namespace
                connections = self._connections(configuration)
                self._session = kept = Session(configuration, endpoint, space, connections, self._clock.mono())
            return kept
        finally:
            self._reading.release()

    def authorized(self, act: Callable[[Session], T]) -> T:
        """Return what ``act`` does with the present credentials. If the server refuses those and there may be newer
        ones, it is called again.
        """
        began = self._clock.mono()
        while True:
            session = self.session()
            try:
                return act(session)
            except ApiError as error:
                if error.reason is not Reason.UNAUTHORIZED:
                    raise
                self._forget(session)
                if session.at >= began:
                    raise

    def reload_credentials(self) -> None:
        """Read the credentials again before the next request, and close the connections now."""
        self.close()
        self._session = None

    def interrupt(self) -> None:
        """Abort the requests that run, from any thread. Later ones are sent."""
        self._sockets.shut_down()

    def close(self) -> None:
        """Close all connections; a later request opens a new one. May be called again."""
        if (session := self._session) is not None:
            session.connections.clear()

    def unanswered(self, endpoint: Endpoint, reason: Reason, why: str) -> ApiError:
        """Return the error of a request without an answer."""
        return ApiError(reason, f"no answer from {self._server or endpoint.url}: {why}")

    def _connections(self, configuration: client.Configuration) -> urllib3.PoolManager:
        pool: urllib3.PoolManager = client.ApiClient(configuration).rest_client.pool_manager
        # "block": otherwise the pool closes connections that are too many, and urllib3 warns.
        pool.connection_pool_kw |= {"maxsize": KEPT, "block": True, "socket_options": list(SOCKET_OPTIONS)}
        pool.pool_classes_by_scheme = self._sockets.pools
        return pool

    def _forget(self, session: Session) -> None:
        """Read the credentials again before the next request: a token or a certificate may have been replaced."""
        if self._session is not None and self._session.at == session.at:
            self._session = None

    def _send(
        self,
        session: Session,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        timeout: Timeout | None = None,
        whole: bool = True,
    ) -> Any:
        """Send a request; return urllib3's response, with its body if it is wanted as a ``whole``."""
        limits = timeout or self._timeout
        with self._translated(session, limits):
            answer = session.connections.request(
                method,
                f"{session.endpoint.url}{target}",
                body=body,
                headers={**headers, **session.endpoint.headers},
                timeout=urllib3.Timeout(connect=limits.connect, read=limits.read),
                preload_content=whole,
                retries=False,
                redirect=False,  # the token is for no other server
            )
            if answer.status < 300:
                return answer
            refused = answer.data
            answer.release_conn()
        after = answer.headers.get("Retry-After", "")
        raise ApiError.of_answer(answer.status, refused, retry_after=after, remedies=self.remedies)

    def _streamed(
        self, session: Session, target: str, headers: Mapping[str, str], timeout: Timeout, live: bool
    ) -> Generator[bytes, None, None]:
        answer = self._send(session, "GET", target, headers, timeout=timeout, whole=False)
        pieces = self._pieces(session, answer, timeout, live)
        next(pieces)  # start the generator: otherwise its close() would not close the answer
        return pieces

    def _pieces(self, session: Session, answer: Any, timeout: Timeout, live: bool) -> Generator[bytes, None, None]:
        # Read what is live in the server's own chunks, because a larger read would wait for the next one.
        size = CHUNK if not live else None if answer.chunked else 1
        done = False
        try:
            yield b""
            with self._translated(session, timeout, started=True):
                yield from answer.stream(size, decode_content=True)
            done = True
        finally:
            # Otherwise the unread rest would come before the next answer on this connection.
            if not done:
                answer.close()
            answer.release_conn()

    @contextmanager
    def _translated(self, session: Session, timeout: Timeout, *, started: bool = False) -> Iterator[None]:
        """Turn errors into :class:`ApiError`. ``started``: the answer has begun to arrive."""
        why: str
        try:
            yield
            return
        except urllib3.exceptions.ReadTimeoutError:
            reason, why = Reason.SILENT, f"it has sent no data for {timeout.read:g} s"
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProxyError) as error:
            reason, why = Reason.UNREACHABLE, _cause(error)
        except urllib3.exceptions.ConnectTimeoutError:
            reason, why = Reason.UNREACHABLE, f"no connection within {timeout.connect:g} s"
        except (urllib3.exceptions.SSLError, ssl.SSLError) as error:
            self._forget(session)
            reason, why = Reason.UNREACHABLE, f"TLS: {_cause(error)}"
        except (FileNotFoundError, PermissionError) as error:  # of certificates
            self._forget(session)
            raise ApiError(Reason.NO_CREDENTIALS, f"credentials cannot be read: {error}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason, why = Reason.CUT, f"the connection broke: {_cause(error)}" if started else _cause(error)
        except ValueError:  # for example a header that is not valid; the error's text would reveal it
            if not started:
                raise ApiError(Reason.NO_CREDENTIALS, "no request can be made with the credentials") from None
            reason, why = Reason.CUT, "the connection broke"
        raise self.unanswered(session.endpoint, reason, why) from None


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _cause(error: BaseException) -> str:
    """Return the cause of a client's error, whose own text contains addresses of objects."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return (isinstance(error, OSError) and error.strerror) or str(error)


class _Sockets:
    """The sockets of open connections, so that another thread can shut them down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.pools = self._recording()

    def _recording(self) -> dict[str, type[HTTPConnectionPool]]:
        """Return pool classes that record their sockets here, by scheme."""
        record = self._record

        class Recorded:
            def connect(self) -> None:
                super().connect()  # type: ignore[misc]
                record(self.sock)  # type: ignore[attr-defined]

        plain = type("Plain", (Recorded, HTTPConnection), {})
        secure = type("Secure", (Recorded, HTTPSConnection), {})
        return {
            "http": type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
        }

    def shut_down(self) -> None:
        with self._lock:
            made = list(self._made)
        for each in made:
            with suppress(OSError):
                # The TLS socket's own method is not thread-safe.
                socket.socket.shutdown(each, socket.SHUT_RDWR)

    def _record(self, made: object) -> None:
        if isinstance(made, socket.socket):
            with self._lock:
                self._made.add(made)

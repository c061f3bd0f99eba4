"""The connection to an API server, over the official client. No other module of the daemon imports ``kubernetes``.

The client reads credentials and sends single requests. The daemon does not use the client's models, ``Watch`` and
informers, because they lose versions, hang, or loop (docs/kubernetes.md).
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import urllib3
from kubernetes import client, config
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io.kube.access import SOCKET_OPTIONS, Access, Unreadable, refused_by
from hvd_elastic_ext.io.kube.errors import JSON, Ending, RequestFailed, failure_from_status

CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Most seconds to connect, and without a byte of a list or of a watch. A server that works ends each watch within
    60 seconds, because the request asks for that (:data:`discover.kube.reflector.MIN_WATCH`).
    """

    connect: float = 5.0
    of_list: float = 30.0
    of_watch: float = 70.0


class ClientCollection:
    """The objects at ``path`` that ``query`` selects. Connections are made when needed, and kept for the next request.

    Requests use the client's pool and credentials. They do not use its methods, which differ between its versions.
    """

    def __init__(
        self, access: Access, path: str, query: Callable[[], Mapping[str, str]], *, timeouts: Timeouts, where: str
    ) -> None:
        self.where = where
        self._timeouts = timeouts
        self._access = access
        self._path = path
        self._query = query
        self._client: client.ApiClient | None = None
        self._sockets = _Sockets()

    def read_object(self, method: str, path: str, body: bytes | None = None, *, media: str = JSON) -> Mapping[str, Any]:
        """Send one request and return the answer's object. Raises :class:`RequestFailed`."""
        response = self._send(method, path, body, media=media, read=self._timeouts.of_list)
        try:
            found = json.loads(b"".join(self._pieces(response, whole=True)))
        except ValueError as error:
            raise RequestFailed(Ending.SERVER_ERROR, f"the answer cannot be read: {error}") from None
        return found if isinstance(found, dict) else {}

    def reload_credentials(self) -> None:
        """Read the credentials again before the next request, and close the connections now."""
        self.close()
        self._client = None

    def interrupt(self) -> None:
        """Shut down the sockets of all open connections."""
        self._sockets.shut_down()

    def close(self) -> None:
        """Close all connections; a later request opens a new one. May be called again."""
        if self._client is not None:
            self._client.rest_client.pool_manager.clear()
            self._client.close()

    def _connected(self) -> client.ApiClient:
        if self._client is None:
            made = client.ApiClient(self._access.configuration())
            manager = made.rest_client.pool_manager
            manager.connection_pool_kw["socket_options"] = list(SOCKET_OPTIONS)
            manager.pool_classes_by_scheme = self._sockets.pools()
            self._client = made
        return self._client

    def _send(self, method: str, path: str, body: bytes | None = None, *, media: str = JSON, read: float) -> Any:
        """Send a request; return urllib3's response before its body is read. Raises :class:`RequestFailed`."""
        with self._translated():
            api = self._connected()
            settings = api.configuration
            headers = {"Accept": JSON, "User-Agent": api.user_agent, **({"Content-Type": media} if body else {})}
            for each in settings.auth_settings().values():
                if each["in"] == "header" and each["value"]:
                    headers[each["key"]] = each["value"]
            response = api.rest_client.pool_manager.request(
                method,
                f"{settings.host}{path}",
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=self._timeouts.connect, read=read),
                preload_content=False,
                retries=False,
            )
            if response.status >= 300:
                refused = client.ApiException(status=response.status, reason=response.reason)
                refused.body, refused.headers = response.read(), response.headers
                response.release_conn()
                raise refused
            return response

    def _pieces(self, response: urllib3.HTTPResponse, *, whole: bool) -> Generator[bytes, None, None]:
        pieces = self._begun(response, whole=whole)
        next(pieces)  # start the generator: otherwise its close() would not close the response
        return pieces

    def _begun(self, response: urllib3.HTTPResponse, *, whole: bool) -> Generator[bytes, None, None]:
        # Read a watch in the server's own chunks, because a larger read would wait for the next event.
        size = CHUNK if whole else None if response.chunked else 1
        done = False
        try:
            yield b""
            with self._translated(started=True):
                yield from response.stream(size, decode_content=True)
            done = True
        finally:
            # Otherwise the unread rest would come before the next answer on this connection.
            if not done:
                response.close()
            response.release_conn()

    @contextmanager
    def _translated(self, *, started: bool = False) -> Iterator[None]:
        """Turn errors into :class:`RequestFailed`. ``started``: the answer has begun to arrive."""
        try:
            yield
        except (client.ApiException, AttributeError) as error:
            refused = refused_by(error)
            if refused is None:
                raise
            if refused.status:
                raise _refusal(refused) from None
            self.reload_credentials()  # the certificates may have been replaced
            raise RequestFailed(Ending.UNREACHABLE, f"TLS: {refused.reason}") from None
        except Unreadable as error:
            raise RequestFailed(Ending.NO_CREDENTIALS, str(error)) from None
        except (config.ConfigException, FileNotFoundError, PermissionError) as error:
            raise RequestFailed(Ending.NO_CREDENTIALS, f"credentials cannot be read: {error}") from None
        except urllib3.exceptions.ReadTimeoutError:
            raise RequestFailed(Ending.SILENT, "connected, but no data arrives") from None
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProxyError) as error:
            raise _no_connection(error) from None
        except urllib3.exceptions.ConnectTimeoutError:
            why = f"no connection within {self._timeouts.connect:.0f} s"
            raise RequestFailed(Ending.UNREACHABLE, why) from None
        except (urllib3.exceptions.SSLError, ssl.SSLError) as error:
            self.reload_credentials()
            raise RequestFailed(Ending.UNREACHABLE, f"TLS: {error}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RequestFailed(Ending.CUT, f"the connection broke: {error}") from None
        except ValueError:  # for example a token that is not a valid header; the error's text would reveal it
            why = "the connection broke" if started else "the credentials make no request"
            raise RequestFailed(Ending.CUT if started else Ending.NO_CREDENTIALS, why) from None


class ClientSender:
    """A :class:`discover.kube.collection.Sender` over one connection, which stays open between requests."""

    def __init__(self, access: Access, *, timeouts: Timeouts, where: str) -> None:
        self._connection = ClientCollection(access, "", dict, timeouts=timeouts, where=where)
        self._interrupted = False

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, media: str = JSON
    ) -> Mapping[str, Any]:
        """Send one request; see :meth:`Sender.send`. After a 401, read the credentials again and send it once more."""
        data = None if body is None else to_text(body).encode()
        try:
            return self._sent(method, path, data, media)
        except RequestFailed as error:
            if error.code != 401:
                raise
        self._connection.reload_credentials()  # the token may have been replaced (rule R7)
        return self._sent(method, path, data, media)

    def interrupt(self) -> None:
        """Abort the current request. Later ones fail and are not sent."""
        self._interrupted = True
        self._connection.interrupt()

    def close(self) -> None:
        """Close the connection; a later request opens a new one. May be called again."""
        self._connection.close()

    def _sent(self, method: str, path: str, data: bytes | None, media: str) -> Mapping[str, Any]:
        if self._interrupted:
            raise RequestFailed(Ending.CUT, "broken off")
        return self._connection.read_object(method, path, data, media=media)


def _refusal(error: client.ApiException) -> RequestFailed:
    body = error.body
    try:
        status = json.loads(body) if body else {}
    except ValueError:
        status = {}
    wait = (error.headers or {}).get("Retry-After", "")
    after = float(wait) if wait.isascii() and wait.isdigit() else None
    return failure_from_status(status if isinstance(status, dict) else {}, code=error.status, retry_after=after)


def _no_connection(error: Exception) -> RequestFailed:
    cause = error.__cause__ or error.__context__
    why = (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(error)
    return RequestFailed(Ending.UNREACHABLE, why.lower())


class _Sockets:
    """The sockets of open connections, so that another thread can shut them down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def pools(self) -> dict[str, type[HTTPConnectionPool]]:
        """Return pool classes that record their sockets here."""
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

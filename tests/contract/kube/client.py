"""The API over ``http.client``, so that what is tested is the server and no client library."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

WAIT_S = 60.0


@dataclass(frozen=True)
class Reply:
    code: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def names(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.body["items"]]


class Stream:
    """One open watch."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response
        self.code = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def raw(self) -> bytes:
        """The next line; empty at the end. Raises OSError or ``http.client.HTTPException`` where it breaks."""
        return self._response.readline()

    def next(self) -> tuple[str, Any]:
        """The next event's type and object. Raises EOFError at the end."""
        line = self.raw()
        if not line:
            raise EOFError
        event = json.loads(line)
        return event["type"], event["object"]

    def until_end(self) -> list[tuple[str, Any]]:
        found = []
        while True:
            try:
                found.append(self.next())
            except EOFError:
                return found

    def patience(self, seconds: float) -> None:
        assert self._connection.sock is not None
        self._connection.sock.settimeout(seconds)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


@dataclass(frozen=True)
class Api:
    """Where a server is, and who asks."""

    url: str
    token: str = ""
    context: ssl.SSLContext | None = None

    def connect(self, *, timeout: float = WAIT_S) -> http.client.HTTPConnection:
        where = urlsplit(self.url)
        assert where.hostname is not None
        if self.context is None:
            return http.client.HTTPConnection(where.hostname, where.port, timeout=timeout)
        return http.client.HTTPSConnection(where.hostname, where.port, timeout=timeout, context=self.context)

    def as_user(self, token: str) -> Api:
        """The same server, asked with this token and no certificate."""
        context = self.context
        if context is not None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return replace(self, token=token, context=context)

    def ask(self, method: str, path: str, body: Any = None, *, media: str = JSON, **query: object) -> Reply:
        connection = self.connect()
        try:
            raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, _with(path, query), body=raw, headers=self._headers(media))
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())
        finally:
            connection.close()

    def done(self, method: str, path: str, body: Any = None, *, media: str = JSON, **query: object) -> Reply:
        """Like :meth:`ask`, of what has to succeed."""
        reply = self.ask(method, path, body, media=media, **query)
        assert 200 <= reply.code < 300, f"{method} {path}: {reply.code} {reply.raw.decode(errors='replace')[:500]}"
        return reply

    def watch(self, path: str, **query: object) -> Stream:
        """Open one; a refusal has a ``code`` that is not 200."""
        connection = self.connect()
        try:
            connection.request("GET", _with(path, {"watch": "true", **query}), headers=self._headers(JSON))
            return Stream(connection, connection.getresponse())
        except BaseException:
            connection.close()
            raise

    def pages(self, path: str, *, limit: int, **query: str) -> Iterator[Reply]:
        reply = self.done("GET", path, limit=limit, **query)
        yield reply
        while again := reply.body["metadata"].get("continue"):
            reply = self.done("GET", path, limit=limit, **{**query, "continue": again})
            yield reply

    def _headers(self, media: str) -> dict[str, str]:
        headers = {"Content-Type": media, "Accept": JSON}
        return {**headers, "Authorization": f"Bearer {self.token}"} if self.token else headers


def _with(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode({name: str(value) for name, value in query.items()})}" if query else path


def of_kubeconfig(path: Path, folder: Path) -> Api:
    """The current context's server. Raises ValueError for a user that is known by neither token nor certificate."""
    whole = yaml.safe_load(path.read_text())
    chosen = next(each["context"] for each in whole["contexts"] if each["name"] == whole["current-context"])
    cluster = next(each["cluster"] for each in whole["clusters"] if each["name"] == chosen["cluster"])
    user = next(each["user"] for each in whole["users"] if each["name"] == chosen["user"])
    context = None
    if cluster["server"].startswith("https:"):
        context = ssl.create_default_context(cafile=_file(cluster, "certificate-authority", folder))
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate := _file(user, "client-certificate", folder):
            context.load_cert_chain(certificate, _file(user, "client-key", folder))
            return Api(cluster["server"], "", context)
    token = user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else "")
    if not token:
        raise ValueError(
            f"{path}: this suite knows tokens and client certificates, and user {chosen['user']} has neither"
        )
    return Api(cluster["server"], token, context)


def _file(of: Mapping[str, str], name: str, folder: Path) -> str | None:
    if data := of.get(f"{name}-data"):
        path = folder / name
        path.write_bytes(base64.b64decode(data))
        path.chmod(0o600)
        return str(path)
    return of.get(name)

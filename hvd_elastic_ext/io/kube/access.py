"""Credentials for an API server: a pod's own account, or a kubeconfig. Uses the official client.

Importing this takes half a second and 45 MB, the client's: import it only where it is needed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import urllib3
from kubernetes import client, config
from kubernetes.config.incluster_config import InClusterConfigLoader

from hvd_elastic_ext.core.errors import Transient, UsageError
from hvd_elastic_ext.core.json_text import to_text

LOG: Final = logging.getLogger(__name__)

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder with a pod's own credentials."""

SOCKET_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
)
"""Socket options that detect in 25 seconds a peer that vanishes without closing the connection (rule R13)."""


KEPT: Final = 8
"""Most connections that are kept for later requests."""


class Unreadable(Transient):
    """Credentials cannot be read now: a writer may be about to replace them."""


class Refused(Transient):
    """An API server refused a request. ``code``: the HTTP status; ``body``: the answer, which may be cut off."""

    def __init__(self, code: int, body: bytes) -> None:
        self.code = code
        self.body = body
        super().__init__(f"the API server says {code}")


class Unanswered(Transient):
    """The API server did not answer; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and credentials of an API server as plain data, for requests that the client cannot send.

    ``headers`` contain a secret. ``authority``, ``certificate`` and ``key``: paths of files, empty if there is none.
    ``verify``: whether to check the server's certificate. ``server_name``: the name in it, if this is not its host.
    ``proxy``: a URL; ``no_proxy``: hosts that are reached without it.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    authority: str
    certificate: str
    key: str
    verify: bool
    check_name: bool
    server_name: str
    proxy: str
    no_proxy: tuple[str, ...]

    @classmethod
    def of(cls, configuration: client.Configuration) -> Endpoint:
        """Return the endpoint of a configuration. Raises :class:`Unreadable` for a token that no header can hold."""
        settings = configuration.auth_settings().values()
        headers = {each["key"]: (each["value"] or "").strip() for each in settings if each["in"] == "header"}
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise Unreadable("credentials cannot be read: the token is none")
        return cls(
            url=configuration.host.rstrip("/"),
            headers={name: value for name, value in headers.items() if value},
            authority=configuration.ssl_ca_cert or "",
            certificate=configuration.cert_file or "",
            key=configuration.key_file or "",
            verify=bool(configuration.verify_ssl),
            check_name=configuration.assert_hostname is not False,
            server_name=configuration.tls_server_name or "",
            proxy=configuration.proxy or "",
            no_proxy=tuple(filter(None, (each.strip() for each in (configuration.no_proxy or "").split(",")))),
        )


def refused_by(error: Exception) -> client.ApiException | None:
    """Return the client's own error, if it is one. Release 36 raises AttributeError for an error without a body, such
    as all TLS errors."""
    context = error if isinstance(error, client.ApiException) else error.__context__
    return context if isinstance(context, client.ApiException) else None


def read_pod(
    configuration: client.Configuration, namespace: str, name: str, *, timeout: tuple[float, float]
) -> dict[str, Any]:
    """Read one pod. ``timeout``: seconds to connect, and seconds without a byte of the answer. Raises :class:`Refused`
    and :class:`Unanswered`.
    """
    return ask(configuration, "GET", f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}", timeout=timeout)


def connections(configuration: client.Configuration) -> urllib3.PoolManager:
    """Return connections for many requests of one user, also from several threads. Without them, each request needs a
    new connection, with three round trips."""
    pool: urllib3.PoolManager = client.ApiClient(configuration).rest_client.pool_manager
    # "block": wait while all connections are in use. Otherwise the pool closes extra ones, and urllib3 warns.
    pool.connection_pool_kw |= {"maxsize": KEPT, "block": True, "socket_options": list(SOCKET_OPTIONS)}
    return pool


def ask(
    configuration: client.Configuration,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout: tuple[float, float],
    kept: urllib3.PoolManager | None = None,
) -> dict[str, Any]:
    """Send one small request and return the object that is the answer; the ``body`` of a PATCH is a merge patch.
    ``timeout`` as for :func:`read_pod`; ``kept``: :func:`connections` to use, instead of a new one.

    Uses the client's connections and credentials, but not its methods, which differ between versions. Raises
    :class:`Refused` and :class:`Unanswered`; after the second, the request may have taken effect.
    """
    endpoint = Endpoint.of(configuration)
    media = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with _pool(configuration, kept) as pool, _answered(timeout):
        answer = pool.request(
            method,
            f"{endpoint.url}{path}",
            body=None if body is None else to_text(body).encode(),
            headers={
                "Accept": "application/json",
                **({} if body is None else {"Content-Type": media}),
                **endpoint.headers,
            },
            timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
            retries=False,
            redirect=False,  # the token is for no other server
        )
        if answer.status >= 300:
            raise Refused(answer.status, answer.data)
        found = json.loads(answer.data)
    return found if isinstance(found, dict) else {}


@contextmanager
def _pool(configuration: client.Configuration, kept: urllib3.PoolManager | None) -> Iterator[urllib3.PoolManager]:
    if kept is not None:
        yield kept
        return
    with client.ApiClient(configuration) as api:
        yield api.rest_client.pool_manager


def lines(configuration: client.Configuration, path: str, *, timeout: tuple[float, float | None]) -> Iterator[str]:
    """Yield lines of a text answer as they arrive; the last one may lack its line end. ``timeout`` as for
    :func:`read_pod`; a None at its end waits for any time.

    Raises :class:`Refused` and :class:`Unanswered`, also between lines.
    """
    endpoint = Endpoint.of(configuration)
    limits = urllib3.Timeout(connect=timeout[0], read=timeout[1])
    with client.ApiClient(configuration) as api, _answered((timeout[0], timeout[1] or 0.0)):
        answer = api.rest_client.pool_manager.request(
            "GET",
            f"{endpoint.url}{path}",
            headers={"Accept": "*/*", **endpoint.headers},
            timeout=limits,
            retries=False,
            redirect=False,  # the token is for no other server
            preload_content=False,
        )
        try:
            if answer.status >= 300:
                raise Refused(answer.status, answer.read())
            rest = b""
            for piece in answer.stream(amt=None, decode_content=True):
                *whole, rest = (rest + piece).split(b"\n")
                yield from (f"{line.decode('utf-8', 'replace')}\n" for line in whole)
            if rest:
                yield rest.decode("utf-8", "replace")
        finally:
            answer.close()
            answer.release_conn()


@contextmanager
def _answered(timeout: tuple[float, float]) -> Iterator[None]:
    """Translate all errors of the client to :class:`Refused` and :class:`Unanswered`."""
    try:
        yield
    except urllib3.exceptions.ReadTimeoutError:
        raise Unanswered(f"it sends no data for {timeout[1]:g} s") from None
    except urllib3.exceptions.NewConnectionError as error:
        raise Unanswered(_cause(error)) from None
    except urllib3.exceptions.ConnectTimeoutError:
        raise Unanswered(f"no connection within {timeout[0]:g} s") from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Unanswered(_cause(error)) from None
    except ValueError:  # no JSON, or an invalid token, which the error's text would show
        raise Unanswered("its answer cannot be read") from None


def _cause(error: BaseException) -> str:
    """Return the cause of a client's error, whose own text contains addresses of objects."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return (isinstance(error, OSError) and error.strerror) or str(error)


@dataclass(frozen=True, slots=True)
class Access:
    """The source of credentials: ``kubeconfig``, a path (or several, as in $KUBECONFIG), or, if that is empty, the
    pod's own ``account``."""

    kubeconfig: str = ""
    account: Path = ACCOUNT

    @classmethod
    def found(
        cls, kubeconfig: Path | None, environ: Mapping[str, str], *, remedy: str = "give --kubeconfig FILE"
    ) -> Access:
        """Return the first credentials of these: the given ones, those of $KUBECONFIG, the pod's own, the user's.

        As with kubectl, $KUBECONFIG counts if a file that it names exists. Raises :class:`UsageError` without any
        credentials; ``remedy``: its text that says what to do.
        """
        if kubeconfig is not None:
            if not kubeconfig.is_file():
                raise UsageError(f"--kubeconfig {kubeconfig}: there is no such file")
            return cls(str(kubeconfig))
        variable = environ.get("KUBECONFIG") or ""
        if _is_there(variable):
            return cls(variable)
        if environ.get("KUBERNETES_SERVICE_HOST"):
            return cls()
        usual = variable or "~/.kube/config"
        if _is_there(usual):
            return cls(usual)
        raise UsageError(f"no cluster: this is not a pod, and {usual} does not exist; {remedy}")

    @property
    def namespace(self) -> str:
        """Return the default namespace. Raises :class:`Unreadable`."""
        named = ""
        if not self.kubeconfig:
            with suppress(OSError):
                named = (self.account / "namespace").read_text().strip()
        else:
            with _readable(self.kubeconfig):
                _, current = config.list_kube_config_contexts(self.kubeconfig)
                named = current["context"].get("namespace") or ""
        return named or "default"

    def configuration(self) -> client.Configuration:
        """Read the credentials again. Raises :class:`Unreadable`."""
        made = client.Configuration()
        made.retries = False
        with _readable(self.kubeconfig or str(self.account)):
            if not self.kubeconfig:
                token, authority = self.account / "token", self.account / "ca.crt"
                InClusterConfigLoader(token_filename=str(token), cert_filename=str(authority)).load_and_set(made)
            else:
                config.load_kube_config(self.kubeconfig, client_configuration=made, persist_config=False)
        if not made.verify_ssl:
            # Otherwise urllib3 warns at each request.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            _say_unverified(self.kubeconfig)
        if not made.proxy:  # version 31 does not read the environment
            made.proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
        if made.proxy and not made.no_proxy:  # versions up to 35 lose the value that they have read
            made.no_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        return made


@functools.cache
def _say_unverified(kubeconfig: str) -> None:
    """Warn that the server's certificate is not checked, only once for each kubeconfig."""
    LOG.warning(
        "kubeconfig %s: insecure-skip-tls-verify is set, so any server at that address gets the "
        "credentials; name the CA instead: certificate-authority",
        kubeconfig,
    )


def _is_there(paths: str) -> bool:
    """Whether any of the files exists; several as in $KUBECONFIG."""
    return any(Path(each).expanduser().is_file() for each in paths.split(os.pathsep) if each)


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Translate all errors of reading credentials to :class:`Unreadable`. The client raises errors of its YAML parser,
    and others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        raise Unreadable(" ".join(f"credentials cannot be read: {where}: {error}".split())[:500]) from None

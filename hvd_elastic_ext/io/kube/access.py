"""Credentials for an API server: a pod's own account, or a kubeconfig. Uses the official client.

Importing this takes half a second and 45 MB, the client's: import it only where it is needed.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import urllib3
from kubernetes import client, config
from kubernetes.config.incluster_config import InClusterConfigLoader

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.errors import ApiError, Reason

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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and credentials of an API server as plain data, for requests and streams of our own."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    """They contain a secret."""
    authority: str
    """The path of a file, as are the next two; empty if there is none."""
    certificate: str
    key: str
    verify: bool
    """Whether to check the server's certificate."""
    check_name: bool
    server_name: str
    """The name in the certificate, if it is not the server's host."""
    proxy: str
    """A URL; empty: none."""
    no_proxy: tuple[str, ...]
    """Hosts that are reached without it."""

    @classmethod
    def of(cls, configuration: client.Configuration) -> Endpoint:
        """Return the endpoint of a configuration. Raises :class:`ApiError` for a token that no header can hold."""
        settings = configuration.auth_settings().values()
        headers = {each["key"]: (each["value"] or "").strip() for each in settings if each["in"] == "header"}
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ApiError(Reason.NO_CREDENTIALS, "credentials cannot be read: the token is not valid")
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
        """Return the default namespace. Raises :class:`ApiError`."""
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
        """Read the credentials again. Raises :class:`ApiError`."""
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
    """Translate all errors of reading credentials to :class:`ApiError`. The client raises errors of its YAML parser,
    and others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        raise ApiError(Reason.NO_CREDENTIALS, f"credentials cannot be read: {where}: {error}") from None

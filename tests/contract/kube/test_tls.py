"""HTTPS, client certificates and a CA that changes: ours only, since a real server's CA is its own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest

from tests.contract.kube.client import Api, of_kubeconfig
from tests.support.kube import web
from tests.support.kube.fixtures import kube_tls as kube_tls  # a fixture
from tests.support.kube.server import KubeServer


def trusting(path: Path | None) -> ssl.SSLContext:
    assert path is not None
    return ssl.create_default_context(cafile=str(path))


def test_a_client_that_trusts_the_ca_is_served(kube_tls: KubeServer) -> None:
    api = Api(kube_tls.url, kube_tls.token, trusting(kube_tls.ca_file))

    assert kube_tls.url.startswith("https://")
    assert api.ask("GET", "/api/v1/nodes").code == 200


def test_a_client_that_trusts_another_ca_goes_away(kube_tls: KubeServer) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Api(kube_tls.url, kube_tls.token, ssl.create_default_context()).ask("GET", "/api/v1/nodes")


def test_a_certificate_says_who_asks(kube_tls: KubeServer) -> None:
    assert kube_tls.authority is not None
    context = trusting(kube_tls.ca_file)
    pair = kube_tls.authority.client("jane", "readers")
    context.load_cert_chain(pair.certificate, pair.key)
    reply = Api(kube_tls.url, "", context).ask("GET", "/api/v1/nodes")

    assert reply.code == 403
    assert 'User "jane" cannot list resource "nodes"' in reply.body["message"]

    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    kube_tls.put("clusterroles", {"metadata": {"name": "nodes"}, "rules": [rule]})
    role = {"kind": "ClusterRole", "name": "nodes"}
    subjects = [{"kind": "Group", "name": "readers"}]
    kube_tls.put("clusterrolebindings", {"metadata": {"name": "nodes"}, "roleRef": role, "subjects": subjects})
    assert Api(kube_tls.url, "", context).ask("GET", "/api/v1/nodes").code == 200


def test_a_new_ca_is_for_new_connections(kube_tls: KubeServer) -> None:
    old = kube_tls.ca_file
    before = Api(kube_tls.url, kube_tls.token, trusting(old))
    watch = before.watch("/api/v1/nodes")
    kube_tls.rotate_ca()
    after = Api(kube_tls.url, kube_tls.token, trusting(kube_tls.ca_file))

    assert kube_tls.ca_file != old
    with pytest.raises(ssl.SSLCertVerificationError):
        before.ask("GET", "/api/v1/nodes")
    assert after.ask("GET", "/api/v1/nodes").code == 200
    kube_tls.put("nodes", {"metadata": {"name": "n"}})
    assert watch.next()[0] == "ADDED"
    watch.close()


def test_a_handshake_can_hang_and_does_not_hold_up_the_end(kube_tls: KubeServer) -> None:
    api = Api(kube_tls.url, kube_tls.token, trusting(kube_tls.ca_file))
    with kube_tls.hangs():
        connection = api.connect(timeout=0.3)
        with pytest.raises(TimeoutError):
            connection.connect()
        connection.close()
    assert api.ask("GET", "/api/v1/nodes").code == 200

    with socket.create_connection(("127.0.0.1", kube_tls.port)):
        began = time.monotonic()
        kube_tls.stop()
        assert time.monotonic() - began < web.HANDSHAKE_S / 2


def test_a_request_that_is_cut_off_is_no_request(kube_tls: KubeServer) -> None:
    context = trusting(kube_tls.ca_file)
    before = kube_tls.counts.of("", "nodes")
    for sent in (
        b"GET /api/v1/nodes HTTP/1.1\r\nHost: x\r\n",
        b"POST /api/v1/nodes HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}",
    ):
        with socket.create_connection(("127.0.0.1", kube_tls.port)) as plain:
            tls = context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False)
            tls.sendall(sent)
            socket.socket.shutdown(tls, socket.SHUT_WR)  # the end of the connection without the end of the session
            with contextlib.suppress(OSError):
                assert tls.recv(1) == b""
            tls.close()
    kube_tls.stop()

    assert kube_tls.counts.of("", "nodes") == before


@pytest.mark.parametrize("way", ["token", "file", "certificate"])
def test_the_kubeconfig_that_is_written_can_be_read(kube_tls: KubeServer, tmp_path: Path, way: str) -> None:
    assert kube_tls.authority is not None
    path = tmp_path / "kubeconfig"
    match way:
        case "token":
            kube_tls.kubeconfig(path)
        case "file":
            (tmp_path / "token").write_text(kube_tls.token + "\n")
            kube_tls.kubeconfig(path, token_file=tmp_path / "token")
        case _:
            kube_tls.kubeconfig(path, client=kube_tls.authority.client("root", "system:masters"))

    assert path.stat().st_mode & 0o077 == 0
    assert of_kubeconfig(path, tmp_path).ask("GET", "/api/v1/nodes").code == 200

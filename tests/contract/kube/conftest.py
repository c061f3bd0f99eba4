"""Servers, and a namespace to be in. Tests that ask for ``fake`` are of what a real server cannot be made to do."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kube.client import JSON, MERGE, STRATEGIC, Api, Reply, Stream, of_kubeconfig
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

KUBECONFIG = "HVD_TEST_KUBECONFIG"

SERVERS = ["ours", "real"] if os.environ.get(KUBECONFIG) else ["ours"]


@dataclass
class Space:
    """A namespace of the test's own, on one of the servers."""

    api: Api
    name: str
    _streams: list[Stream] = field(default_factory=list)
    _nodes: list[str] = field(default_factory=list)

    def path(self, plural: str, name: str = "", subresource: str = "", *, group: str = "") -> str:
        root = f"/apis/{group}" if group else "/api/v1"
        return "/".join(filter(None, (f"{root}/namespaces/{self.name}", plural, name, subresource)))

    @property
    def pods(self) -> str:
        return self.path("pods")

    def pod(self, name: str, **labels: str) -> Reply:
        """Create one, on a node, so that its deletion takes its grace."""
        return self.api.done("POST", self.pods, pod(name, node=self.node(), **labels))

    def node(self) -> str:
        """The name of a node of the test's own."""
        if not self._nodes:
            name = f"hvdt-{uuid.uuid4().hex[:12]}"
            self.api.done("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"hvdt": self.name}}})
            self._nodes.append(name)
        return self._nodes[0]

    def label(self, name: str, **labels: str | None) -> Reply:
        return self.api.done("PATCH", self.path("pods", name), {"metadata": {"labels": labels}}, media=MERGE)

    def status(self, name: str, **status: Any) -> Reply:
        return self.api.done("PATCH", self.path("pods", name, "status"), {"status": status}, media=STRATEGIC)

    def delete(self, name: str, *, grace: int | None = None) -> Reply:
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        return self.api.done(
            "DELETE", self.path("pods", name), {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        )

    def version(self) -> str:
        """As of now."""
        return self.api.done("GET", self.pods).version

    def watch(self, path: str = "", **query: object) -> Stream:
        """One that ends with the test."""
        stream = self.api.watch(path or self.pods, **query)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        options = {"gracePeriodSeconds": 0}
        self.api.ask("DELETE", self.pods, options)
        for node in self._nodes:
            self.api.ask("DELETE", f"/api/v1/nodes/{node}", options)
        self.api.ask("DELETE", f"/api/v1/namespaces/{self.name}", options)


def gated(body: dict[str, Any]) -> dict[str, Any]:
    """A pod that no scheduler or kubelet writes to, since it is not to be placed yet."""
    return {**body, "spec": {**body["spec"], "schedulingGates": [{"name": "example.org/never"}]}}


def pod(name: str, *, node: str = "", **labels: str) -> dict[str, Any]:
    """As a user creates one: no status."""
    container = {"name": "main", "image": "example.org/none:1"}
    spec = {"containers": [container], "automountServiceAccountToken": False, "tolerations": [{"operator": "Exists"}]}
    metadata = {"name": name, "labels": labels}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {**spec, **({"nodeName": node} if node else {})},
    }


@pytest.fixture
def _ours() -> Iterator[KubeServer]:
    with KubeServer(patience=0.05) as server:
        yield server


@pytest.fixture(params=SERVERS)
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Api:
    """Each of the servers, as its administrator sees it."""
    if request.param == "real":
        return of_kubeconfig(Path(os.environ[KUBECONFIG]).expanduser(), tmp_path)
    server: KubeServer = request.getfixturevalue("_ours")
    return Api(server.url, server.token)


@pytest.fixture
def space(api: Api) -> Iterator[Space]:
    """A namespace that new pods can be created in."""
    name = f"hvdt-{uuid.uuid4().hex[:12]}"
    api.done("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts"
    reply = api.ask(
        "POST", account, {"metadata": {"name": "default"}}, media=JSON
    )  # a controller's work, where one runs
    assert reply.code in (201, 409)
    found = Space(api, name)
    yield found
    found.close()


@pytest.fixture
def fake() -> Iterator[KubeServer]:
    """A server of the test's own, to break."""
    with KubeServer(patience=0.05) as server:
        yield server


@pytest.fixture
def inside(fake: KubeServer) -> Iterator[Space]:
    """The default namespace of ``fake``."""
    found = Space(Api(fake.url, fake.token), "default")
    yield found
    for stream in found._streams:
        stream.close()


def eventually(condition: Any, what: str) -> Any:
    return wait_until(condition, what=what, timeout=60)

"""The services to ask. What only a stand-in can be made to do takes ``server``; all else any endpoint."""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.metadata import AlibabaService, AwsService, AzureService, GcpService, MetadataServer

REAL = os.environ.get("HVD_TEST_METADATA")
"""The cloud that this machine is in."""
HOMES = {"alibaba": "http://100.100.100.200"}
SERVICES: dict[str, Callable[[], Any]] = {
    "aws": AwsService,
    "gcp": GcpService,
    "azure": AzureService,
    "alibaba": AlibabaService,
}


@dataclass(frozen=True)
class Reply:
    status: int
    body: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Endpoint:
    """Asks as anybody would."""

    url: str

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: str | None = None) -> Reply:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request(method, path, body, {"Connection": "close", **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, answer.read().decode(), found)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})


def endpoints(cloud: str) -> list[str]:
    return ["ours", "real"] if cloud == REAL else ["ours"]


def served(cloud: str) -> Iterator[MetadataServer[Any]]:
    with MetadataServer(SERVICES[cloud]()) as server:
        yield server


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """Of the cloud that the test's module is named after: ours, or the real one."""
    cloud = request.module.__name__.rpartition("test_")[2]
    if getattr(request, "param", "ours") == "real":
        yield Endpoint(HOMES.get(cloud, "http://169.254.169.254"))
        return
    server: MetadataServer[Any] = request.getfixturevalue("server")
    yield Endpoint(server.url)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[MetadataServer[Any]]:
    yield from served(request.module.__name__.rpartition("test_")[2])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "endpoint" in metafunc.fixturenames and "server" not in metafunc.fixturenames:
        cloud = metafunc.module.__name__.rpartition("test_")[2]
        metafunc.parametrize("endpoint", endpoints(cloud), indirect=True)

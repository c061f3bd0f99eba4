"""An answer in time and of some size, or none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hvd_elastic_ext.agent.notices.metadata import MAX_BODY, HttpClient, NoResponse, Request
from tests.support.metadata import GcpService, MetadataServer

NAME = "/computeMetadata/v1/instance/name"
GOOGLE = {"Metadata-Flavor": "Google"}


@pytest.fixture
def server() -> Iterator[MetadataServer[GcpService]]:
    with MetadataServer(GcpService()) as server:
        yield server


def test_an_answer_has_status_headers_and_body(server: MetadataServer[GcpService]) -> None:
    answer = HttpClient(server.url)(Request("GET", f"{NAME}?alt=text", GOOGLE))
    assert (answer.status, answer.body, answer.headers["metadata-flavor"]) == (200, "vm-1", "Google")
    (call,) = server.calls
    assert call.headers["host"] == f"127.0.0.1:{server.port}"
    assert call.query == {"alt": "text"}


def test_a_path_in_the_address_comes_before_what_is_asked(server: MetadataServer[GcpService]) -> None:
    HttpClient(f"{server.url}/proxied/")(Request("GET", NAME, GOOGLE))
    assert server.calls[0].path == f"/proxied{NAME}"


def test_a_body_may_come_in_chunks(server: MetadataServer[GcpService]) -> None:
    server.faults.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nTR\r\n2\r\nUE\r\n0\r\n\r\n")
    assert HttpClient(server.url)(Request("GET", NAME, GOOGLE)).body == "TRUE"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvm-1",  # half an answer, however sensible
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFF\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1) + b"x" * (MAX_BODY + 1),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70000 + b"\r\n\r\n",
        b"HTTP/1.1 twohundred OK\r\n\r\n",
    ],
)
def test_what_is_no_whole_answer_is_none(server: MetadataServer[GcpService], data: bytes) -> None:
    server.faults.raw(data)
    with pytest.raises(NoResponse):
        HttpClient(server.url)(Request("GET", NAME, GOOGLE))


@pytest.mark.parametrize(
    "drip", [None, b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x"]
)
def test_who_hangs_or_drips_is_given_up(server: MetadataServer[GcpService], drip: bytes | None) -> None:
    server.faults.hang() if drip is None else server.faults.drip(drip)
    with pytest.raises(NoResponse, match="in time"):
        HttpClient(server.url)(Request("GET", NAME, GOOGLE, 0.4))


def test_proxies_of_the_environment_are_not_used(
    server: MetadataServer[GcpService], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert HttpClient(server.url)(Request("GET", NAME, GOOGLE)).status == 200


def test_a_clock_is_taken_for_another_when_it_is_off_by_more_than_a_header_can_tell(
    server: MetadataServer[GcpService],
) -> None:
    web = HttpClient(server.url)
    for ahead_s, seen_s in ((2.0, 0.0), (-600.0, -600.0), (0.0, 0.0)):
        server.ahead_s = ahead_s
        answer = web(Request("GET", NAME, GOOGLE))
        assert web.ahead_s == pytest.approx(seen_s, abs=2)
        assert answer.now == pytest.approx(time.time() + seen_s, abs=3)


@pytest.mark.parametrize(
    "url",
    ["https://host", "169.254.169.254", "http://", "http://user:word@host", "http://host/?a=b", "http://host:port"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        HttpClient(url)

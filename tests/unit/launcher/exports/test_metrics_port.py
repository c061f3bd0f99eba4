"""The port at which Prometheus reads, with a real HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hvd_elastic_ext.core.connections import MOST
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.exports.metrics_port import Endpoint
from hvd_elastic_ext.launcher.exports.prometheus import JobMetric
from hvd_elastic_ext.launcher.options.settings import ListenAddress, listen_address

HERE = ListenAddress("127.0.0.1", 0)


def read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def shown(*taken: Iterable[JobMetric]) -> list[dict[tuple[str, tuple[tuple[str, str], ...]], float]]:
    """Return the values that a client reads, one read after the other."""
    rest = iter(taken)

    async def main() -> list[str]:
        endpoint = Endpoint(HERE, lambda: next(rest), asyncio.get_running_loop())
        try:
            return [await asyncio.to_thread(read, endpoint.port) for _ in taken]
        finally:
            await asyncio.to_thread(endpoint.close)

    return [
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        for text in asyncio.run(main())
    ]


def test_each_reading_takes_the_figures_anew() -> None:
    first, second = shown(
        [JobMetric("step", "Its step", {(): 1})],
        [
            JobMetric("step", "Its step", {(): 2}),
            JobMetric("worlds", "Worlds", {("start",): 1}, ("cause",), counter=True),
        ],
    )
    assert first == {("hvd_elastic_step", ()): 1}
    assert second == {("hvd_elastic_step", ()): 2, ("hvd_elastic_worlds_total", (("cause", "start"),)): 1}


def test_names_with_quotes_and_line_ends_stay_one_value() -> None:
    name = 'a"b\\c\nhvd_elastic_step 7'
    [found] = shown([JobMetric("heartbeat_age_seconds", "Age", {(name,): 1}, ("host",))])
    assert found == {("hvd_elastic_heartbeat_age_seconds", (("host", name),)): 1}


def test_a_launcher_that_is_busy_or_a_client_that_disconnects_is_no_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvd_elastic_ext.launcher.exports.metrics_port.COLLECT_TIMEOUT_S", 0.01)

    async def main() -> None:
        endpoint = Endpoint(HERE, list, asyncio.get_running_loop())
        with pytest.raises(urllib.error.HTTPError, match="503"):  # the loop's thread asks, so it cannot answer
            read(endpoint.port)
        with socket.create_connection((HERE.host, endpoint.port)) as client:
            client.sendall(b"GET")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.to_thread(read, endpoint.port)  # the request before was handled
        await asyncio.to_thread(endpoint.close)

    asyncio.run(main())
    assert capfd.readouterr().err == ""


def test_a_defect_in_the_metrics_is_told_once_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    def take() -> Iterable[JobMetric]:
        raise KeyError("x")

    async def main() -> None:
        endpoint = Endpoint(HERE, take, asyncio.get_running_loop())
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError, match="500"):
                await asyncio.to_thread(read, endpoint.port)
        await asyncio.to_thread(endpoint.close)

    asyncio.run(main())
    assert caplog.messages == ["a defect of hvd-elastic (KeyError: 'x'): the job goes on; the metrics are not answered"]


@pytest.mark.parametrize(
    "headers",
    [
        "Accept: application/openmetrics-text; version=\xff",
        "Accept: \xff\xfe",
        "Accept-Encoding: \xff",
        "\xff: \xff",
        "Content-Length: x",
    ],
)
def test_whatever_a_client_wants_it_gets_the_metrics_or_nothing_and_no_traceback(
    headers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> bytes:
        endpoint = Endpoint(HERE, lambda: [JobMetric("step", "Its step", {(): 1})], asyncio.get_running_loop())
        request = f"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n\r\n".encode("latin-1")
        answer = await asyncio.to_thread(answered, endpoint.port, request)
        await asyncio.to_thread(endpoint.close)
        return answer

    answer = asyncio.run(main())
    assert capfd.readouterr().err == ""
    assert answer.endswith(b"\nhvd_elastic_step 1.0\n")
    assert b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer


def answered(port: int, request: bytes) -> bytes:
    with socket.create_connection((HERE.host, port), timeout=10) as client:
        client.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while more := client.recv(65536):
                answer += more
        return answer


@pytest.mark.parametrize("said", [b"", b"GET /metrics HT"], ids=["nothing", "half a request"])
@pytest.mark.parametrize("crowd", [20, 3 * MOST])
def test_however_many_clients_ask_for_nothing_every_scrape_is_answered(
    crowd: int, said: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    def scraped(port: int) -> list[str]:
        with contextlib.ExitStack() as stack:
            for _ in range(crowd):
                stack.enter_context(socket.create_connection((HERE.host, port), timeout=10)).sendall(said)
            return [read(port) for _ in range(6)]

    async def main() -> list[str]:
        endpoint = Endpoint(HERE, lambda: [JobMetric("step", "Its step", {(): 1})], asyncio.get_running_loop())
        found = await asyncio.to_thread(scraped, endpoint.port)
        await asyncio.to_thread(endpoint.close)
        return found

    assert all("hvd_elastic_step 1.0" in each for each in asyncio.run(main()))
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    async def main() -> None:
        Endpoint(ListenAddress("127.0.0.1", taken.getsockname()[1]), list, asyncio.get_running_loop())

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="name another port"):
        asyncio.run(main())


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_a_host_that_is_no_address_of_this_machine_is_refused_in_one_line(host: str) -> None:
    async def main() -> None:
        Endpoint(ListenAddress(host, 0), list, asyncio.get_running_loop())

    with pytest.raises(UsageError, match=f"^--metrics {host}:0: "):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:0", ("::1", 0)),
        (":1", ("127.0.0.1", 1)),
    ],
)
def test_without_a_host_only_this_machine_is_answered(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "1.2.3.4", "65536", "host:", "-1", "١"])
def test_a_malformed_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--metrics .*: write \[HOST:\]PORT"):
        listen_address(text)

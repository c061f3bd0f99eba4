"""The port at which an agent answers Prometheus, over real connections, in the agent's own loop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hvd_elastic_ext.agent.descriptors import DescriptorLoop
from hvd_elastic_ext.agent.metrics import Answer, MetricsPort
from hvd_elastic_ext.core.connections import MOST, REQUEST_S

ASK = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"


class Loop(DescriptorLoop):
    """A loop with a clock that is set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def now(self) -> float:
        return self.time


@contextmanager
def opened(body: bytes = b"figures\n") -> Iterator[tuple[Loop, MetricsPort]]:
    def answer() -> Answer:
        return 200, body, "text/plain"

    loop = Loop()
    port = MetricsPort(loop, "127.0.0.1:0", answer)
    try:
        yield loop, port
    finally:
        port.close()


def connected(port: MetricsPort) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port.port), timeout=10)
    client.setblocking(False)
    return client


def answered(loop: Loop, client: socket.socket, ask: bytes) -> bytes:
    """All that the client gets until its connection ends."""
    client.sendall(ask)
    got = b""
    for _ in range(10_000):
        loop.look(0.01)
        with contextlib.suppress(BlockingIOError):
            while piece := client.recv(1 << 16):
                got += piece
            return got
    raise AssertionError("the connection does not end")


def test_a_request_gets_the_figures_with_their_type_and_the_connection_ends() -> None:
    with opened() as (loop, port), connected(port) as client:
        head, _, body = answered(loop, client, ASK).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain" in head
    assert body == b"figures\n"


def test_an_answer_that_is_larger_than_the_kernel_takes_at_once_arrives_whole() -> None:
    body = b"x" * (16 << 20)
    with opened(body) as (loop, port), connected(port) as client:
        assert answered(loop, client, ASK).partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (b"GET /else HTTP/1.1\r\n\r\n", 404),
        (b"PUT /metrics HTTP/1.1\r\n\r\n", 405),
        (b"BREW /metrics HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_for_figures_is_refused(ask: bytes, status: int) -> None:
    with opened() as (loop, port), connected(port) as client:
        assert answered(loop, client, ask).startswith(b"HTTP/1.1 %d " % status)


def test_a_client_that_says_nothing_is_disconnected_in_time() -> None:
    with opened() as (loop, port), connected(port) as client:
        while port.due() is None:
            loop.look(0.01)
        assert port.due() == REQUEST_S
        loop.time = REQUEST_S
        port.tick()
        client.setblocking(True)
        assert client.recv(1) == b""
        assert port.due() is None


def test_clients_that_hold_all_places_keep_nobody_out() -> None:
    with opened() as (loop, port), contextlib.ExitStack() as held:
        for _ in range(3 * MOST):
            held.enter_context(connected(port))
            loop.look(10)
        with connected(port) as client:
            assert answered(loop, client, ASK).endswith(b"figures\n")


def test_figures_that_cannot_be_made_are_said_once_and_do_not_end_the_agent(capfd: pytest.CaptureFixture[str]) -> None:
    def answer() -> Answer:
        raise RuntimeError("the driver has gone")

    loop = Loop()
    with contextlib.closing(MetricsPort(loop, "127.0.0.1:0", answer)) as port:
        for _ in range(2):
            with connected(port) as client:
                assert answered(loop, client, ASK).startswith(b"HTTP/1.1 500 ")
    assert capfd.readouterr().err.count("figures for Prometheus: RuntimeError: the driver has gone") == 1


def test_a_port_in_use_and_what_is_no_address_are_refused() -> None:
    with opened() as (loop, port):
        with pytest.raises(OSError, match="in use"):
            MetricsPort(loop, f"127.0.0.1:{port.port}", lambda: (200, b"", ""))
        for wrong in ("localhost:1", "127.0.0.1:x", "127.0.0.1", "127.0.0.1:70000"):
            with pytest.raises((OSError, ValueError)):
                MetricsPort(loop, wrong, lambda: (200, b"", ""))

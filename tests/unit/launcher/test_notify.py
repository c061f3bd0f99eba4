"""Telling a worker that hosts have changed."""

from __future__ import annotations

import hashlib
import hmac
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from horovod.runner.elastic.worker import HostUpdateResult, WorkerNotificationService

from hvd_elastic_ext.launcher.horovod_notify import WorkerClient

KEY = b"k" * 32


class Heard:
    """Stands in for Horovod's notification manager."""

    def __init__(self) -> None:
        self.updates: list[tuple[int, Any]] = []

    def handle_hosts_updated(self, timestamp: int, result: Any) -> None:
        self.updates.append((timestamp, result))


class Code:
    """Runs code when it is unpickled, as an attacker's would."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (exec, ("raise SystemExit('code was run')",))


def signed(message: bytes, key: bytes = KEY) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest() + struct.pack("i", len(message)) + message


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], tuple[str, int]]]:
    """Make a server that gives one connection the same answer, whatever it asks."""
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> tuple[str, int]:
        server = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with server, server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(answer)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return ("127.0.0.1", server.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(10)


def test_horovods_own_service_hears_it() -> None:
    heard = Heard()
    service = WorkerNotificationService(KEY, "lo", heard)
    try:
        WorkerClient(service.addresses()["lo"], KEY).notify_hosts_updated(7, HostUpdateResult.mixed)
    finally:
        service.shutdown()
    assert heard.updates == [(7, HostUpdateResult.mixed)]


def test_the_answer_is_not_unpickled(answering: Callable[[bytes], tuple[str, int]]) -> None:
    WorkerClient([answering(signed(pickle.dumps(Code())))], KEY).notify_hosts_updated(7, HostUpdateResult.mixed)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "ended before"),
        (b"x" * 33, "ended before"),
        (signed(b"ok")[:-1], "ended before"),
        (signed(b"ok", b"another key"), "another key"),
        (b"x" * 32 + struct.pack("i", -1), "-1 bytes"),
        (b"x" * 32 + struct.pack("i", 2**31 - 1), "2147483647 bytes"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_the_connection(
    answering: Callable[[bytes], tuple[str, int]], answer: bytes, why: str
) -> None:
    with pytest.raises(OSError, match=why):
        WorkerClient([answering(answer)], KEY).notify_hosts_updated(7, HostUpdateResult.mixed)


def test_a_worker_that_is_stopped_holds_nobody_up_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts; nobody answers
        client = WorkerClient([silent.getsockname()], KEY, timeout_s=0.05)
        with pytest.raises(OSError, match="timed out"):
            client.notify_hosts_updated(7, HostUpdateResult.mixed)


def test_the_next_address_is_tried(answering: Callable[[bytes], tuple[str, int]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    WorkerClient([nobody, answering(signed(b"ok"))], KEY).notify_hosts_updated(7, HostUpdateResult.mixed)


def test_no_address_at_all_is_said() -> None:
    with pytest.raises(OSError, match="registered no address"):
        WorkerClient([], KEY).notify_hosts_updated(7, HostUpdateResult.mixed)

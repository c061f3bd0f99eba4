"""The figures of an agent, and the port at which it answers Prometheus, over real connections, in its own loop."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hvd_elastic_ext.agent.descriptors import DescriptorLoop
from hvd_elastic_ext.agent.load import Gpu
from hvd_elastic_ext.agent.metrics import Answer, Figures, MetricsPort
from hvd_elastic_ext.agent.slots.slot import Slot
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


# --- the figures of an agent -----------------------------------------------------------------------------


class Host:
    """Shares that grow with each look."""

    looks = 0

    def look(self, _: float) -> dict[str, float]:
        self.looks += 1
        return {"cpu": self.looks / 10, "memory": 0.5}


class Devices:
    def look(self) -> list[Gpu]:
        return [Gpu("0", 0.25, 1000, 4000), Gpu("1", 1.0, 0, 4000)]


class Agent(Loop):
    """As much of an agent as slots and figures use."""

    memory: Any = None
    keys: Any = None
    heartbeats = 7

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[int, Slot] = {}

    def tell(self, event: str, **fields: object) -> None: ...
    def warn(self, problem: str) -> None: ...
    def lost_supervisor(self) -> None: ...


@contextmanager
def figures(**found: Any) -> Iterator[tuple[Agent, Figures]]:
    agent = Agent()
    job: Any = SimpleNamespace(names=("digits", "h1"), connected=True)
    yield agent, Figures(agent, job, usage=found.get("usage", Host()), gpus=found.get("gpus", Devices()))


def read(told: Figures) -> dict[str, dict[tuple[str, ...], float]]:
    status, text, kind = told.answer()
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            name, labels = sample.name.removeprefix("hvd_elastic_agent_"), dict(sorted(sample.labels.items()))
            found.setdefault(name, {})[tuple(labels.values())] = sample.value
    return found


def test_an_agent_tells_its_job_and_host_its_heartbeats_and_that_nothing_runs_yet() -> None:
    with figures() as (_, told):
        found = read(told)
    assert found["info"] == {("h1", "digits"): 1}
    assert (found["connected"], found["heartbeats_total"]) == ({(): 1}, {(): 7})
    assert found["processes"] == dict.fromkeys([("booting",), ("parked",), ("live",), ("done",), ("ending",)], 0)


def test_commit_memory_is_told_by_slot_as_what_it_takes_of_the_machine() -> None:
    with figures() as (agent, told):
        slot = agent.slots[3] = Slot(3, agent)
        first, *_ = slot.memory()
        assert read(told)["commit_memory_bytes"] == {("3",): 0}
        os.ftruncate(first, 1 << 20)
        os.pwrite(first, b"x" * 8192, 0)
        assert read(told)["commit_memory_bytes"] == {("3",): 8192}
        slot._release()


def test_processes_are_counted_by_what_they_are_at_and_silence_is_told_by_slot() -> None:
    with figures() as (agent, told):
        agent.time = 100.0
        for number, status in enumerate(
            (
                {"parked": False, "done": False, "generation": None},
                {"parked": True, "done": False, "generation": None},
                {"parked": False, "done": False, "generation": 4},
                {"parked": False, "done": True, "generation": 4},
            )
        ):
            slot = agent.slots[number] = Slot(number, agent)
            slot._run = SimpleNamespace(code=None)  # type: ignore[assignment]
            worker: Any = SimpleNamespace(**status, heartbeat={"step": 1}, age=lambda now: now - 98.5)
            slot.worker_link = SimpleNamespace(worker=worker)  # type: ignore[assignment]
        agent.slots[9] = Slot(9, agent)
        agent.slots[9]._run = SimpleNamespace(code=1)  # type: ignore[assignment]
        found = read(told)
    assert found["processes"] == dict.fromkeys([("booting",), ("parked",), ("live",), ("done",), ("ending",)], 1)
    assert found["heartbeat_age_seconds"] == {(str(number),): 1.5 for number in range(4)}


def test_the_host_is_looked_at_once_a_second_at_most_and_its_gpus_from_the_second_time_on() -> None:
    with figures() as (agent, told):
        first = read(told)
        again = read(told)
        agent.time = 1.0
        later = read(told)
    assert first["cpu_ratio"] == again["cpu_ratio"] == {(): 0.1}
    assert later["cpu_ratio"] == {(): 0.2}
    assert "gpu_busy_ratio" not in first
    assert later["gpu_busy_ratio"] == {("0",): 0.25, ("1",): 1}
    assert later["gpu_memory_used_bytes"] == {("0",): 1000, ("1",): 0}
    assert later["gpu_memory_bytes"] == {("0",): 4000, ("1",): 4000}

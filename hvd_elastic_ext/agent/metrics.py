"""The agent's figures for Prometheus, and the port at which Prometheus reads them.

This module is loaded only in an agent whose job names such a port, and ``prometheus-client``, which loads slowly, only
at the first request. A host that was installed by hand may lack it.

Names follow Prometheus' conventions. Labels are slots, devices and states: their number is small and does not grow.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hvd_elastic_ext.agent.descriptors import EventLoop, warn
from hvd_elastic_ext.agent.host_facts import devices
from hvd_elastic_ext.agent.load import Gpu, Gpus, Usage
from hvd_elastic_ext.agent.ports import Client, HttpPort, Request, response
from hvd_elastic_ext.agent.slots.slot import STATES, Slot
from hvd_elastic_ext.core.connections import MOST

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "hvd_elastic_agent_"
APART_S: Final = 1.0
"""Shortest time in seconds between two measurements of the host."""

Answer = tuple[int, bytes, str]
"""HTTP status, body, type of the body."""


class MeasuredAgent(EventLoop, Protocol):
    """What figures use of the agent."""

    @property
    def slots(self) -> Mapping[int, Slot]: ...
    @property
    def heartbeats(self) -> int: ...


class MeasuredJob(Protocol):
    """What figures use of the agent's job."""

    @property
    def names(self) -> tuple[str, str]: ...
    @property
    def connected(self) -> bool: ...
    def warn(self, problem: str) -> None: ...


class Figure(NamedTuple):
    """One figure of Prometheus: a gauge, or a counter."""

    name: str
    words: str
    samples: Mapping[tuple[str, ...], float]
    """Its values, by the values of its labels."""
    labels: tuple[str, ...] = ()
    counts: bool = False
    """Whether it is a counter."""


class Figures:
    """The figures of one agent. ``usage`` and ``gpus`` measure the host."""

    def __init__(
        self, agent: MeasuredAgent, job: MeasuredJob, *, usage: Usage | None = None, gpus: Gpus | None = None
    ) -> None:
        self._agent, self._job = agent, job
        self._usage = Usage() if usage is None else usage
        self._gpus = gpus
        self._looked_at: float | None = None
        self._busy: Mapping[str, float] = {}
        self._devices: list[Gpu] = []

    def answer(self) -> Answer:
        """Return all present figures as an answer to a request."""
        try:
            return 200, *_exposed(self.present())
        except ImportError as error:
            self._job.warn(f"--agent-metrics: {error}; install prometheus-client on host {self._job.names[1]}")
            return 500, b"prometheus-client is missing\n", "text/plain"

    def present(self) -> Iterator[Figure]:
        """Yield the present figures."""
        yield from self._of_the_agent()
        yield from self._of_slots()
        yield from self._of_the_host()

    def _of_the_agent(self) -> Iterator[Figure]:
        yield Figure("info", "The job and the host of this agent", {self._job.names: 1}, ("name", "host"))
        yield Figure("connected", "1 while a launcher is connected", {(): float(self._job.connected)})
        yield Figure("heartbeats", "Heartbeat messages to the launcher", {(): self._agent.heartbeats}, counts=True)

    def _of_slots(self) -> Iterator[Figure]:
        slots, now = self._agent.slots.items(), self._agent.now()
        states = dict.fromkeys(STATES, 0.0)
        for _, slot in slots:
            if slot.state:
                states[slot.state] += 1
        yield _by("state", "processes", "Training processes, by state", states)
        ages = {str(number): age for number, slot in slots if (age := slot.heartbeat_age(now)) is not None}
        yield _by("slot", "heartbeat_age_seconds", "Since a process sent a heartbeat", ages)
        held = {str(number): float(slot.commit_bytes) for number, slot in slots}
        yield _by("slot", "commit_memory_bytes", "Memory of this machine that a slot's commits take", held)

    def _of_the_host(self) -> Iterator[Figure]:
        now = self._agent.now()
        if self._looked_at is None or now >= self._looked_at + APART_S:
            first, self._looked_at = self._looked_at is None, now
            self._busy = self._usage.look(now)
            if not first:  # not at the first look: an unused driver starts slowly
                self._gpus = Gpus(devices()) if self._gpus is None else self._gpus
                self._devices = self._gpus.look()
        for name, words in (("cpu", "processors that are busy"), ("memory", "memory in use")):
            if name in self._busy:
                yield Figure(f"{name}_ratio", f"Share of the {words}", {(): self._busy[name]})
        if self._devices:
            busy = {gpu.name: gpu.busy for gpu in self._devices}
            yield _by("gpu", "gpu_busy_ratio", "Share of the last moments in which a GPU computed", busy)
            used = {gpu.name: float(gpu.used) for gpu in self._devices}
            yield _by("gpu", "gpu_memory_used_bytes", "Memory of a GPU that is in use", used)
            whole = {gpu.name: float(gpu.memory) for gpu in self._devices}
            yield _by("gpu", "gpu_memory_bytes", "Memory of a GPU", whole)


def _by(label: str, name: str, words: str, samples: Mapping[str, float]) -> Figure:
    return Figure(name, words, {(value,): sample for value, sample in samples.items()}, (label,))


def _exposed(figures: Iterable[Figure]) -> tuple[bytes, str]:
    """The figures in the format of Prometheus, and its type. Raises ``ImportError`` without its library."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
    from prometheus_client.registry import Collector

    class Present(Collector):
        def collect(self) -> Iterator[Metric]:
            for figure in figures:
                kind: type[CounterMetricFamily | GaugeMetricFamily]
                kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
                family = kind(PREFIX + figure.name, figure.words, labels=figure.labels)
                for values, sample in figure.samples.items():
                    family.add_metric(values, sample)
                yield family

    registry = CollectorRegistry()
    registry.register(Present())
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


# --- the port --------------------------------------------------------------------------------------------


PATH: Final = "/metrics"
_PORTS: Final = range(65536)


class MetricsPort(HttpPort):
    """The port. ``address``: HOST:PORT, with an address of this machine. ``answer`` returns the answer to each request.

    Raises ``OSError`` and ``ValueError`` if it cannot listen there.
    """

    def __init__(self, loop: EventLoop, address: str, answer: Callable[[], Answer]) -> None:
        self._figures = answer
        self._warned: set[type[Exception]] = set()
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.inet_pton(family, host)  # no names: to resolve one takes time
        if int(port) not in _PORTS:
            raise ValueError(port)
        listener = socket.create_server((host, int(port)), family=family, backlog=MOST)
        super().__init__(loop, listener, most=MOST, replaces_oldest=True)

    def _asked(self, client: Client, request: Request) -> None:
        self._reply(client, self._answered(request))

    def _answered(self, request: Request) -> bytes:
        if request.method != "GET":
            return response(405)
        if request.path.partition("?")[0] != PATH:
            return response(404)
        try:
            status, body, kind = self._figures()
        except Exception as error:  # noqa: BLE001 - a driver's, say: it is not worth the agent and the training here
            if type(error) not in self._warned:
                self._warned.add(type(error))
                warn(f"figures for Prometheus: {type(error).__name__}: {error}")
            return response(500)
        return response(status, body, kind)


def open_port(agent: MeasuredAgent, job: MeasuredJob, address: str) -> MetricsPort | None:
    """Answer Prometheus at ``address``. If that fails, say why and return None: the agent continues."""
    _, host = job.names
    try:
        port = MetricsPort(agent, address, Figures(agent, job).answer)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else "that is not an ADDRESS:PORT"
        warn(f"--agent-metrics {address}: {reason}; host {host} goes on without figures")
        return None
    if address.endswith(":0"):
        warn(f"host {host} answers Prometheus at port {port.port}")
    return port

"""The agent's figures as text for Prometheus. Loads ``prometheus-client``, so it is imported at the first request.

Names follow Prometheus' conventions. Labels are slots, devices and states: their number is small and does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from hvd_elastic_ext.agent.host_facts import devices
from hvd_elastic_ext.agent.load import Gpu, Gpus, Usage
from hvd_elastic_ext.agent.metrics_port import Answer
from hvd_elastic_ext.agent.slots.slot import STATES

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.job import JoinedJob
    from hvd_elastic_ext.agent.loop import Agent

PREFIX: Final = "hvd_elastic_agent_"
APART_S: Final = 1.0
"""Shortest time in seconds between two measurements of the host."""

Samples = Mapping[str, float]


class Figures(Collector):
    """The figures of one agent. ``usage`` and ``gpus`` measure the host."""

    def __init__(self, agent: Agent, job: JoinedJob, *, usage: Usage | None = None, gpus: Gpus | None = None) -> None:
        self._agent, self._job = agent, job
        self._usage = Usage() if usage is None else usage
        self._gpus = gpus
        self._looked_at: float | None = None
        self._busy: Samples = {}
        self._devices: list[Gpu] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def answer(self) -> Answer:
        """Return all figures as an answer to a request."""
        return 200, generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because the set of figures is known only when they are collected."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the present figures."""
        yield from self._of_the_agent()
        yield from self._of_slots()
        yield from self._of_the_host()

    def _of_the_agent(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(f"{PREFIX}info", "The job and the host of this agent", labels=("name", "host"))
        info.add_metric(self._job.names, 1)
        yield info
        yield GaugeMetricFamily(f"{PREFIX}connected", "1 while a launcher is connected", float(self._job.connected))
        yield CounterMetricFamily(f"{PREFIX}heartbeats", "Heartbeat messages to the launcher", self._agent.heartbeats)

    def _of_slots(self) -> Iterator[Metric]:
        slots, now = self._agent.slots.items(), self._agent.now()
        states = dict.fromkeys(STATES, 0.0)
        for _, slot in slots:
            if slot.state:
                states[slot.state] += 1
        yield _gauge("processes", "Training processes, by state", "state", states)
        ages = {str(number): age for number, slot in slots if (age := slot.heartbeat_age(now)) is not None}
        yield _gauge("heartbeat_age_seconds", "Since a process sent a heartbeat", "slot", ages)
        held = {str(number): float(slot.commit_bytes) for number, slot in slots}
        yield _gauge("commit_memory_bytes", "Memory of this machine that a slot's commits take", "slot", held)

    def _of_the_host(self) -> Iterator[Metric]:
        now = self._agent.now()
        if self._looked_at is None or now >= self._looked_at + APART_S:
            first, self._looked_at = self._looked_at is None, now
            self._busy = self._usage.look(now)
            if not first:  # not at the first look: an unused driver starts slowly
                self._gpus = Gpus(devices()) if self._gpus is None else self._gpus
                self._devices = self._gpus.look()
        for name, words in (("cpu", "processors that are busy"), ("memory", "memory in use")):
            if name in self._busy:
                yield GaugeMetricFamily(f"{PREFIX}{name}_ratio", f"Share of the {words}", self._busy[name])
        if self._devices:
            busy = {gpu.name: gpu.busy for gpu in self._devices}
            yield _gauge("gpu_busy_ratio", "Share of the last moments in which a GPU computed", "gpu", busy)
            used = {gpu.name: float(gpu.used) for gpu in self._devices}
            yield _gauge("gpu_memory_used_bytes", "Memory of a GPU that is in use", "gpu", used)
            whole = {gpu.name: float(gpu.memory) for gpu in self._devices}
            yield _gauge("gpu_memory_bytes", "Memory of a GPU", "gpu", whole)


def _gauge(name: str, words: str, label: str, samples: Samples) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, words, labels=(label,))
    for key, value in samples.items():
        family.add_metric((key,), value)
    return family

"""The figures of an agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hvd_elastic_ext.agent.load import Gpu
from hvd_elastic_ext.agent.metrics import Figures
from hvd_elastic_ext.agent.slots.slot import Slot
from tests.unit.agent.test_metrics_port import Loop


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
    warm: Any = None
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

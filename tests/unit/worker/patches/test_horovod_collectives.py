"""Horovod's functions as scripts find them: recorded, replayed, or left alone. Real ones: in the integration tests."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.calls import calls as all_calls
from hvd_elastic_ext.worker.calls.calls import Calls
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.patches import horovod_collectives


class Horovod(ModuleType):
    """Two ranks, of which this is one: a sum is twice what it was called with."""

    def __init__(self) -> None:
        super().__init__("horovod.torch")
        self.done: list[str] = []
        self.handles: dict[int, torch.Tensor] = {}

    def allreduce(self, tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
        self.done.append("allreduce")
        return 2 * tensor

    def allreduce_async_(self, tensor: torch.Tensor, name: str | None = None) -> int:
        self.done.append("allreduce_async_")
        tensor *= 2
        self.handles[len(self.done)] = tensor
        return len(self.done)

    def synchronize(self, handle: int) -> torch.Tensor:
        return self.handles.pop(handle)

    def poll(self, handle: int) -> bool:
        return handle in self.handles

    def allgather(self, tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
        self.done.append("allgather")
        return torch.cat([tensor, tensor])

    def broadcast_object(self, obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
        self.done.append("broadcast_object")
        return obj

    def broadcast_parameters(self, params: Any, root_rank: int) -> None:
        self.done.append("broadcast_parameters")

    def barrier(self) -> None:
        self.done.append("barrier")


class Process(SimpleNamespace):
    """What the wrappers need of a process."""

    came_later = False

    def __init__(self) -> None:
        super().__init__(barriers=[], left=[])

    def pass_barrier(self, call: int, number: int) -> None:
        self.barriers.append((call, number))

    def leave_barriers(self, call: int) -> None:
        self.left.append(call)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    found = Process()
    monkeypatch.setitem(sys.modules, horovod_collectives.PUBLIC_MODULES[0], ModuleType("ours"))
    monkeypatch.setitem(sys.modules, "horovod.torch.mpi_ops", SimpleNamespace(size=lambda: 2))
    monkeypatch.setattr(horovod_collectives.standby, "current", lambda: found)
    monkeypatch.setattr(horovod_collectives, "_told_sizes", set())
    return found


@pytest.fixture
def past() -> Iterator[int]:
    descriptor = os.memfd_create("past")
    yield descriptor
    os.close(descriptor)


def begin(monkeypatch: pytest.MonkeyPatch, past: int, *, alone: bool) -> tuple[Any, Calls]:
    """Another process of the slot, and what it finds of Horovod."""
    calls = Calls(past, program="mine", alone=lambda: alone)
    monkeypatch.setattr(all_calls, "_current", [calls])
    hvd: Any = Horovod()
    horovod_collectives.wrap(hvd)
    return hvd, calls


def prologue(hvd: Any) -> list[Any]:
    weights = torch.nn.Parameter(torch.ones(2))
    handle = hvd.allreduce_async_(weights.data, name="weights")
    hvd.poll(handle)
    found = [
        hvd.allreduce(torch.tensor([1.0]), name="one").item(),
        hvd.broadcast_object({"lr": 0.1} if hvd.done else None),
        hvd.synchronize(handle).tolist(),
        weights.tolist(),
        hvd.allgather(torch.tensor([5])).tolist(),
    ]
    hvd.broadcast_parameters({}, root_rank=0)
    hvd.barrier()
    return found


def train() -> None:
    """Stands for a training function."""


def together(monkeypatch: pytest.MonkeyPatch, past: int) -> list[Any]:
    """A first process of the slot, which has met the others: what it got before the first call."""
    hvd, calls = begin(monkeypatch, past, alone=False)
    found = prologue(hvd)
    calls.begin(train)
    calls.met([calls.row()], AloneComms())
    return found


def test_a_process_that_comes_later_gets_the_same_without_horovod(
    monkeypatch: pytest.MonkeyPatch, past: int, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    hvd, calls = begin(monkeypatch, past, alone=False)
    first = prologue(hvd)
    assert first == [2.0, {"lr": 0.1}, [2.0, 2.0], [2.0, 2.0], [5, 5]]
    calls.begin(train)
    calls.met([calls.row()], AloneComms())
    assert process.barriers == []
    assert not caplog.records

    hvd, _ = begin(monkeypatch, past, alone=True)
    assert prologue(hvd) == first
    assert hvd.done == ["broadcast_parameters"]  # a world of one: it keeps its own
    assert process.barriers == [(0, 1)]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("hvd.allgather() returns what it returned to the 2 processes that ran it")


def test_another_call_is_one_line_and_all_that_follow_act_alone(
    monkeypatch: pytest.MonkeyPatch, past: int, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    together(monkeypatch, past)

    hvd, _ = begin(monkeypatch, past, alone=True)
    assert hvd.allreduce(torch.tensor([3.0]), name="other").item() == 6.0
    assert hvd.allreduce(torch.tensor([1.0]), name="one").item() == 2.0
    hvd.barrier()
    assert hvd.done == ["allreduce", "allreduce", "barrier"]
    assert process.left == [0]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("hvd.allreduce(name='other') before the first call acts on this process alone")
    assert "the others called hvd.allreduce_(name='weights') there" in line


def test_within_a_training_function_and_without_our_module_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch, past: int, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    hvd, calls = begin(monkeypatch, past, alone=True)
    calls.begin(train)
    prologue(hvd)
    hvd, calls = begin(monkeypatch, past, alone=False)
    monkeypatch.delitem(sys.modules, horovod_collectives.PUBLIC_MODULES[0])
    prologue(hvd)
    assert not calls._between.record.entries
    assert not caplog.records
    process.came_later = True
    prologue(hvd)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "--adopt" in line


def test_one_behind_in_a_world_does_not_wait_for_ranks_that_have_passed(
    monkeypatch: pytest.MonkeyPatch, past: int, process: Process
) -> None:
    hvd, calls = begin(monkeypatch, past, alone=False)
    assert calls.between is not None
    calls.between.behind = True
    hvd.broadcast_parameters({}, root_rank=0)
    with pytest.raises(StateError, match="would wait for ever"):
        hvd.allreduce(torch.tensor([3.0]))
    assert hvd.done == []


def test_one_behind_in_a_world_does_not_wait_in_a_barrier_that_the_others_have_passed(
    monkeypatch: pytest.MonkeyPatch, past: int, process: Process
) -> None:
    together(monkeypatch, past)

    hvd, calls = begin(monkeypatch, past, alone=False)
    assert calls.between is not None
    calls.between.behind = True
    prologue(hvd)
    assert process.barriers == []
    assert hvd.done == []


def test_a_job_that_is_started_again_gets_what_it_got_after_a_call_that_is_over_and_really_meets_in_barriers(
    monkeypatch: pytest.MonkeyPatch, past: int, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    together(monkeypatch, past)

    hvd, calls = begin(monkeypatch, past, alone=False)
    assert calls.between is not None
    calls.between.together = True
    assert hvd.allreduce_async_(torch.ones(2), name="weights") < 0
    assert hvd.allreduce(torch.tensor([1.0]), name="one").item() == 2.0
    assert hvd.broadcast_object(None) == {"lr": 0.1}
    hvd.allgather(torch.tensor([7]))
    hvd.barrier()
    assert hvd.done == ["barrier"]
    assert hvd.allreduce(torch.tensor([4.0])).item() == 8.0
    line = [record.getMessage() for record in caplog.records][-1]
    assert line.startswith("hvd.allreduce() before the first call runs again")


def test_a_function_keeps_its_name_and_its_errors(monkeypatch: pytest.MonkeyPatch, past: int, process: Process) -> None:
    hvd, _ = begin(monkeypatch, past, alone=False)
    assert hvd.allreduce.__name__ == "allreduce"
    with pytest.raises(TypeError, match="tensor"):
        hvd.allreduce()

"""Many tensors copied at once. What needs a device is in tests/unit/gpu; here a device is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_elastic_ext.worker.commits import copying
from hvd_elastic_ext.worker.commits.copying import copy_batch, pin
from hvd_elastic_ext.worker.commits.memory import open_sides


@pytest.mark.parametrize("initialised", [False, True])
def test_every_source_is_in_its_target_when_it_returns(initialised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    sources = [torch.arange(5.0), torch.ones(2, 3).t(), torch.tensor(7), torch.ones(0), torch.ones(2, dtype=torch.bool)]
    targets = [torch.zeros_like(source) for source in sources]
    places = [target.data_ptr() for target in targets]
    copy_batch(targets, sources)
    assert all(map(torch.equal, targets, sources))
    assert [target.data_ptr() for target in targets] == places


def test_copies_leave_no_trace_in_autograd() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    target = torch.zeros(2)
    copy_batch([target], [weight])
    copy_batch([weight], [torch.full((2,), 3.0)])
    assert not target.requires_grad
    assert (weight.tolist(), weight.is_leaf) == ([3, 3], True)


def test_a_device_copy_waits_for_what_is_being_computed_and_is_done_on_return(played: list[str]) -> None:
    target = torch.zeros(2)
    copying._copy_cuda([(target, torch.ones(2))], torch.device("cpu"))
    assert played == ["own waits for present", "own is done"]
    assert target.tolist() == [1, 1]


def test_a_device_copy_that_is_awaited_later_comes_before_what_the_training_does_next(played: list[str]) -> None:
    later: list[Any] = []
    copying._copy_cuda([(torch.zeros(2), torch.ones(2))], torch.device("cpu"), later)
    assert played == ["own waits for present", "present waits for own"]
    assert [stream.name for stream in later] == ["own"]


def test_an_interrupted_device_copy_is_waited_for_so_that_it_cannot_land_in_a_later_commit(played: list[str]) -> None:
    class Breaks:
        def copy_(self, source: Any, non_blocking: bool) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copying._copy_cuda([(Breaks(), torch.ones(2))], torch.device("cpu"))
    assert played[-1] == "own is done"


def test_memory_is_pinned_only_for_tensors_on_a_device_and_once_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda address, length, flags: calls.append(("pin", address)) or 0,
        cudaHostUnregister=lambda address: calls.append(("unpin", address)) or 0,
    )
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    side, _ = open_sides(None)
    side.reserve(1000)
    there: Any = SimpleNamespace(is_cuda=True)
    pin(side, [torch.ones(1)])
    assert calls == []
    first = side.bytes.untyped_storage().data_ptr()
    pin(side, [torch.ones(1), there])
    pin(side, [there])
    assert calls == [("pin", first)]
    side.reserve(100_000)
    assert calls == [("pin", first), ("unpin", first)]
    pin(side, [there])
    last = side.bytes.untyped_storage().data_ptr()
    assert calls[2:] == [("pin", last)]
    del side
    assert calls[3:] == [("unpin", last)]  # else the device copies to this memory when the address has another


def test_memory_that_cannot_be_pinned_serves_unpinned_and_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    runtime = SimpleNamespace(cudaHostRegister=lambda address, length, flags: calls.append(address) or 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(copying, "_forget_error", lambda: forgotten.append(True))
    forgotten: list[bool] = []
    side, _ = open_sides(None)
    side.reserve(1000)
    there: Any = SimpleNamespace(is_cuda=True)
    pin(side, [there])
    pin(side, [there])
    assert len(calls) == len(forgotten) == 1
    assert "not pinned" in caplog.text
    side.reserve(100_000)  # nothing is undone that was not done

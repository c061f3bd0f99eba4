"""Tensors are pinned from the start of an operation until Horovod no longer holds them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hvd_elastic_ext.worker.comms.pinned_tensors import PinnedLibrary, share_cores

UNPINNED = 1
"""Uses of a tensor that only Python holds."""


class Library:
    """Begins operations without holding anything: every holder of a tensor is a pin."""

    version = (0, 28, 1)

    def __init__(self) -> None:
        self.begun = 0
        self.looked_up = 0
        self.fails = False

    def horovod_torch_allreduce_async_torch_FloatTensor(self, tensor, output, name, process_set=0):
        return self._handle()

    def horovod_torch_grouped_allreduce_async_torch_FloatTensor(self, tensors, outputs, name):
        return self._handle()

    def horovod_torch_poll(self, handle):
        return handle <= self.begun

    def horovod_torch_wait_and_clear(self, handle):
        if self.fails:
            raise RuntimeError("a peer was lost")
        return f"waited for {handle}"

    def __getattribute__(self, name):
        if name == "horovod_torch_poll":
            self.looked_up += 1
        return super().__getattribute__(name)

    def _handle(self):
        if self.fails:
            raise ValueError("duplicate name")
        self.begun += 1
        return self.begun


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def pinned(library) -> PinnedLibrary:
    return PinnedLibrary(library)


def uses(*tensors: Tensor) -> list[int]:
    return [tensor._use_count() for tensor in tensors]


def begin(pinned: PinnedLibrary, tensor: Tensor, output: Tensor) -> int:
    return pinned.horovod_torch_allreduce_async_torch_FloatTensor(tensor, output, "gradient", 0)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_tensors_of_any_type_are_pinned_once_until_their_own_operation_succeeds(pinned, kind):
    tensor, output, both = torch.ones(2, 3).to(kind), torch.ones(()).to(kind), torch.ones(2).to(kind)
    handles = [begin(pinned, tensor, output), begin(pinned, both, both)]
    assert uses(tensor, output, both) == [UNPINNED + 1] * 3
    assert pinned.horovod_torch_wait_and_clear(handles[0]) == f"waited for {handles[0]}"
    assert uses(tensor, output, both) == [UNPINNED, UNPINNED, UNPINNED + 1]


def test_each_tensor_of_a_group_is_pinned(pinned):
    inputs, outputs = [torch.ones(2), torch.ones(3)], (torch.ones(2), torch.ones(3))
    handle = pinned.horovod_torch_grouped_allreduce_async_torch_FloatTensor(inputs, outputs, "group")
    assert uses(*inputs, *outputs) == [UNPINNED + 1] * 4
    pinned.horovod_torch_wait_and_clear(handle)
    assert uses(*inputs, *outputs) == [UNPINNED] * 4


def test_after_a_failure_tensors_stay_pinned_until_the_thread_that_held_them_has_ended(pinned, library):
    tensor, waiting, later = torch.ones(2), torch.ones(2), torch.ones(2)
    handle = begin(pinned, tensor, tensor)
    begin(pinned, waiting, waiting)
    library.fails = True
    for _ in range(2):  # Horovod's own loop may wait for it again
        with pytest.raises(RuntimeError, match="a peer was lost"):
            pinned.horovod_torch_wait_and_clear(handle)
    with pytest.raises(ValueError, match="duplicate name"):
        begin(pinned, later, later)
    assert uses(tensor, waiting, later) == [UNPINNED + 1, UNPINNED + 1, UNPINNED]  # the last one never began
    library.fails, library.begun = False, 0
    assert begin(pinned, later, later) == handle  # another operation of the same number
    pinned.horovod_torch_wait_and_clear(handle)
    assert uses(tensor, waiting, later) == [UNPINNED + 1, UNPINNED + 1, UNPINNED]
    pinned.forget()
    assert uses(tensor, waiting) == [UNPINNED] * 2


def test_a_pin_takes_no_memory_and_leaves_the_tensor_as_it_is(pinned):
    tensor = torch.arange(6.0).view(2, 3).t().requires_grad_()
    address, version = tensor.data_ptr(), tensor._version
    pinned.horovod_torch_wait_and_clear(begin(pinned, tensor, tensor))
    assert (tensor.data_ptr(), tensor._version, tensor.grad) == (address, version, None)
    assert tensor.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_functions_without_tensors_are_looked_up_once_and_other_attributes_each_time(pinned, library):
    assert (pinned.version, pinned.begun) == ((0, 28, 1), 0)
    assert not pinned.horovod_torch_poll(1)
    begin(pinned, torch.ones(1), torch.ones(1))
    assert pinned.horovod_torch_poll(1)
    assert (library.looked_up, pinned.begun) == (1, 1)
    with pytest.raises(AttributeError, match="horovod_torch_no_such_thing"):
        _ = pinned.horovod_torch_no_such_thing


def test_operations_that_begin_are_counted_and_other_calls_are_not(pinned, library):
    tensor = torch.ones(2)
    for _ in range(2):
        begin(pinned, tensor, tensor)
    pinned.horovod_torch_poll(1)
    library.fails = True
    with pytest.raises(ValueError, match="duplicate name"):
        begin(pinned, tensor, tensor)
    assert pinned.operations == 2


def test_each_wait_is_within_the_context_that_was_asked_for(pinned, library):
    seen = []

    @contextmanager
    def noted():
        seen.append("begins")
        try:
            yield
        finally:
            seen.append("ends")

    pinned.around_wait = noted
    library.fails = True
    with pytest.raises(RuntimeError):
        pinned.horovod_torch_wait_and_clear(1)
    assert seen == ["begins", "ends"]


def test_where_ranks_share_cores_a_wait_sleeps_until_the_operation_is_done(pinned, library):
    looks = iter([False, False, True])
    library.horovod_torch_poll = lambda handle: next(looks)
    pinned.asleep = True
    assert pinned.horovod_torch_wait_and_clear(1) == "waited for 1"
    assert next(looks, None) is None


def test_where_each_rank_has_a_core_horovod_waits_by_itself(pinned, library):
    library.horovod_torch_poll = pytest.fail
    assert pinned.horovod_torch_wait_and_clear(1) == "waited for 1"


def test_our_own_operations_are_waited_for_asleep_although_each_rank_has_a_core(monkeypatch, pinned, library):
    from hvd_elastic_ext.worker.comms import horovod

    looks = iter([False, True])
    library.horovod_torch_poll = lambda handle: next(looks)
    monkeypatch.setattr(horovod.mpi_ops, "mpi_lib", pinned)
    monkeypatch.setattr(horovod.mpi_ops, "synchronize", pinned.horovod_torch_wait_and_clear)
    horovod._synchronize(1)
    assert next(looks, None) is None
    assert not pinned.asleep, "the script's are not"


@pytest.mark.parametrize(
    ("limit", "ranks", "shared"),
    [("150000 100000", 2, True), ("150000 100000", 1, False), ("max 100000", None, False), ("", None, False)],
)
def test_cores_are_those_that_the_container_may_use(tmp_path: Path, limit, ranks, shared):
    cores = len(os.sched_getaffinity(0))
    (tmp_path / "cpu.max").write_text(limit)
    assert share_cores(ranks or cores, quota=str(tmp_path / "cpu.max")) is shared
    assert share_cores(cores + 1, quota=str(tmp_path / "none"))

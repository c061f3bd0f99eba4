"""What each library's collectives return outside of the training functions, to those that come later, too.

Horovod is a fake one of two ranks, with the names and arguments of the real one; that: in the integration tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.calls import calls as all_calls
from hvd_elastic_ext.worker.calls.calls import Calls
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.patches import horovod_collectives
from hvd_elastic_ext.worker.state import rehearsal
from tests.support.tensorflow import load, needs_tensorflow


class OfTorch(ModuleType):
    """``horovod.torch``: this rank, and another one with the same values."""

    def __init__(self) -> None:
        super().__init__("horovod.torch")
        self.done: list[str] = []

    def untraced(self, function: Any) -> Any:
        return function

    def make(self, values: Any, kind: str = "float32") -> Any:
        return torch.tensor(values, dtype=getattr(torch, kind))

    def variable(self, values: Any) -> Any:
        return torch.nn.Parameter(torch.tensor(values))

    def allreduce(self, tensor: Any, average: Any = None, name: str | None = None) -> Any:
        self.done.append("allreduce")
        return tensor + tensor

    def grouped_allreduce(self, tensors: Any, average: Any = None, name: str | None = None) -> Any:
        self.done.append("grouped_allreduce")
        return [each + each for each in tensors]

    def allgather(self, tensor: Any, name: str | None = None) -> Any:
        self.done.append("allgather")
        return torch.cat([tensor, tensor])

    def alltoall(self, tensor: Any, splits: Any = None, name: str | None = None) -> Any:
        self.done.append("alltoall")
        return (torch.cat([tensor[:1]] * 2), splits)

    def broadcast(self, tensor: Any, root_rank: int, name: str | None = None) -> Any:
        self.done.append("broadcast")
        return tensor * 5

    def broadcast_object(self, obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
        self.done.append("broadcast_object")
        return obj

    def allgather_object(self, obj: Any, name: str | None = None) -> Any:
        self.done.append("allgather_object")
        return [obj, obj]

    def broadcast_(self, tensor: Any, root_rank: int, name: str | None = None) -> Any:
        self.done.append("broadcast_")
        tensor.data.mul_(3)
        return tensor

    def broadcast_into(self, variable: Any) -> None:
        self.broadcast_(variable, 0, name="into")


class OfTensorFlow(OfTorch):
    """``horovod.tensorflow``."""

    def __init__(self) -> None:
        ModuleType.__init__(self, "horovod.tensorflow")
        self.done = []
        self.tf: Any = load()

    def untraced(self, function: Any) -> Any:
        return self.tf.autograph.experimental.do_not_convert(function)

    def make(self, values: Any, kind: str = "float32") -> Any:
        return self.tf.constant(values, dtype=kind)

    def variable(self, values: Any) -> Any:
        return self.tf.Variable(values)

    def allreduce(self, tensor: Any, average: Any = None, name: str | None = None) -> Any:
        if isinstance(tensor, self.tf.IndexedSlices):  # as in Horovod: by the name that is wrapped
            both = self.allgather(tensor.values)
            return self.tf.IndexedSlices(both, self.allgather(tensor.indices), dense_shape=tensor.dense_shape)
        return super().allreduce(tensor, name=name)

    def _allreduce_cond(self, tensor: Any) -> Any:
        return self.allreduce(tensor)

    def allgather(self, tensor: Any, name: str | None = None) -> Any:
        self.done.append("allgather")
        return self.tf.concat([tensor, tensor], 0)

    def alltoall(self, tensor: Any, splits: Any = None, name: str | None = None) -> Any:
        self.done.append("alltoall")
        return (self.tf.concat([tensor[:1]] * 2, 0), splits)

    def broadcast_(self, variables: Any, root_rank: int, name: str | None = None) -> Any:
        self.done.append("broadcast_")
        for each in variables:
            each.assign(each * 3)
        return [each.read_value() for each in variables]

    def broadcast_into(self, variable: Any) -> None:
        self.broadcast_([variable], 0, name="into")

    def broadcast_variables(self, variables: Any, root_rank: int) -> None:
        self.done.append("broadcast_variables")
        for each in variables:
            each.assign(each * 7)


class Process(SimpleNamespace):
    """What the wrappers need of a process."""

    came_later = False

    def leave_barriers(self, call: int) -> None:
        """Nobody waits."""


Begin = Callable[..., Any]


@pytest.fixture
def past() -> Iterator[int]:
    descriptor = os.memfd_create("past")
    yield descriptor
    os.close(descriptor)


def beginning(monkeypatch: pytest.MonkeyPatch, past: int, kind: type[OfTorch]) -> Begin:
    """Return what begins another process of the slot; it returns that process's Horovod."""
    for name in horovod_collectives.PUBLIC_MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType("ours"))
    for name in ("horovod.torch", "horovod.tensorflow"):
        monkeypatch.setitem(sys.modules, f"{name}.mpi_ops", SimpleNamespace(size=lambda: 2))
    monkeypatch.setattr(horovod_collectives.standby, "current", Process)
    for name, empty in (("_told_sizes", set()), ("_told_graphs", set()), ("_kept_own", [])):
        monkeypatch.setattr(horovod_collectives, name, empty)

    def begin(*, alone: bool) -> Any:
        calls = Calls(past, program="mine", alone=lambda: alone)
        monkeypatch.setattr(all_calls, "_current", [calls])
        hvd = kind()
        horovod_collectives.wrap(hvd, untraced=hvd.untraced)
        return hvd

    return begin


def trains() -> None:
    """The first call begins, and the ranks meet."""
    calls = all_calls.current()
    calls.begin(trains)
    calls.met([calls.row()], AloneComms())


@pytest.fixture(params=["torch", pytest.param("tensorflow", marks=needs_tensorflow)])
def begin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, past: int) -> Begin:
    return beginning(monkeypatch, past, OfTorch if request.param == "torch" else OfTensorFlow)


def prologue(hvd: Any) -> list[Any]:
    """What a script may do before its loop: all that it gets, and of which types."""
    variable = hvd.variable([1.0, 2.0])
    hvd.broadcast_into(variable)
    found = [
        hvd.allreduce(hvd.make([1.5]), name="mean"),
        hvd.allreduce(hvd.make(2, "int64")),
        hvd.allreduce(hvd.make([0.5, 0.25], "bfloat16")),
        *hvd.grouped_allreduce([hvd.make([1.0]), hvd.make([[2.0, 3.0]], "float64")]),
        hvd.allgather(hvd.make([[1, 2]], "int32")),
        *hvd.alltoall(hvd.make([4.0, 5.0]), splits=hvd.make([1, 1], "int32")),
        hvd.broadcast(hvd.make([2.0]), root_rank=0),
        variable,
    ]
    plain = [(type(each).__name__, str(each.dtype), [*each.shape], values_of(each)) for each in found]
    return [*plain, hvd.broadcast_object({"lr": 0.1, "layers": (1, 2)}), hvd.allgather_object([None])]


def values_of(tensor: Any) -> Any:
    wide = tensor.double() if isinstance(tensor, torch.Tensor) else sys.modules["tensorflow"].cast(tensor, "float64")
    return wide.tolist() if isinstance(wide, torch.Tensor) else wide.numpy().tolist()


def test_one_that_comes_later_gets_the_same_of_the_same_types_without_horovod(begin: Begin) -> None:
    hvd = begin(alone=False)
    first = prologue(hvd)
    assert len(hvd.done) == 10
    trains()

    hvd = begin(alone=True)
    assert prologue(hvd) == first
    assert hvd.done == []


@pytest.mark.parametrize(
    ("given", "name", "why"),
    [
        (([1.0],), "other", "the others called hvd.allreduce(name='mean') there"),
        (([1.0, 2.0],), "mean", "the others passed float32[1], not float32[2]"),
        (([1.0], "float64"), "mean", "the others passed float32[1], not float64[1]"),
    ],
)
def test_another_call_acts_alone_and_so_do_all_after_it_and_one_line_says_so(
    begin: Begin, caplog: pytest.LogCaptureFixture, given: Any, name: str, why: str
) -> None:
    hvd = begin(alone=False)
    hvd.allreduce(hvd.make([1.0]), name="mean")
    trains()

    hvd = begin(alone=True)
    hvd.allreduce(hvd.make(*given), name=name)
    hvd.allreduce(hvd.make([1.0]), name="mean")
    assert hvd.done == ["allreduce"] * 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(f"this process comes later than the others, and {why}")


def test_nothing_is_recorded_or_given_within_a_training_function(begin: Begin) -> None:
    hvd = begin(alone=False)
    trains()
    prologue(hvd)
    assert not all_calls.current()._between.record.entries
    assert len(hvd.done) == 10


def test_a_rehearsal_of_the_training_function_takes_nothing_that_is_for_the_prologue(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hvd = begin(alone=False)
    first = prologue(hvd)
    trains()

    hvd = begin(alone=True)
    with monkeypatch.context() as rehearsing:
        rehearsing.setattr(rehearsal, "_under_way", [None])
        hvd.allreduce(hvd.make([1.0]), name="a step's")
    assert hvd.done == ["allreduce"]
    assert prologue(hvd) == first


def test_without_our_module_one_that_joined_later_is_told_once_which_one_gives_it_the_same(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hvd, late = begin(alone=True), Process(came_later=True)
    for name in horovod_collectives.PUBLIC_MODULES:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(horovod_collectives.standby, "current", lambda: late)
    hvd.allreduce(hvd.make([1.0]))
    hvd.allreduce(hvd.make([1.0]))
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"import hvd_elastic_ext.{hvd.__name__.removeprefix('horovod.')}, or run with --adopt" in line


# --- TensorFlow alone


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch, past: int) -> Begin:
    return beginning(monkeypatch, past, OfTensorFlow)


@needs_tensorflow
def test_a_collective_that_another_one_calls_is_a_part_of_that(tensorflow: Begin) -> None:
    hvd = tensorflow(alone=False)
    hvd.allreduce(hvd.tf.IndexedSlices(hvd.make([1.0]), hvd.make([0], "int64"), dense_shape=hvd.make([4], "int64")))
    hvd._allreduce_cond(hvd.make([1.0]))  # Horovod averages gradients by it
    entries = all_calls.current()._between.record.entries
    assert [each.kind for each in entries] == ["allreduce"]
    assert "it cannot be kept" in entries[0].why
    assert hvd.done == ["allgather", "allgather", "allreduce"]


@needs_tensorflow
def test_small_variables_get_what_was_broadcast_and_large_ones_are_named_unless_a_state_has_them(
    tensorflow: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def script(hvd: Any) -> list[Any]:
        small, large, weights = (hvd.variable([1.0] * count) for count in (2, 1 << 15, 1 << 15))
        hvd.broadcast_variables([small], root_rank=0)
        hvd.broadcast_variables([large, weights], root_rank=0)
        hvd.allreduce(hvd.make([1.0]), name="after")
        return [small, large, weights]

    script(tensorflow(alone=False))
    trains()
    hvd = tensorflow(alone=True)
    small, large, weights = script(hvd)
    assert hvd.done == []
    assert small.numpy().tolist() == [7.0, 7.0]
    assert large.numpy()[0] == 1.0
    assert not caplog.records
    horovod_collectives.tell_of_variables_outside([weights])
    horovod_collectives.tell_of_variables_outside([])
    (line,) = [record.getMessage() for record in caplog.records]
    assert "left variables as this process has made them, such as" in line
    assert "(1 in all)" in line


@needs_tensorflow
def test_variables_may_come_in_any_iterable_and_with_an_open_shape(tensorflow: Begin) -> None:
    def script(hvd: Any) -> list[Any]:
        by_name = {"a": hvd.variable([1.0]), "b": hvd.variable([2.0])}
        open_shape = hvd.tf.Variable([[1.0, 2.0]], shape=[None, 2])
        hvd.broadcast_variables(by_name.values(), 0)
        hvd.broadcast_variables((each for each in by_name.values()), root_rank=0)
        hvd.broadcast_variables(iter([open_shape]), root_rank=0)
        return [each.numpy().tolist() for each in (*by_name.values(), open_shape)]

    assert script(tensorflow(alone=False)) == [[49.0], [98.0], [[7.0, 14.0]]]
    kept = [entry.why for entry in all_calls.current()._between.record.entries]
    assert kept == ["", "", "the size of the variables is not known"]
    trains()
    assert script(tensorflow(alone=True)) == [[49.0], [98.0], [[1.0, 2.0]]]


@needs_tensorflow
def test_a_collective_in_a_graph_is_not_recorded_and_one_line_tells_one_that_comes_later(
    tensorflow: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def script(hvd: Any) -> float:
        @hvd.tf.function
        def mean(tensor: Any) -> Any:
            return hvd.allreduce(tensor, name="in a graph")

        mean(hvd.make([3.0]))
        mean(hvd.make([3.0, 4.0]))  # another graph
        return float(hvd.allreduce(hvd.make([1.0]), name="outside")[0])

    assert script(tensorflow(alone=False)) == 2.0
    trains()
    assert not caplog.records
    assert script(tensorflow(alone=True)) == 2.0
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("hvd.allreduce(name='in a graph') before the first call, in a graph (tf.function), acts on")
    assert "call it outside of the tf.function" in line


@needs_tensorflow
def test_one_behind_in_a_world_makes_no_graph_that_would_wait_for_ranks_that_have_passed(tensorflow: Begin) -> None:
    hvd = tensorflow(alone=False)
    all_calls.current()._between.behind = True
    with pytest.raises(StateError, match="would wait for ever"):
        hvd.tf.function(lambda: hvd.allreduce(hvd.make([1.0])))()

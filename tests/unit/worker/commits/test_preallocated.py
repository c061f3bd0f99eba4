"""Tensors that are there before they are needed."""

from __future__ import annotations

import torch

from hvd_elastic_ext.worker.parts.tensor_trees import Reserve
from hvd_elastic_ext.worker.parts.torch_parts import OptimizerPart, ParameterNames


def test_what_was_stocked_is_given_out_once_and_then_new_ones_are_made() -> None:
    reserve = Reserve()
    pattern = torch.zeros(3, 4)
    [made] = reserve.stock([pattern])
    first, second = reserve.like(pattern), reserve.like(pattern)
    assert first is made
    assert second is not made
    assert second.shape == pattern.shape
    assert second.data_ptr() not in (made.data_ptr(), pattern.data_ptr())


def test_only_what_is_of_the_same_kind_is_given_out() -> None:
    reserve = Reserve()
    [made] = reserve.stock([torch.zeros(3, 4)])
    for other in (torch.zeros(4, 3), torch.zeros(3, 4, dtype=torch.float64), torch.zeros(4, 3).t()):
        given = reserve.like(other)
        assert given is not made
        assert (given.dtype, given.shape, given.stride()) == (other.dtype, other.shape, other.stride())


def test_what_is_dropped_is_not_given_out() -> None:
    reserve = Reserve()
    [made] = reserve.stock([torch.zeros(2)])
    reserve.drop()
    assert reserve.like(torch.zeros(2)) is not made


def test_a_new_optimizer_takes_its_state_from_what_was_made_ready_and_keeps_nothing_else() -> None:
    trained = torch.nn.Parameter(torch.ones(5))
    veteran = torch.optim.Adam([trained])
    trained.grad = torch.ones(5)
    veteran.step()
    names = ParameterNames()
    mine = torch.nn.Parameter(torch.zeros(5))
    part = OptimizerPart(torch.optim.Adam([mine]), names)
    ready = {tensor.data_ptr() for tensor in part.make_ready()}
    assert len(ready) == 2
    part.restore(OptimizerPart(veteran, names).capture())
    state = part.value.state[mine]
    assert {state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr()} == ready
    assert torch.equal(state["exp_avg"], veteran.state[trained]["exp_avg"])
    part.settle()
    assert part.make_ready() == []

"""Trees settled into live ones: what fits is used again, what does not is made anew, or before it is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_elastic_ext.worker.parts.tensor_trees import Pairs, Reserve, fits, settle
from hvd_elastic_ext.worker.parts.torch_parts import OptimizerPart, ParameterNames
from hvd_elastic_ext.worker.sync.exchange import fingerprint


def settled(tree: Any, own: Any) -> Any:
    pairs = Pairs()
    result = settle(tree, own, pairs)
    for target, source in pairs:
        target.copy_(source)
    return result


def test_a_tree_comes_back_whole_and_fitting_tensors_are_used_again() -> None:
    tree = {"a": [torch.ones(2), 3], "b": (torch.zeros(()), {"c": torch.ones(4, dtype=torch.bool)})}
    own = {"a": [torch.zeros(2), 9], "b": (torch.zeros(3), None)}
    result = settled(tree, own)
    assert fingerprint(result) == fingerprint(tree)
    assert result["a"][0] is own["a"][0]
    assert result["b"][0] is not own["b"][0]


@pytest.mark.parametrize("own", [None, 3, [], {}, {"a": None}, {"a": torch.zeros(2), "more": 1}, [torch.zeros(2)]])
def test_whatever_is_there_the_result_is_the_tree_and_shares_no_memory_with_it(own: Any) -> None:
    tree = {"a": torch.ones(2), "b": [torch.ones(1)] * 2}
    result = settled(tree, own)
    before = fingerprint(tree)
    assert fingerprint(result) == before
    result["a"].zero_()
    result["b"][0].zero_()
    result["b"].append(1)
    assert fingerprint(tree) == before


def test_what_was_two_tensors_and_is_one_now_becomes_two_again() -> None:
    now = torch.zeros(2)
    tree = {"fast": torch.ones(2), "slow": torch.full((2,), 2.0)}
    result = settled(tree, {"fast": now, "slow": now.detach()})
    assert fingerprint(result) == fingerprint(tree)
    assert result["fast"] is now


def test_what_was_one_tensor_and_is_two_now_becomes_one_again() -> None:
    one = torch.ones(2)
    result = settled([one, one], [torch.zeros(2), torch.zeros(2)])
    assert result[0] is result[1]


def test_what_shares_memory_with_something_else_by_now_leaves_that_alone() -> None:
    parameter = torch.full((2,), 5.0)
    pairs = Pairs([parameter])
    result = settle([torch.ones(2), torch.full((2,), 5.0)], [parameter.detach(), parameter.detach()], pairs)
    for target, source in pairs:
        target.copy_(source)
    assert [tensor.tolist() for tensor in (parameter, *result)] == [[5.0, 5.0], [1.0, 1.0], [5.0, 5.0]]
    assert result[1].data_ptr() == parameter.data_ptr()  # it did so in the commit, too


@pytest.mark.parametrize(
    ("live", "committed", "expected"),
    [
        (torch.zeros(2), torch.ones(2), True),
        (torch.zeros(2), torch.ones(3), False),
        (torch.zeros(2), torch.ones(2, dtype=torch.float64), False),
        (torch.zeros(2, 3), torch.ones(3, 2).t(), False),
        (torch.zeros(3, 2).t(), torch.ones(3, 2).t(), True),
        (torch.eye(2).to_sparse(), torch.eye(2), False),
        (None, torch.ones(2), False),
        (1.0, torch.ones(()), False),
    ],
)
def test_a_tensor_fits_where_it_can_be_copied_and_stay_what_it_was(live: Any, committed: Any, expected: bool) -> None:
    assert fits(live, committed) is expected


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

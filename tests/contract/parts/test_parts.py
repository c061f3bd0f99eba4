"""What every part promises, tried on each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import write
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.parts.torch_parts import (
    ModelPart,
    OptimizerPart,
    ParameterNames,
    ScalerPart,
    StatefulPart,
    part_for,
)
from hvd_elastic_ext.worker.stock import HorovodInternalError
from tests.contract.parts.cases import CASES, SCHEDULERS, Case, Own, around, committed, put_back, step
from tests.contract.parts.conftest import OF_TENSORFLOW

repeats_itself = pytest.mark.parametrize(
    "case", [*sorted(CASES.keys() - SCHEDULERS.keys()), *OF_TENSORFLOW], indirect=True
)


def test_saying_its_state_changes_nothing(case: Case) -> None:
    assert committed(case.part) == committed(case.part)


def test_what_was_committed_comes_back_and_comes_back_again(case: Case) -> None:
    commit = committed(case.part)
    for _ in range(3):
        case.change()
        case.change()
        put_back(case.part, commit)
        assert committed(case.part) == commit


def test_state_that_came_after_the_commit_goes_again(case: Case) -> None:
    fresh = case.build(3)
    commit = committed(fresh.part)
    fresh.change()
    put_back(fresh.part, commit)
    assert committed(fresh.part) == commit


@repeats_itself
def test_training_on_after_a_roll_back_comes_to_the_same(case: Case) -> None:
    commit = committed(case.part)
    case.change()
    case.change()
    expected = committed(case.part)
    put_back(case.part, commit)
    case.change()
    case.change()
    assert committed(case.part) == expected


def test_a_newcomer_gets_all_of_it_though_it_never_trained(case: Case) -> None:
    case.change()
    commit, newcomer = committed(case.part), case.build(2)
    put_back(newcomer.part, commit)
    assert committed(newcomer.part) == commit


@repeats_itself
def test_a_newcomer_trains_on_as_the_others_do(case: Case) -> None:
    newcomer = case.build(2)
    put_back(newcomer.part, committed(case.part))
    newcomer.change()
    case.change()
    assert committed(newcomer.part) == committed(case.part)


def test_nothing_live_lies_in_memory_that_was_only_lent(case: Case) -> None:
    commit = committed(case.part)
    case.change()
    for tensor in put_back(case.part, commit):
        tensor.view(-1).view(torch.uint8).fill_(0xFF) if tensor.is_contiguous() else tensor.fill_(9)
    assert committed(case.part) == commit


def test_training_on_leaves_the_tree_it_was_given_alone(case: Case) -> None:
    tensors: list[torch.Tensor] = []
    tree = write(case.part.capture(), tensors)
    kept = [tensor.detach().clone() for tensor in tensors]
    given = read(tree, lambda index, kind: kept[index])
    before = [tensor.clone() for tensor in kept]
    case.part.restore(given)
    case.change()
    if case.part.takes_views:
        assert all(map(torch.equal, kept, before))


def test_settling_forgets_gradients_and_changes_no_state(case: Case) -> None:
    for parameter in case.parameters:
        parameter.grad = torch.ones_like(parameter)
    commit = committed(case.part)
    for _ in range(2):
        case.part.settle()
        assert committed(case.part) == commit
    assert [parameter.grad for parameter in case.parameters] == [None] * len(case.parameters)
    case.change()


# What only some promise


def test_large_state_is_said_uncopied() -> None:
    net = nn.Linear(3, 2)
    optimizer = optim.Adam(net.parameters())
    step(net, optimizer)
    live = {p.data_ptr() for p in net.parameters()}
    live |= {value.data_ptr() for entry in optimizer.state.values() for value in entry.values()}
    for value in (net, optimizer):
        part = part_for(value, ParameterNames())
        tensors: list[torch.Tensor] = []
        write(part.capture(), tensors)
        assert {tensor.data_ptr() for tensor in tensors} <= live
        assert part.takes_views


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (nn.Linear(1, 1), ModelPart),
        (optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), OptimizerPart),
        (torch.amp.GradScaler("cpu"), ScalerPart),
        (Own(), StatefulPart),
        (Own, type(None)),
        (3, type(None)),
        ({"a": 1}, type(None)),
    ],
)
def test_each_thing_is_kept_in_its_way(value: Any, kind: type) -> None:
    assert type(part_for(value, ParameterNames())) is kind


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (nn.Linear(3, 3), r"'weight' is 3x3 float32 here and 2x3 float32 in the commit; build the same model"),
        (nn.Linear(3, 2).double(), r"'weight' is 2x3 float64 here and 2x3 float32 in the commit"),
        (nn.Linear(3, 2, bias=False), r"'bias' is absent here and 2 float32 in the commit"),
        (nn.Sequential(nn.Linear(3, 2)), r"'weight' is absent here"),
    ],
)
def test_a_commit_of_another_model_is_refused_and_changes_nothing(other: nn.Module, why: str) -> None:
    names = ParameterNames()
    mine, theirs = part_for(nn.Linear(3, 2), names), part_for(other, names)
    before = committed(theirs)
    with pytest.raises(StateError, match=why):
        put_back(theirs, committed(mine))
    assert committed(theirs) == before


class Interrupted(Own):
    def load_state_dict(self, state: Any) -> None:
        raise HorovodInternalError


def lambda_scheduler() -> Any:
    return optim.lr_scheduler.LambdaLR(optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), lambda epoch: 1.0)


@pytest.mark.parametrize(
    ("value", "tree", "why"),
    [
        (Own(), {}, "something other than this Own: KeyError: 'items'"),
        (Own(), None, "something other than this Own: TypeError: 'NoneType' .*"),
        (torch.amp.GradScaler("cpu"), {"other": 1}, "something other than this GradScaler: KeyError: 'scale'"),
        (lambda_scheduler(), {"gamma": 1.0}, "something other than this LambdaLR: KeyError: 'lr_lambdas'"),
        (torch.Generator(), torch.zeros(3, dtype=torch.uint8), "something other than this Generator: .*"),
        (torch.Generator(), 3, "something other than this Generator: TypeError: .*"),
    ],
    ids=["own", "none", "scaler", "scheduler", "generator", "number"],
)
def test_a_commit_of_something_else_is_refused_in_one_line(value: Any, tree: Any, why: str) -> None:
    with pytest.raises(StateError, match=f"^the commit is of {why}$") as refused:
        around(value).restore(tree)
    assert "\n" not in str(refused.value)


def test_a_models_own_state_of_something_else_is_refused_in_one_line() -> None:
    case = CASES["model"](1)
    tree = case.part.capture()
    with pytest.raises(StateError, match=r"^the commit is of another model: KeyError: 'calls'$"):
        case.part.restore({**tree, "_extra_state": {}})


def test_a_lost_peer_in_a_users_own_loader_is_not_a_wrong_commit() -> None:
    with pytest.raises(HorovodInternalError):
        around(Interrupted()).restore({})


def grouped(names: ParameterNames, *, groups: int) -> tuple[nn.Module, Any]:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    names.models = lambda: {"net": net}
    optimizer = optim.Adam(net[0].parameters(), lr=0.1)
    for layer in net[1:groups]:
        optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.5})
    return net, optimizer


@pytest.mark.parametrize("there", [1, 2, 3])
@pytest.mark.parametrize("here", [1, 2, 3])
def test_groups_that_were_added_or_removed_since_are_as_they_were_committed(there: int, here: int) -> None:
    theirs, mine = ParameterNames(), ParameterNames()
    net, optimizer = grouped(theirs, groups=there)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    part = part_for(optimizer, theirs)
    commit = committed(part)
    other_net, other = grouped(mine, groups=here)
    other_net(torch.ones(1, 2)).sum().backward()
    other.step()
    newcomer = part_for(other, mine)
    put_back(newcomer, commit)
    assert committed(newcomer) == commit
    owned = [id(p) for group in other.param_groups for p in group["params"]]
    assert owned == [id(p) for layer in other_net[:there] for p in layer.parameters()]
    assert {id(p) for p in other.state} <= set(owned)


def test_groups_of_parameters_that_are_not_in_any_model_are_refused_by_name() -> None:
    theirs = ParameterNames()
    _, optimizer = grouped(theirs, groups=2)
    part = part_for(optimizer, theirs)
    alone = part_for(optim.Adam(nn.Linear(2, 2).parameters()), ParameterNames())
    with pytest.raises(StateError, match=r"net\.0\.weight is not in any model of this State; give the State the model"):
        put_back(alone, committed(part))


def test_state_that_is_there_already_is_filled_in_place() -> None:
    net = nn.Linear(3, 2)
    optimizer = optim.Adam(net.parameters())
    step(net, optimizer)
    part = part_for(optimizer, ParameterNames())
    commit = committed(part)
    held = {id(value) for entry in optimizer.state.values() for value in entry.values()}
    step(net, optimizer)
    places = {value.data_ptr() for entry in optimizer.state.values() for value in entry.values()}
    put_back(part, commit)
    assert {value.data_ptr() for entry in optimizer.state.values() for value in entry.values()} == places
    assert len(held) == 6

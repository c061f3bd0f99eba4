"""What a State keeps, as one tree: written, put back, replaced."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hvd_elastic_ext.checkpoint.values.trees import CLASSES
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.buffer import Contents
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, ParameterNames, part_for
from hvd_elastic_ext.worker.state.contents import Inventory, resembles, versions_of
from tests.unit.worker.made_commits import buffer_over, identity


def inventory(owner: SimpleNamespace) -> Inventory:
    names = ParameterNames()
    parts = {name: part for name, value in vars(owner).items() if (part := part_for(value, names)) is not None}
    values = [name for name in vars(owner) if name not in parts]
    made = Inventory(owner, parts, names=values, part_for=lambda value: part_for(value, names))
    names.models = lambda: made.values_of(ModelPart)
    return made


def a_state() -> SimpleNamespace:
    net = nn.Linear(2, 1)
    return SimpleNamespace(
        net=net, optimizer=torch.optim.Adam(net.parameters()), batch=1, best=[torch.ones(2), {"a": 1}]
    )


def commit(of: Inventory) -> Any:
    written = of.write()
    buffer = buffer_over(None)
    buffer.take(Contents(written.tree, written.tensors, written.firm), identity(1), step=0)
    last = buffer.last()
    assert last is not None
    return buffer, last


def put_back(of: Inventory, commit: Any, **options: Any) -> None:
    of.put_back(commit.tree, commit.layout, views=commit.views, **options)


def test_a_commit_of_another_state_is_refused_before_anything_is_changed() -> None:
    owner, other = a_state(), a_state()
    del other.optimizer
    _, last = commit(inventory(owner))
    other.batch = 5
    with pytest.raises(StateError, match=r"state\.optimizer is in the commit, but not in this State; build the same"):
        put_back(inventory(other), last)
    assert other.batch == 5
    _, last = commit(inventory(other))
    with pytest.raises(StateError, match=r"state\.optimizer is only in this process's State; build the same"):
        put_back(inventory(owner), last)


def with_schedule(owner: SimpleNamespace, kind: Any, **options: Any) -> SimpleNamespace:
    owner.scheduler = kind(owner.optimizer, **options)
    return owner


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_commit_of_another_optimizer_is_refused_before_anything_is_changed(wrapped: bool) -> None:
    owner, other = a_state(), a_state()
    owner.optimizer = torch.optim.SGD(owner.net.parameters(), lr=0.1)
    if wrapped:
        owner.optimizer = wrap(owner.optimizer, comms=AloneComms())
    _, last = commit(inventory(owner))
    other.batch = 5
    with pytest.raises(StateError, match=r"^state\.optimizer is Adam here and SGD in the commit; build the same State"):
        put_back(inventory(other), last)
    assert (other.batch, "betas" in other.optimizer.param_groups[0]) == (5, True)
    plain = a_state()
    plain.optimizer = torch.optim.SGD(plain.net.parameters(), lr=0.7)
    put_back(inventory(plain), last)
    assert plain.optimizer.param_groups[0]["lr"] == 0.1
    assert vars(plain).keys() == vars(owner).keys(), "names of classes are not values of a State"


def test_a_commit_of_another_scheduler_is_refused_before_anything_is_changed() -> None:
    schedulers = torch.optim.lr_scheduler
    _, last = commit(inventory(with_schedule(a_state(), schedulers.StepLR, step_size=3)))
    other = with_schedule(a_state(), schedulers.CosineAnnealingLR, T_max=9)
    with pytest.raises(StateError, match=r"^state\.scheduler is CosineAnnealingLR here and StepLR in the commit"):
        put_back(inventory(other), last)
    assert not hasattr(other.scheduler, "step_size")
    same = with_schedule(a_state(), schedulers.StepLR, step_size=8)
    put_back(inventory(same), last)
    assert same.scheduler.step_size == 3


def test_an_older_commit_which_names_no_classes_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = with_schedule(a_state(), torch.optim.lr_scheduler.StepLR, step_size=3)
    with monkeypatch.context() as older:
        older.setattr(Inventory, "_classes", lambda self: {})
        _, last = commit(inventory(owner))
    assert CLASSES.encode() not in last.tree
    here = with_schedule(a_state(), torch.optim.lr_scheduler.StepLR, step_size=8)
    here.optimizer.param_groups[0]["lr"] = 7.0
    put_back(inventory(here), last)
    assert (here.scheduler.step_size, here.optimizer.param_groups[0]["lr"]) == (3, 0.001)


def test_a_value_that_only_the_commit_holds_is_made_here() -> None:
    owner, newcomer = a_state(), a_state()
    owner.epoch = 3
    _, last = commit(inventory(owner))
    fresh = inventory(newcomer)
    put_back(fresh, last)
    assert newcomer.epoch == 3
    assert "epoch" in fresh.values()


def test_with_a_new_world_only_what_has_to_be_loaded_again_is() -> None:
    class Loads:
        loaded = 0

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.loaded += 1

    owner = a_state()
    owner.sampler = Loads()
    kept = inventory(owner)
    _, last = commit(kept)
    owner.batch = 9
    put_back(kept, last, only_reloaded=True)
    assert (owner.batch, owner.sampler.loaded) == (9, 1)


@pytest.mark.parametrize(
    ("name", "value", "changes"),
    [
        ("batch", 2, False),
        ("elsewhere", nn.Linear(1, 1), False),
        ("net", nn.Linear(5, 5), True),
        ("net", None, True),
        ("batch", nn.Linear(1, 1), True),
    ],
)
def test_another_kind_of_thing_under_a_name_is_kept_as_what_it_is(name: str, value: Any, changes: bool) -> None:
    owner = a_state()
    kept = inventory(owner)
    assert kept.assigning(name, value) is changes
    setattr(owner, name, value)
    if name == "elsewhere":
        assert name not in kept.parts
        return
    assert (name in kept.parts) is isinstance(value, nn.Module)
    assert (name in kept.values()) is not isinstance(value, nn.Module)


def test_a_write_to_any_tensor_shows_in_its_versions_and_replacing_it_too() -> None:
    weight = torch.ones(3)
    before = versions_of([weight])
    assert versions_of([weight]) == before
    other = torch.ones(3)
    assert versions_of([other]) != before
    weight.add_(1)
    assert versions_of([weight]) != before


def test_tensors_whose_writes_torch_does_not_count_have_no_versions() -> None:
    with torch.inference_mode():
        uncounted = torch.ones(2)
    assert versions_of([uncounted]) is None


def test_a_change_behind_torchs_back_is_noticed_and_a_nan_is_like_itself() -> None:
    live = [torch.tensor([1.0, float("nan")]), torch.ones(10_000), torch.eye(3).t()]
    committed = [tensor.clone() for tensor in live]
    assert resembles(live, committed)
    live[0].data[0] = 2
    assert not resembles(live, committed)
    assert not resembles(live, committed[:2])
    assert not resembles([torch.ones(2)], [torch.ones(3)])
    assert not resembles([torch.ones(2)], [torch.ones(2, dtype=torch.float64)])
    assert resembles([torch.ones(0)], [torch.ones(0)])
    assert resembles([], [])


# Tensors whose writes are not counted


class Uncounted(Part):
    """Two lists of numbers, of which the first is trained."""

    counts_writes = False

    def __init__(self) -> None:
        self.value = [torch.zeros(100_000), torch.tensor([1.0, float("nan")])]

    def capture(self) -> Any:
        return self.value

    def is_firm(self, tensors: Any) -> list[bool]:
        return [True, False]


def uncounted() -> tuple[SimpleNamespace, Uncounted, Inventory]:
    owner, part = SimpleNamespace(batch=1), Uncounted()
    return owner, part, Inventory(owner, {"model": part}, names=["batch"], part_for=lambda value: None)


@pytest.mark.parametrize("place", [0, 1, 54_321, 99_999])
def test_a_single_number_of_a_part_that_counts_no_writes_is_noticed(place: int) -> None:
    """A sample of the elements would not notice it."""
    owner, part, of = uncounted()
    before, (_, last) = of.write(), commit(of)
    assert before.difference(of.write(), last.views) is None
    owner.batch = 2
    assert before.difference(of.write(), last.views) == "values"
    part.value[0].numpy()[place] = 1e-30
    assert before.difference(of.write(), last.views) == "tensors"
    part.value[0].numpy()[place] = 0
    assert before.difference(of.write(), last.views) == "values"


def test_only_what_is_firm_counts_as_changed_by_hand() -> None:
    _, part, of = uncounted()
    before, (_, last) = of.write(), commit(of)
    part.value[1].numpy()[0] = 5
    assert not before.firm_differs(of.write(), lambda: last.views)
    part.value[0].numpy()[77] = 5
    assert before.firm_differs(of.write(), lambda: last.views)


def test_one_part_that_counts_no_writes_makes_all_be_compared() -> None:
    owner, part, _ = uncounted()
    net = nn.Linear(2, 1)
    parts = {"net": part_for(net, ParameterNames()), "model": part}
    of = Inventory(owner, parts, names=[], part_for=lambda value: None)
    before, (_, last) = of.write(), commit(of)
    net.weight.data[0, 0] += 1
    assert before.difference(of.write(), last.views) == "tensors"


def test_a_mark_of_such_a_state_needs_no_tensors() -> None:
    """It would hold what TensorFlow then copies at the next write."""
    _, part, of = uncounted()
    mark, (_, last) = replace(of.write(), tensors=()), commit(of)
    assert mark.difference(of.write(), last.views) is None
    part.value[0].numpy()[5] = 1
    assert mark.difference(of.write(), last.views) == "tensors"
    assert mark.firm_differs(of.write(), lambda: last.views)

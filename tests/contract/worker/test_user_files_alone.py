"""Which functions a State takes for those of its checkpoints, and which not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.errors import UsageError
from tests.contract.worker.training import step, trained
from tests.contract.worker.user_states import Own

pytestmark = pytest.mark.usefixtures("alone")


def nothing(_: Path) -> None: ...


FUNCTIONS = elastic.Checkpoint(save=nothing, load=nothing)


def functions_of(state: Any) -> elastic.Checkpoint | None:
    found: elastic.Checkpoint | None = state._keeper._checkpoint
    return found


def test_a_state_with_functions_commits_and_rolls_back_as_any_other() -> None:
    net, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    state = elastic.TorchState(model=net, optimizer=optimizer, epoch=3, checkpoint=FUNCTIONS)
    assert functions_of(state) is FUNCTIONS
    state.sync()
    before = net.weight.detach().clone()
    step(net, optimizer)
    state.epoch = 4
    state.restore()
    assert bool((net.weight == before).all())
    assert state.epoch == 3
    assert not hasattr(state, "checkpoint")


@pytest.mark.parametrize("value", [None, 7, "path/of/the/last", [1, 2], {"step": 3}])
def test_a_plain_value_of_that_name_is_kept_as_one(value: Any) -> None:
    state = elastic.TorchState(checkpoint=value)
    assert functions_of(state) is None
    state.sync()
    state.checkpoint = "other"
    state.restore()
    assert state.checkpoint == value


@pytest.mark.parametrize("functions", [(nothing, nothing), {"save": nothing}, nothing, [nothing]])
def test_functions_that_are_not_a_checkpoint_are_refused_with_what_to_write(functions: Any) -> None:
    with pytest.raises(UsageError, match=r"elastic\.Checkpoint\(save=…, load=…\)"):
        elastic.TorchState(checkpoint=functions)


def test_a_mixin_takes_them_from_an_attribute_of_the_class_or_of_its_own() -> None:
    class OfTheClass(elastic.ElasticMixin, Own):
        checkpoint = FUNCTIONS

    class SetInInit(elastic.ElasticMixin, Own):
        def __init__(self, model: Any, optimizer: Any) -> None:
            super().__init__(model, optimizer)
            self.checkpoint = elastic.Checkpoint(save=self.write, load=nothing)

        def write(self, folder: Path) -> None: ...

    for kind in (OfTheClass, SetInInit):
        state: Any = kind(*trained(lambda p: torch.optim.SGD(p, lr=0.1)))
        state.save()
        assert functions_of(state) is state.checkpoint


def test_functions_that_come_too_late_are_refused_and_not_left_out() -> None:
    class Late(elastic.ElasticMixin, Own):
        def __init__(self, model: Any, optimizer: Any) -> None:
            super().__init__(model, optimizer)
            self.save()
            self.checkpoint = FUNCTIONS

    with pytest.raises(UsageError, match="given before a State is built, or used"):
        Late(*trained(lambda p: torch.optim.SGD(p, lr=0.1)))
    state = elastic.TorchState(epoch=3)
    with pytest.raises(UsageError, match="given before a State is built, or used"):
        state.checkpoint = FUNCTIONS


def test_a_method_or_value_of_that_name_stays_what_it_is_to_a_mixin() -> None:
    class Method(elastic.ElasticMixin, Own):
        def checkpoint(self) -> str:
            return "mine"

    state = Method(*trained(lambda p: torch.optim.SGD(p, lr=0.1)))
    state.save()
    assert functions_of(state) is None
    method: Callable[[], str] = state.checkpoint
    assert method() == "mine"

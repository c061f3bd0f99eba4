"""``elastic.wrap`` for optimizers of Keras 3 on the torch backend, in a simulated world, with a stand-in for Keras."""

from __future__ import annotations

import pytest
import torch

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.comms.horovod import HorovodComms
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.keras_torch import stepping, why_not
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.link import Status
from hvd_elastic_ext.worker.process.steps import StepCount, StepTimer
from tests.unit.worker import fake_keras
from tests.unit.worker.fake_keras import Optimizer, Variable
from tests.unit.worker.optim.test_averaging import Doubled

pytestmark = pytest.mark.usefixtures("keras")


@pytest.fixture
def keras(monkeypatch):
    fake_keras.use(monkeypatch)


class WithZero(Doubled):
    """A world of two whose other rank has gradients of zero."""

    def sum(self, data, *, name):
        self.sums += 1


def variables():
    return [Variable(torch.ones(3)), Variable(torch.ones(2, 2))]


def test_a_step_uses_the_mean_over_the_ranks():
    own = variables()
    optimizer = wrap(Optimizer(), comms=WithZero())
    optimizer.apply([torch.full((3,), 2.0), torch.full((2, 2), 4.0)], own)
    assert own[0].value.tolist() == [0, 0, 0]
    assert own[1].value.tolist() == [[-1, -1], [-1, -1]]


def test_a_gradient_that_only_others_have_counts_as_zero_here():
    own = variables()
    optimizer = wrap(Optimizer(), comms=Doubled())
    optimizer.build(own)
    seen = []
    optimizer.register_step_post_hook(lambda _: seen.append(optimizer.steps.value.item()))
    optimizer.apply([None, torch.ones(2, 2)])
    assert own[0].value.tolist() == [1, 1, 1]
    assert own[1].value.tolist() == [[0, 0], [0, 0]]
    assert seen == [1]


def test_a_process_alone_averages_with_nobody():
    comms = Doubled(size=1)
    wrap(Optimizer(), comms=comms).apply([torch.ones(3)], variables()[:1])
    assert comms.sums == 0


def test_each_apply_counts_as_one_step_wrapped_or_not(monkeypatch):
    status = Status()
    monkeypatch.setattr(standby.current(), "step_timer", StepTimer(status))
    for optimizer in (Optimizer(), wrap(Optimizer(), comms=Doubled())):
        stepping(optimizer)
        stepping(optimizer)  # each State that it is given to does this
        count, before = StepCount(lambda: None), status.step
        count.watch(optimizer)
        for _ in range(3):
            optimizer.apply([torch.ones(3)], variables()[:1])
        assert (count.done, status.step - before) == (3, 3)


def test_a_counter_that_forgets_an_optimizer_counts_no_further_steps():
    optimizer, count = Optimizer(), StepCount(lambda: None)
    stepping(optimizer)
    count.watch(optimizer)
    count.watch(None)
    optimizer.apply([torch.ones(3)], variables()[:1])
    assert count.done == 0


def test_it_stays_the_same_object_and_one_made_of_its_settings_is_plain():
    plain = Optimizer()
    optimizer = wrap(plain, comms=Doubled())
    assert optimizer is plain
    assert isinstance(optimizer, Optimizer)
    assert type(optimizer).__name__ == "Optimizer"
    assert type(type(optimizer).from_config()) is Optimizer


def test_wrapping_twice_is_refused():
    optimizer = wrap(Optimizer(), comms=Doubled())
    with pytest.raises(UsageError, match="wrapped already"):
        wrap(optimizer, comms=Doubled())


def test_a_loss_scale_around_a_wrapped_optimizer_is_refused_where_keras_puts_it_there():
    optimizer = wrap(Optimizer(), comms=Doubled())
    with pytest.raises(UsageError, match=r"elastic\.wrap\(keras\.optimizers\.LossScaleOptimizer\(optimizer\)\)"):
        optimizer.loss_scale_factor = None
    unwrapped = Optimizer()
    stepping(unwrapped)
    unwrapped.loss_scale_factor = None


def test_passes_are_counted_by_keras():
    with pytest.raises(UsageError, match=r"give Optimizer\(gradient_accumulation_steps=2\)"):
        wrap(Optimizer(), comms=Doubled(), backward_passes_per_step=2)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_another_backend_is_refused_in_any_world(monkeypatch, backend):
    fake_keras.use(monkeypatch, backend=backend)
    with pytest.raises(UsageError, match=f"Optimizer is of Keras 3 on the backend {backend}, .*KERAS_BACKEND=torch"):
        wrap(Optimizer(), comms=AloneComms())


def test_a_world_of_horovod_is_refused_and_a_script_without_a_launcher_is_not(monkeypatch):
    monkeypatch.setattr(HorovodComms, "size", lambda self: 1)
    assert why_not(HorovodComms()) is None
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(UsageError, match=r"does not train in a world of Horovod; give --engine torch$"):
        wrap(Optimizer(), comms=HorovodComms())

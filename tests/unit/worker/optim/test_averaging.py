"""``elastic.wrap`` without Horovod, in a simulated world."""

from __future__ import annotations

import pickle

import pytest
import torch

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.optim.averaging import Averaged, accumulating, wrap


class Doubled:
    """A world of two whose other rank always has equal values."""

    def __init__(self, size=2):
        self.sums = 0
        self._size = size

    def size(self):
        return self._size

    def sum(self, data, *, name):
        self.sums += 1
        data.mul_(self._size)


def parameter():
    return torch.nn.Parameter(torch.ones(3))


def wrapped(comms, tensor, **options):
    return wrap(torch.optim.SGD([tensor], lr=1.0), comms=comms, **options)


def test_the_mean_of_equal_gradients_is_the_gradient():
    tensor = parameter()
    optimizer = wrapped(Doubled(), tensor)
    (tensor * 2).sum().backward()
    optimizer.step()
    assert tensor.tolist() == [-1, -1, -1]


def test_a_loss_that_is_a_number_keeps_all_its_digits():
    tensor = parameter()
    optimizer = wrapped(Doubled(), tensor)
    assert optimizer.step(lambda: 0.1) == 0.1


def test_a_process_alone_averages_with_nobody():
    comms, tensor = Doubled(size=1), parameter()
    optimizer = wrapped(comms, tensor)
    tensor.sum().backward()
    optimizer.step()
    assert comms.sums == 0


def test_synchronised_gradients_are_not_averaged_again():
    comms, tensor = Doubled(), parameter()
    optimizer = wrapped(comms, tensor)
    for _ in range(2):
        tensor.sum().backward()
        optimizer.synchronize()
        sent = comms.sums
        optimizer.step()
        assert comms.sums == sent
    optimizer.step()
    assert comms.sums > sent


def test_a_step_that_skips_synchronising_sends_nothing():
    comms, tensor = Doubled(), parameter()
    optimizer = wrapped(comms, tensor)
    tensor.sum().backward()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert comms.sums == 0


def test_zero_grad_ends_an_accumulation():
    tensor = parameter()
    optimizer = wrapped(Doubled(), tensor, backward_passes_per_step=3)
    tensor.sum().backward()
    assert accumulating(optimizer)
    optimizer.zero_grad()
    assert not accumulating(optimizer)
    optimizer.set_backward_passes_per_step(1)
    tensor.sum().backward()
    assert not accumulating(optimizer)


def test_a_plain_optimizer_never_accumulates():
    assert not accumulating(torch.optim.SGD([parameter()], lr=1.0))


def test_parameters_added_later_count_too():
    first, later = parameter(), parameter()
    optimizer = wrapped(Doubled(), first, backward_passes_per_step=2)
    optimizer.add_param_group({"params": [later]})
    later.sum().backward()
    assert accumulating(optimizer)
    optimizer.step()
    assert later.tolist() == [0, 0, 0]


def test_a_pickled_optimizer_is_the_plain_one_with_its_state():
    tensor = parameter()
    optimizer = wrap(torch.optim.SGD([tensor], lr=0.5, momentum=0.9), comms=Doubled())
    tensor.sum().backward()
    optimizer.step()
    copy = pickle.loads(pickle.dumps(optimizer))
    assert type(copy) is torch.optim.SGD
    assert isinstance(optimizer, Averaged)
    assert copy.param_groups[0]["lr"] == 0.5
    assert len(copy.state) == 1


def test_wrapping_twice_is_refused():
    optimizer = wrapped(Doubled(), parameter())
    with pytest.raises(UsageError, match="wrapped already"):
        wrap(optimizer, comms=Doubled())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backward_passes_per_step": 0}, "must be 1 or more"),
        ({"op": "Sum"}, "op='Sum' works under Horovod only"),
        ({"process_set": 3}, "process_set=3 works under Horovod only"),
    ],
)
def test_options_that_only_horovod_has_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        wrapped(Doubled(), parameter(), **options)


def test_options_that_only_tune_horovod_are_ignored():
    assert isinstance(wrapped(Doubled(), parameter(), compression=object(), num_groups=2), Averaged)

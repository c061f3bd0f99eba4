"""The arithmetic of averages every H steps, in a world of threads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.local_sgd import DiLoCo, LocalSGD, shares_of, weighted_means
from hvd_elastic_ext.worker.process.steps import is_preparing, preparing
from hvd_elastic_ext.worker.stock import HorovodInternalError
from tests.unit.worker.lockstep import in_lockstep


def a_model():
    """The same one each time, whatever other threads draw meanwhile."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return model


def a_batch(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, 3, generator=generator, dtype=torch.float64)


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def loss_of(model, batch):
    return (model(batch).squeeze(1) - batch.sum(1)).pow(2).mean()


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


def outer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def test_local_sgd_that_averages_after_each_step_of_sgd_is_synchronous_training():
    def alone(comms):
        model = a_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        averaging = LocalSGD(optimizer, every=1)
        for number in range(6):
            step(model, optimizer, a_batch(comms.rank(), number))
            averaging.apply(averaging.collect(comms, share=1 / 3))
        return values(model)

    together = a_model()
    optimizer = torch.optim.SGD(together.parameters(), lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        (sum(loss_of(together, a_batch(rank, number)) for rank in range(3)) / 3).backward()
        optimizer.step()
    for found in in_lockstep(3, alone)[0]:
        torch.testing.assert_close(found, values(together), rtol=1e-12, atol=1e-12)


def test_diloco_steps_torchs_nesterov_on_the_mean_of_what_the_ranks_took_from_the_weights():
    shares = (0.25, 0.75)

    def alone(comms):
        model = a_model()
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        averaging = DiLoCo(model, inner, outer_of(model), every=3)
        mine = []
        for number in range(9):
            step(model, inner, a_batch(comms.rank(), number))
            if number % 3 == 2:
                mine.append(values(model))
                averaging.apply(averaging.collect(comms, share=shares[comms.rank()]))
        return mine, values(model)

    results, _ = in_lockstep(2, alone)
    model = a_model()
    reference = outer_of(model)
    for of_ranks in zip(*(mine for mine, _ in results), strict=True):
        for parameter, *ends in zip(model.parameters(), *of_ranks, strict=True):
            parameter.grad = sum(share * (parameter.detach() - end) for share, end in zip(shares, ends, strict=True))
        reference.step()
    for _, found in results:
        torch.testing.assert_close(found, values(model), rtol=1e-12, atol=1e-12)


def test_a_rank_counts_by_its_share_and_one_without_any_not_at_all():
    def rank_main(comms):
        weights = torch.full((3,), float(10 ** comms.rank())), torch.ones(2, dtype=torch.bfloat16)
        share = shares_of([3, 1, 0])[comms.rank()]
        return [mean.tolist() for mean in weighted_means(comms, weights, share=share)]

    assert in_lockstep(3, rank_main)[0] == [[[3.25] * 3, [1.0] * 2]] * 3
    assert shares_of([0, 0]) == [0.5, 0.5]


def test_a_loss_within_an_average_changes_nothing():
    class Lost(AloneComms):
        sums = 0

        def sum(self, data, *, name):
            self.sums += 1
            if self.sums == 2:
                raise HorovodInternalError("a peer was killed")

    model = nn.Sequential(a_model(), nn.Linear(1, 1))  # of two types, and so in two operations
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    averaging = DiLoCo(model, inner, outer_of(model), every=1)
    with torch.no_grad():
        model[1].weight.add_(1.0)
    before = values(model)
    with pytest.raises(HorovodInternalError):
        averaging.collect(Lost(), share=1.0)
    assert all(map(torch.equal, before, values(model)))
    assert not averaging.outer.state


def test_an_average_of_one_rank_is_its_own_weights_and_diloco_still_takes_its_outer_step():
    for make, kept in (
        (lambda model, inner: LocalSGD(inner, every=1), True),
        (lambda model, inner: DiLoCo(model, inner, torch.optim.SGD(model.parameters(), lr=0.5), every=1), False),
    ):
        model = a_model()
        inner, start = torch.optim.SGD(model.parameters(), lr=0.1), values(model)
        averaging = make(model, inner)
        step(model, inner, a_batch(0, 0))
        mine = values(model)
        averaging.apply(averaging.collect(AloneComms(), share=1.0))
        wanted = mine if kept else [(one + other) / 2 for one, other in zip(start, mine, strict=True)]
        torch.testing.assert_close(values(model), wanted, rtol=1e-12, atol=1e-12)


def test_floating_buffers_are_averaged_with_the_weights():
    def rank_main(comms):
        model = nn.BatchNorm1d(2)
        averaging = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), every=1)
        averaging.buffers = model.buffers
        model.running_mean.fill_(float(comms.rank()))
        model.num_batches_tracked.fill_(comms.rank())
        averaging.apply(averaging.collect(comms, share=0.5))
        return model.running_mean.tolist(), model.num_batches_tracked.item()

    assert in_lockstep(2, rank_main)[0] == [([0.5, 0.5], 0), ([0.5, 0.5], 1)]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "16"])
def test_a_number_of_steps_below_one_is_refused(every):
    model = a_model()
    with pytest.raises(UsageError, match="every="):
        LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), every=every)


def test_an_optimizer_that_averages_in_each_step_is_refused():
    model = a_model()
    wrapped = wrap(torch.optim.SGD(model.parameters(), lr=0.1), comms=AloneComms())
    with pytest.raises(UsageError, match="averages gradients in each step already"):
        LocalSGD(wrapped, every=2)
    with pytest.raises(UsageError, match="averages by itself"):
        DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), wrapped, every=2)


def test_swapped_and_unfitting_arguments_are_refused_in_one_line():
    model, other = a_model(), a_model()
    inner, outer = torch.optim.SGD(model.parameters(), lr=0.1), outer_of(model)
    for arguments, says in (
        ((inner, model, outer), "the model is"),
        ((model, inner, inner), "the outer optimizer is the inner one"),
        ((model, inner, outer_of(other)), "the same parameters"),
        ((other, inner, outer), "the same parameters"),
        ((model, model, outer), "the optimizer is"),
        ((model, inner, torch.optim.SGD), "the class SGD"),
    ):
        with pytest.raises(UsageError, match=says) as refused:
            DiLoCo(*arguments, every=2)
        assert "\n" not in str(refused.value)


def test_a_rank_that_averages_hides_no_step_of_another_thread():
    """Each rank of a test is a thread; what one prepares is not the other's step."""
    with preparing():
        seen = in_lockstep(1, lambda comms: is_preparing())[0]
    assert list(seen) == [False]

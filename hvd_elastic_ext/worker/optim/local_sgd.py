"""Averages of weights every H steps, in place of averages of gradients in every step: local SGD, and DiLoCo.

The time from one average to the next is a *round*. In it each rank trains alone. What all ranks have equal at its start
is the *outer* state; what a rank makes of it is its *inner* one.

An average has two halves. :meth:`Averager.collect` sends, and changes nothing here: if a rank is lost meanwhile, the
others still have the weights from before. :meth:`Averager.apply` sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.comms import horovod as with_horovod
from hvd_elastic_ext.worker.optim.averaging import BUCKET, buckets
from hvd_elastic_ext.worker.optim.ddp import ElasticDDP
from hvd_elastic_ext.worker.process.steps import preparing

_HALVES: Final = (torch.float16, torch.bfloat16)
"""Types with too few digits for a sum of weighted weights."""


class Averager:
    """What LocalSGD and DiLoCo have in common. Give it to the State, and step ``inner`` as in a script for one process.

    ``every``: steps of ``inner`` in a round.
    """

    def __init__(self, inner: Optimizer, *, every: int) -> None:
        kind = type(self).__name__
        if not isinstance(inner, Optimizer):
            raise UsageError(f"{kind}: the optimizer is {_a(inner)}; give a torch.optim.Optimizer")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"{kind}: every={every!r}; give the number of steps between two averages, 1 or more")
        self.inner = inner
        self.every = every
        self.buffers: Callable[[], Iterable[Tensor]] = tuple
        """What is averaged besides the parameters: buffers of the State's models. The State sets this."""
        self.demand_alone()

    @property
    def outer(self) -> Optimizer | None:
        """The optimizer that steps at an average; None without one."""
        return None

    def demand_alone(self) -> None:
        """Raise :class:`UsageError` if the inner optimizer averages gradients in each step."""
        if with_horovod.is_wrapped(self.inner):
            raise UsageError(
                f"{type(self).__name__}: the optimizer averages gradients in each step already; give the plain one, "
                "without hvd.DistributedOptimizer and elastic.wrap"
            )

    def parameters(self) -> list[Tensor]:
        """The parameters that are averaged."""
        return [parameter for group in self.inner.param_groups for parameter in group["params"]]

    def begin(self) -> None:
        """Note that the live weights are the outer ones: a round begins."""

    def collect(self, comms: Comms, *, share: float) -> list[Tensor]:
        """Return what :meth:`apply` needs, the same on all ranks, of which this one has contributed ``share``.

        The shares of all ranks add up to 1. Nothing here is changed, also if this raises.
        """
        with torch.no_grad():
            return weighted_means(comms, [*self._contribution(), *self._averaged_buffers()], share=share)

    def apply(self, means: Sequence[Tensor]) -> None:
        """Make the outer state of the next round."""
        count = len(self.parameters())
        with torch.no_grad():
            self._step(means[:count])
            for buffer, mean in zip(self._averaged_buffers(), means[count:], strict=True):
                buffer.copy_(mean)
        self.begin()

    def _averaged_buffers(self) -> list[Tensor]:
        return [buffer for buffer in self.buffers() if buffer.is_floating_point()]

    def _contribution(self) -> list[Tensor]:
        """What this rank sends, a tensor for each parameter."""
        return [parameter.detach() for parameter in self.parameters()]

    def _step(self, means: Sequence[Tensor]) -> None:
        """Change the parameters by the mean of what all ranks have sent."""
        for parameter, mean in zip(self.parameters(), means, strict=True):
            parameter.copy_(mean)


class LocalSGD(Averager):
    """Local SGD: each rank trains alone for ``every`` steps of ``optimizer``; then the ranks average their weights.

        averaging = elastic.LocalSGD(optimizer, every=16)
        state = elastic.TorchState(model=model, optimizer=optimizer, averaging=averaging, sampler=sampler, epoch=0)

    The average takes place in ``state.commit()`` or ``state.check_host_updates()``. A rank counts by the samples that
    it has recorded in the round (``ElasticSampler.record_batch``), and where no rank has recorded any, by its steps.
    The optimizer's own state, such as momentum, stays on its rank.

    Raises :class:`UsageError` for ``every`` below 1, and for an optimizer that averages gradients already.
    """

    def __init__(self, optimizer: Optimizer, every: int) -> None:
        super().__init__(optimizer, every=every)


class DiLoCo(Averager):
    """DiLoCo: each rank trains alone for ``every`` steps of ``inner``; then ``outer`` steps once, everywhere alike.

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        averaging = elastic.DiLoCo(model, inner, outer, every=64)
        state = elastic.TorchState(model=model, optimizer=inner, averaging=averaging, sampler=sampler, epoch=0)

    ``outer`` starts from the weights at the beginning of the round. Its gradient is the mean over the ranks of how
    far each has moved away from them (Douillard et al. 2023). The rest is as in :class:`LocalSGD`. This keeps one more
    copy of the weights, on the model's device.

    Raises :class:`UsageError` for ``every`` below 1, for an ``inner`` that averages gradients already, and for
    optimizers that do not have the same parameters, all of ``model``.
    """

    def __init__(self, model: nn.Module, inner: Optimizer, outer: Optimizer, every: int) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"DiLoCo: the model is {_a(model)}; give DiLoCo(model, inner, outer, every=H)")
        super().__init__(inner, every=every)
        if not isinstance(outer, Optimizer) or outer is inner:
            what = "the inner one" if outer is inner else _a(outer)
            raise UsageError(f"DiLoCo: the outer optimizer is {what}; give another torch.optim.Optimizer")
        if with_horovod.is_wrapped(outer):
            raise UsageError("DiLoCo: the outer optimizer averages by itself; give the plain one")
        self.model = model
        self._outer = outer
        of_outer = {id(parameter) for group in outer.param_groups for parameter in group["params"]}
        of_inner, of_model = set(map(id, self.parameters())), set(map(id, model.parameters()))
        if of_inner != of_outer or not of_inner <= of_model:
            raise UsageError(
                "DiLoCo: the inner and the outer optimizer must have the same parameters, all of the model; "
                "make both with model.parameters()"
            )
        self._start: list[Tensor] = []
        self.begin()

    @property
    def outer(self) -> Optimizer:
        """The optimizer that steps at an average."""
        return self._outer

    def begin(self) -> None:
        """Keep the live weights, from which the outer optimizer will start."""
        with torch.no_grad():
            parameters = self.parameters()
            if list(map(_form, self._start)) != list(map(_form, parameters)):
                self._start = [parameter.detach().clone() for parameter in parameters]
                return
            for start, parameter in zip(self._start, parameters, strict=True):
                start.copy_(parameter)

    def _contribution(self) -> list[Tensor]:
        return [start - parameter.detach() for start, parameter in zip(self._start, self.parameters(), strict=True)]

    def _step(self, means: Sequence[Tensor]) -> None:
        parameters = self.parameters()
        for parameter, start, mean in zip(parameters, self._start, means, strict=True):
            parameter.copy_(start)
            parameter.grad = mean.to(parameter.dtype)
        with preparing():  # it is not a step of training
            self._outer.step()
        for parameter in parameters:
            parameter.grad = None


def weighted_means(comms: Comms, tensors: Sequence[Tensor], *, share: float) -> list[Tensor]:
    """Return the sum over all ranks of their ``tensors``, each times the ``share`` of its rank, in new tensors."""
    found: dict[int, Tensor] = {}
    at = {id(tensor): place for place, tensor in enumerate(tensors)}
    for number, bucket in enumerate(buckets(tensors, BUCKET)):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        if flat.dtype in _HALVES:
            flat = flat.float()
        flat.mul_(share)
        comms.sum(flat, name=f"average.{number}")
        for tensor, mean in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
            found[at[id(tensor)]] = mean.view(tensor.shape)
    return [found[place] for place in range(len(tensors))]


def shares_of(weights: Sequence[int]) -> list[float]:
    """Return the part of each rank in an average. Equal ones if nobody has done anything."""
    total = sum(weights)
    return [weight / total if total else 1 / len(weights) for weight in weights]


def averages_by_itself(model: object) -> bool:
    """Whether a model averages gradients over the ranks in each backward pass."""
    return isinstance(model, ElasticDDP | nn.parallel.DistributedDataParallel)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _a(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a value of type {type(value).__name__}"

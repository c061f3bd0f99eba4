"""Optimizers that average gradients over the ranks: ours under all engines but Horovod, and the step under way of any.

Under Horovod ``elastic.wrap`` returns its ``DistributedOptimizer``. That has no public interface for a step under way:
only this module reads its bookkeeping.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Comms, current_world
from hvd_elastic_ext.worker.comms import horovod as with_horovod
from hvd_elastic_ext.worker.comms.torch_distributed import note_averaging
from hvd_elastic_ext.worker.optim import keras3, keras_torch
from hvd_elastic_ext.worker.optim.step_waits import waiting
from hvd_elastic_ext.worker.process.steps import aggregation

BUCKET: Final = 32 << 20
"""Bytes of small gradients that are sent together. A larger gradient is sent alone, without a copy."""
TUNING: Final = frozenset({"compression", "gradient_predivide_factor", "num_groups", "groups"})
"""Horovod's arguments that change the speed, not the mean."""


class Averaged(Optimizer):
    """Methods that are added to an optimizer's class. Horovod's wrapped optimizers have the same ones.

    ``step()`` first averages the gradients over all ranks. To use the averaged gradients before that (clip them,
    unscale them by a ``GradScaler``), call :meth:`synchronize`.
    """

    _averaging: Averaging

    @property
    def accumulating(self) -> bool:
        """Whether only some of ``backward_passes_per_step`` are done. Training must not stop at such a point."""
        return self._averaging.passes_per_step > 1 and self._averaging.touched

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes that add up their gradients before each ``step()``."""
        return self._averaging.passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes per step."""
        self._averaging.passes_per_step = _at_least_one(passes)

    def synchronize(self) -> None:
        """Average the gradients now; the next ``step()`` does not."""
        self._averaging.average()
        self._averaging.done = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Do not average in ``step()`` within this context."""
        self._averaging.skip = True
        try:
            yield
        finally:
            self._averaging.skip = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and the passes so far."""
        super().zero_grad(set_to_none)
        self._averaging.forget()

    def forget_reductions(self) -> None:
        """Drop the step under way. Call it when the step's world has ended."""
        self._averaging.forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does, and also observe backward passes through its parameters."""
        super().add_param_group(param_group)
        self._averaging.watch(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle this object as the plain optimizer, which averages nothing until it is wrapped."""
        plain = type(self).__mro__[2]
        return _unmade, (plain,), self.__getstate__()


class Averaging:
    """Averages one optimizer's gradients, and records whether the present step has done so."""

    def __init__(self, comms: Comms, passes_per_step: int, *, dense: bool = False) -> None:
        self.passes_per_step = _at_least_one(passes_per_step)
        self.touched = False
        """Whether there was a backward pass since the last step."""
        self.done = False
        """Whether the gradients are averaged."""
        self.skip = False
        self._comms = comms
        self._dense = dense
        self._watched: dict[int, weakref.ref[Tensor]] = {}  # by identity: tensors compare by element
        self._parameters: Callable[[], list[Tensor]] = list

    def watch(self, optimizer: Optimizer) -> None:
        """Observe backward passes through the optimizer's parameters."""
        watched = weakref.ref(optimizer)
        self._parameters = lambda: _parameters(watched())
        for parameter in self._parameters():
            watched_before = self._watched.get(id(parameter))
            if parameter.requires_grad and (watched_before is None or watched_before() is not parameter):
                self._watched[id(parameter)] = weakref.ref(parameter)
                cast(Any, parameter).register_post_accumulate_grad_hook(self._passed)

    def forget(self) -> None:
        """Start a new step."""
        self.touched = self.done = False

    def before_step(self, _: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The hook before each ``step()`` of the optimizer's own class, whatever code calls it."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            if not (self.skip or self.done):
                self.average()
            self.forget()
            return None
        averaging = self._closure(closure)
        return ((args[0], averaging, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": averaging})

    def average(self) -> None:
        """Replace each gradient by the mean over all ranks.

        A gradient that is missing on some ranks counts as zero there; one that is missing on all stays missing.
        """
        self.touched = False
        if self._comms.size() == 1:
            return
        parameters = self._parameters()
        self._refuse_sparse(parameters)
        for parameter, mean in zip(
            parameters, means(self._comms, [p.grad for p in parameters], parameters), strict=True
        ):
            parameter.grad = mean

    def _closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that also averages gradients and loss, so that all ranks decide the same."""

        def averaged() -> Any:
            loss = closure()
            if not self.skip:
                self.average()
                loss = self._mean(loss)
            self.forget()
            return loss

        return averaged

    def _mean(self, loss: Any) -> Any:
        if not isinstance(loss, Tensor | float):
            return loss
        # A Python float has 64 bits; torch's default would round it to 32.
        mean = loss.detach().clone() if isinstance(loss, Tensor) else torch.tensor(loss, dtype=torch.float64)
        self._comms.sum(mean, name="loss")
        mean.div_(self._comms.size())
        return mean if isinstance(loss, Tensor) else mean.item()

    def _passed(self, _: Tensor) -> None:
        self.touched, self.done = True, False

    def _refuse_sparse(self, parameters: Sequence[Tensor]) -> None:
        for number, parameter in enumerate(parameters):
            if parameter.grad is None or parameter.grad.layout == torch.strided:
                continue
            if not self._dense:
                raise UsageError(
                    f"elastic.wrap: the gradient of parameter {number} (shape {tuple(parameter.shape)}) is sparse, and "
                    "only Horovod averages those; use nn.Embedding(sparse=False), or give sparse_as_dense=True"
                )
            parameter.grad = parameter.grad.to_dense()


def means(comms: Comms, gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the means of gradients over all ranks, in the same tensors. ``like``: a tensor of the form of each.

    A gradient that is missing on some ranks counts as zero there; one that is missing on all stays missing.
    """
    size = comms.size()
    if size == 1:
        return list(gradients)
    note_averaging()
    with waiting():
        have = torch.tensor([gradient is not None for gradient in gradients], dtype=torch.int32)
        comms.sum(have, name="gradients.present")
        found = [
            torch.zeros_like(form) if count and gradient is None else gradient
            for gradient, form, count in zip(gradients, like, have.tolist(), strict=True)
        ]
        with torch.no_grad():
            for number, bucket in enumerate(buckets([each for each in found if each is not None], BUCKET)):
                _average_bucket(comms, bucket, size, f"gradients.{number}")
    return found


def _average_bucket(comms: Comms, bucket: Sequence[Tensor], size: int, name: str) -> None:
    alone = len(bucket) == 1
    flat = bucket[0] if alone else torch.cat([gradient.reshape(-1) for gradient in bucket])
    comms.sum(flat, name=name)
    flat.div_(size)
    if not alone:
        for gradient, mean in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
            gradient.copy_(mean.view(gradient.shape))


def buckets(gradients: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Group tensors of one type and device, in order, up to ``limit`` bytes per group."""
    open_ones: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    filled: dict[tuple[torch.dtype, torch.device], int] = {}
    for gradient in gradients:
        kind, length = (gradient.dtype, gradient.device), gradient.numel() * gradient.element_size()
        if length >= limit:
            yield [gradient]
            continue
        if filled.get(kind, 0) + length > limit:
            yield open_ones.pop(kind)
            filled[kind] = 0
        open_ones.setdefault(kind, []).append(gradient)
        filled[kind] = filled.get(kind, 0) + length
    yield from open_ones.values()


Optim = TypeVar("Optim", bound=Any)
"""An optimizer of torch, or one of Keras 3."""


def wrap(
    optimizer: Optim,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    comms: Comms | None = None,
    **horovod: Any,
) -> Optim:
    """Return an optimizer whose ``step()`` uses the mean of all ranks' gradients.

    Under Horovod it is ``hvd.DistributedOptimizer`` with all arguments. Elsewhere it is the same object, with a
    subclass of its class: state, hooks and schedulers stay. Gradients of ``backward_passes_per_step`` passes are added
    up, as torch does, and then averaged over the ranks. ``sparse_as_dense`` applies, arguments that only change the
    speed are ignored, and arguments for another result than the mean are an error.

    An optimizer of Keras 3 on the torch backend averages in each ``apply``: ``model.compile(elastic.wrap(optimizer))``.
    Raises :class:`UsageError` for it under Horovod, and on another backend.

    ``comms``: the world to average over; None: the world that this process has joined.
    """
    of_keras = keras3.is_optimizer(optimizer)
    if not of_keras:
        _demand_unwrapped(optimizer)
    world = current_world.joined() if comms is None else comms
    if of_keras and (why := keras_torch.why_not(world)) is not None:
        raise UsageError(f"elastic.wrap: {type(optimizer).__name__} {why}")
    if isinstance(world, with_horovod.HorovodComms):
        own = {**horovod, "backward_passes_per_step": backward_passes_per_step}
        return cast(Optim, with_horovod.wrapped(optimizer, named_parameters, **own))
    for name in horovod.keys() - TUNING - {"sparse_as_dense"}:
        if name != "op" or horovod[name] != with_horovod.AVERAGE:
            raise UsageError(f"elastic.wrap: {name}={horovod[name]!r} works under Horovod only; leave it out elsewhere")
    if of_keras:
        if backward_passes_per_step != 1:
            raise UsageError(
                f"elastic.wrap: backward_passes_per_step={backward_passes_per_step} is for optimizers of torch; give "
                f"{type(optimizer).__name__}(gradient_accumulation_steps={backward_passes_per_step})"
            )
        keras_torch.averaged(optimizer, partial(means, world))
        return optimizer
    averaging = Averaging(world, backward_passes_per_step, dense=bool(horovod.get("sparse_as_dense", False)))
    plain = type(optimizer)
    optimizer.__class__ = type(plain.__name__, (Averaged, plain), {"__module__": plain.__module__})
    optimizer._averaging = averaging
    averaging.watch(optimizer)
    # A hook, not a method: schedulers and profilers keep and call the class's own step.
    optimizer.register_step_pre_hook(averaging.before_step)
    return optimizer


def _demand_unwrapped(optimizer: object) -> None:
    if isinstance(optimizer, type):
        raise UsageError(f"elastic.wrap was given the class {optimizer.__name__}; give an optimizer made of it")
    if isinstance(optimizer, torch.nn.Module):
        raise UsageError("elastic.wrap was given a model; give its optimizer: it averages the model's gradients")
    if not isinstance(optimizer, Optimizer):
        raise UsageError(
            f"elastic.wrap was given a value of type {type(optimizer).__name__}; give a torch.optim.Optimizer"
        )
    if with_horovod.is_wrapped(optimizer):
        raise UsageError("elastic.wrap: this optimizer is wrapped already; wrap it once")


def _parameters(optimizer: Optimizer | None) -> list[Tensor]:
    if optimizer is None:
        return []
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _unmade(kind: type[Optimizer]) -> Optimizer:
    return kind.__new__(kind)


def _at_least_one(passes: int) -> int:
    if passes < 1:
        raise UsageError(f"elastic.wrap: backward_passes_per_step={passes}; it must be 1 or more")
    return passes


# --- the step under way, of Horovod's optimizers and ours


def accumulating(optimizer: Any) -> bool:
    """Whether a step of ``optimizer`` has begun that must not be interrupted.

    Such a step lasts from the first of several backward passes until their sum is averaged. Horovod averages during
    the backward pass, so with Horovod a single pass counts, too, until its reductions have ended.
    """
    if (helper := aggregation(optimizer)) is not None:
        return int(helper.counter) > 0
    own = getattr(optimizer, "accumulating", None)
    return bool(getattr(optimizer, "_handles", None)) if own is None else bool(own)


def drop_step(optimizer: optim.Optimizer) -> None:
    """Drop gradients and pending reductions, whose handles are invalid in another world."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    forget_reductions(optimizer)


def forget_reductions(optimizer: Any) -> None:
    """Reset the bookkeeping of ``hvd.DistributedOptimizer`` (or ours) to the start of a step.

    Horovod does part of this when state is loaded. But the root of a sync never loads it, and would keep old handles.
    """
    forget = getattr(optimizer, "forget_reductions", None)
    if forget is not None:
        forget()
    delays = getattr(optimizer, "_allreduce_delay", None)
    if delays is None:
        return
    optimizer._handles = {}
    optimizer._synchronized = False
    optimizer._should_synchronize = True
    for parameter in delays:
        delays[parameter] = optimizer.backward_passes_per_step
    for group in getattr(optimizer, "_group_counts", {}):
        optimizer._group_counts[group] = 0

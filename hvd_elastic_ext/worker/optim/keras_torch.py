"""Optimizers of Keras 3 on the torch backend: hooks around their steps, and averaging in each step.

A step is one call of ``apply``, which ``fit`` and ``apply_gradients`` make. Keras has no hooks around it. A subclass of
the optimizer's class adds them; the object stays the same one.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Comms, current_world
from hvd_elastic_ext.worker.comms.horovod import HorovodComms
from hvd_elastic_ext.worker.optim import keras3
from hvd_elastic_ext.worker.process import standby

Average = Callable[[Sequence[Tensor | None], Sequence[Tensor]], list[Tensor | None]]
"""Takes gradients and, for each, a tensor of its form. Returns the means over all ranks."""
_TORCH: Final[Any] = torch
_STEPS: Final = "_hvd_elastic_steps"


Function = TypeVar("Function", bound=Callable[..., Any])


def _untraced(function: Function) -> Function:
    """Leave a function out of ``compile(jit_compile=True)``: operations with other ranks cannot be compiled."""
    return cast(Function, _TORCH._disable_dynamo(function))


class Steps:
    """What happens around each step of one optimizer."""

    def __init__(self) -> None:
        self.before: OrderedDict[int, Callable[..., object]] = OrderedDict()
        self.after: OrderedDict[int, Callable[..., object]] = OrderedDict()
        self.average: Average | None = None
        """Averages the gradients of each step; None if the optimizer is not wrapped."""


class Stepping:
    """Methods that are added to the class of an optimizer of Keras. The hooks are as those of torch's optimizers."""

    _hvd_elastic_steps: Steps

    @_untraced
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Do a step as Keras does, with averaged gradients if the optimizer is wrapped."""
        steps, timer = self._hvd_elastic_steps, standby.current().step_timer
        for before in (*([timer.before_step] if timer is not None else []), *steps.before.values()):
            before(self)
        if steps.average is not None:
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            own: Any = self
            variables = own._trainable_variables if trainable_variables is None else trainable_variables
            grads = steps.average(list(grads), [variable.value for variable in variables])
        cast(Any, super()).apply(grads, trainable_variables)
        for after in (*steps.after.values(), *([timer.after_step] if timer is not None else [])):
            after(self)

    def register_step_pre_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Call ``hook(optimizer)`` before each step."""
        return _registered(hook, self._hvd_elastic_steps.before)

    def register_step_post_hook(self, hook: Callable[..., object]) -> RemovableHandle:
        """Call ``hook(optimizer)`` after each step."""
        return _registered(hook, self._hvd_elastic_steps.after)

    def __setattr__(self, name: str, value: Any) -> None:
        # A LossScaleOptimizer does this to the one that it gets.
        if name == "loss_scale_factor" and value is None and self._hvd_elastic_steps.average is not None:
            raise UsageError(
                "elastic.wrap: a LossScaleOptimizer around a wrapped optimizer decides on each rank alone whether to "
                "skip a step, and the others would wait; wrap it instead: "
                "elastic.wrap(keras.optimizers.LossScaleOptimizer(optimizer))"
            )
        super().__setattr__(name, value)

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a plain optimizer, which averages nothing until it is wrapped."""
        return _plain(cls).from_config(*args, **kwargs)

    def __reduce__(self) -> Any:
        """Copy and pickle this object as Keras does: as a plain optimizer that is not built."""
        as_keras: Any = super().__reduce__()
        return _plain(type(self))._unpickle_model, as_keras[1]


def stepping(optimizer: Any) -> Steps:
    """Give an optimizer of Keras hooks around its steps, if it has none yet. Return what they do."""
    found = vars(optimizer).get(_STEPS)
    if found is None:
        found = Steps()
        setattr(optimizer, _STEPS, found)
        plain = type(optimizer)
        optimizer.__class__ = type(plain.__name__, (Stepping, plain), {"__module__": plain.__module__})
    return cast(Steps, found)


def averaged(optimizer: Any, average: Average) -> None:
    """Let each step of an optimizer of Keras use the mean of all ranks' gradients.

    Raises :class:`UsageError` for an optimizer that is wrapped already.
    """
    steps = stepping(optimizer)
    if steps.average is not None:
        raise UsageError("elastic.wrap: this optimizer is wrapped already; wrap it once")
    steps.average = average


def why_not(comms: Comms | None = None) -> str | None:
    """Return why Keras 3 cannot train here, and what to do, as the end of a line; None if it can.

    ``comms``: the world; None: unknown.
    """
    if keras3.backend() != keras3.TORCH:
        return (
            f"is of Keras 3 on the backend {keras3.backend()}, where nothing averages gradients over the ranks; "
            f"{keras3.REMEDY}"
        )
    if isinstance(comms, HorovodComms) and (current_world.launched_by_horovod(os.environ) or comms.size() > 1):
        return f"is of Keras 3, which does not train in a world of Horovod; give --engine {keras3.TORCH}"
    return None


def _registered(hook: Callable[..., object], hooks: OrderedDict[int, Callable[..., object]]) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _plain(kind: type[Stepping]) -> Any:
    """The class of Keras that such a class was made of."""
    return kind.__mro__[2]

"""The parts of TensorFlow's objects: a Keras model, a Keras optimizer, a list of variables.

A capture reads each variable through DLPack: torch sees the memory that TensorFlow reads, and TensorFlow copies on the
next write while that is held. A restore assigns from NumPy's view of the commit: through DLPack a variable would take
the commit's own memory, and the next step would change the commit. TensorFlow does not count writes, so whether a
variable has changed is known only by comparing (``counts_writes``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames, listed

_NO_NUMPY: Final[Mapping[torch.dtype, torch.dtype]] = {torch.bfloat16: torch.int16}
"""Types that NumPy does not know, and one of the same size that it does."""


class VariablesPart(Part):
    """A list of variables, by their place in it. ``variables`` is called at each use: the list may grow."""

    takes_views = True
    counts_writes = False

    def __init__(self, value: Any, variables: Callable[[], Sequence[Any]], *, what: str = "variables") -> None:
        self.value = value
        self._variables = variables
        self._what = what

    def capture(self) -> Any:
        """Return the content of each variable, in order. Raises :class:`StateError` for one without numbers."""
        return [_read(variable) for variable in self._variables()]

    def is_firm(self, tensors: Sequence[Tensor]) -> Sequence[bool]:
        """Variables that are trained are equal on all ranks; others, such as moving means, may not be."""
        return [bool(getattr(variable, "trainable", True)) for variable in self._variables()]

    def restore(self, tree: Any) -> None:
        """Assign the committed contents. Raises :class:`StateError` if the commit has other variables."""
        variables = self._variables()
        self._demand_same(variables, tree)
        for variable, tensor in zip(variables, tree, strict=True):
            variable.assign(_array(tensor, variable))

    def fitted(self, given: Any) -> Any:
        """Return a list of contents by the names of the variables, or in their order."""
        variables = self._variables()
        if isinstance(given, Mapping):
            names = [variable.name for variable in variables]
            if absent := [name for name in names if name not in given]:
                raise StateError(f"there is no {listed(absent)}")
            given = [given[name] for name in names]
        if not isinstance(given, Sequence) or not all(isinstance(each, Tensor) for each in given):
            raise StateError("it is not a list of tensors, one for each variable")
        self._demand_same(variables, given)
        return list(given)

    def _demand_same(self, variables: Sequence[Any], tree: Sequence[Tensor]) -> None:
        if len(variables) != len(tree):
            raise StateError(
                f"there are {len(tree)} variables in the commit, and {len(variables)} here; build the same "
                f"{self._what} on every rank"
            )
        for variable, tensor in zip(variables, tree, strict=True):
            here, there = tuple(variable.shape), tuple(tensor.shape)
            if here != there and not _fits(variable, there):
                raise StateError(
                    f"{variable.name!r} has the shape {list(here)} here and {list(there)} in the commit; build the "
                    f"same {self._what} on every rank"
                )


class KerasModelPart(VariablesPart):
    """A Keras model: its weights, and its other variables."""

    def __init__(self, value: Any) -> None:
        super().__init__(value, lambda: list(value.variables), what="model")

    def optimizers(self, name: str) -> dict[str, Any]:
        """None: the State keeps the optimizer under a name of its own."""
        return {}


class KerasOptimizerPart(VariablesPart):
    """A Keras optimizer: slots, step count, and options that are variables, such as the learning rate."""

    firm = True

    def __init__(self, value: Any) -> None:
        super().__init__(value, lambda: optimizer_variables(value), what="optimizer")

    @property
    def class_name(self) -> str:
        """The class name of the optimizer. Horovod's wrapper has the name of the class that it wraps."""
        return type(self.value).__name__

    def is_firm(self, tensors: Sequence[Tensor]) -> Sequence[bool]:
        """All are the same on all ranks."""
        return [True] * len(tensors)

    def optimizers(self, name: str) -> dict[str, Any]:
        """Return the optimizer by its name in the State."""
        return {name: self.value}

    def settle(self) -> None:
        """Drop gradients that Horovod has added up for a step that is not done (``backward_passes_per_step``)."""
        helper: Any = getattr(self.value, "_agg_helper", None)
        if helper is not None and hasattr(helper.counter, "assign"):
            for variable in (*helper.locally_aggregated_grads.values(), helper.counter):
                variable.assign(variable * 0)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """All variables of a Keras optimizer: those that it lists, and the options that it keeps beside them."""
    given = optimizer.variables
    listed_ones = list(given() if callable(given) and not isinstance(given, list | tuple) else given)
    options = [each for each in getattr(optimizer, "_hyper", {}).values() if hasattr(each, "assign")]
    known = {id(variable) for variable in listed_ones}
    return listed_ones + [each for each in options if id(each) not in known]


def build(optimizer: Any, model: Any) -> None:
    """Make an optimizer's variables now. Most have one before the first step, and all of them after it."""
    variables = model.trainable_variables
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of an optimizer that scales the loss
    if hasattr(inner, "_create_all_weights"):  # of the older kind
        inner._create_all_weights(variables)
    elif hasattr(inner, "build") and not getattr(inner, "built", False):
        inner.build(variables)


_COPIES: Final = frozenset(
    {"_saved_model_state", "_saved_optimizer_state", "_bcast_model", "backend"}
    | {"_values", "_bcast_op", "_eval_fn", "_assign_fn", "session", "variables"}
)
"""Attributes of Horovod's States: their own copies of variables, and what makes them."""


def of_horovods_state(state: Any) -> tuple[dict[str, Part], frozenset[str]]:
    """Return the parts of a State that inherits from one of ``horovod.tensorflow``'s, by its attributes, and the names
    of the attributes in which that keeps copies of the same. Empty for others.

    Its ``restore`` assigns its own copies, which may be old. The parts come after it, so theirs count.
    """
    horovods = sys.modules.get("horovod.tensorflow.elastic")
    if horovods is None:
        return {}, frozenset()
    if isinstance(state, horovods.TensorFlowKerasState):
        build(state.optimizer, state.model)
        return {"model": KerasModelPart(state.model), "optimizer": KerasOptimizerPart(state.optimizer)}, _COPIES
    if isinstance(state, horovods.TensorFlowState):
        return {"variables": VariablesPart(state.variables, lambda: list(state.variables))}, _COPIES
    return {}, frozenset()


def part_for(value: object, names: ParameterNames) -> Part | None:
    """Return the part that keeps ``value``; None for anything but a Keras model or optimizer on TensorFlow."""
    if "tensorflow" not in sys.modules:
        return None
    kinds = [kind for kind in type(value).__mro__ if kind.__module__.partition(".")[0] in ("keras", "tf_keras")]
    called = {kind.__name__ for kind in kinds}
    if "Model" in called and hasattr(value, "trainable_variables"):
        return KerasModelPart(value)
    if called & {"Optimizer", "OptimizerV2", "LossScaleOptimizer"} and hasattr(value, "apply_gradients"):
        return KerasOptimizerPart(value)
    return None


def _read(variable: Any) -> Tensor:
    import tensorflow as tf

    kind = variable.dtype
    if not (kind.is_floating or kind.is_integer or kind.is_bool or kind.is_complex):
        raise StateError(f"{variable.name!r} is of type {kind.name}, which cannot be committed")
    content = variable.read_value()
    if not content.device.endswith("CPU:0"):
        with tf.device("/CPU:0"):
            content = tf.identity(content)
    tensor = torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(content))
    return tensor.view(torch.bool) if kind.is_bool and tensor.dtype != torch.bool else tensor


def _array(tensor: Tensor, variable: Any) -> Any:
    """NumPy's view of a committed tensor, in the variable's type."""
    tensor = tensor.detach().cpu()
    same_size = _NO_NUMPY.get(tensor.dtype)
    if same_size is None:
        return tensor.numpy()
    return tensor.view(same_size).numpy().view(variable.dtype.as_numpy_dtype)


def _fits(variable: Any, shape: Sequence[int]) -> bool:
    """Whether a variable of an open shape may have this one."""
    declared = variable.shape.as_list()
    return len(declared) == len(shape) and all(mine in (None, its) for mine, its in zip(declared, shape, strict=True))

"""The parts of TensorFlow's objects: variables, and what has some: Keras models and optimizers, layers, ``tf.Module``.

A capture reads each variable through DLPack: torch sees the memory that TensorFlow reads, and TensorFlow copies on the
next write while that is held. A restore assigns from NumPy's view of the commit: through DLPack a variable would take
the commit's own memory, and the next step would change the commit. TensorFlow does not count writes, so whether a
variable has changed is known only by comparing (``counts_writes``).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import is_not
from typing import Any, Final

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.format import descriptions
from hvd_elastic_ext.checkpoint.format.descriptions import Description
from hvd_elastic_ext.checkpoint.format.tensor_places import WIDTHS
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.parts import Part
from hvd_elastic_ext.worker.parts.keras_models import described
from hvd_elastic_ext.worker.parts.tensorflow_rng import generator_states, restore_generators, seed_generators
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames, listed
from hvd_elastic_ext.worker.process.steps import aggregation

_TYPES: Final = frozenset(name for name in WIDTHS if not name.startswith("float8"))
"""Types of variables that are kept, by their names in torch and in TensorFlow."""
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
        self._captured: Sequence[Any] | None = None
        self._described: Sequence[Any] = ()
        self._description: bytes | None = None

    @property
    def variables(self) -> Sequence[Any]:
        """The variables that it keeps now."""
        return self._variables()

    def capture(self) -> Any:
        """Return the content of each variable, in order. Raises :class:`StateError` for one without numbers."""
        self._captured = list(self._variables())
        return [_read(variable) for variable in self._captured]

    def description(self) -> bytes | None:
        """Return the names of the variables. They are asked for again only if there are others, or in another order."""
        variables = list(self._variables()) if self._captured is None else self._captured
        if len(variables) != len(self._described) or any(map(is_not, variables, self._described)):
            self._described = variables
            self._description = descriptions.encode(self._describe(tuple(each.name for each in variables)))
        return self._description

    def _describe(self, names: tuple[str, ...]) -> Description:
        return Description(names)

    def is_firm(self, tensors: Sequence[Tensor]) -> Sequence[bool]:
        """Variables that are trained are equal on all ranks; others, such as moving means, may not be."""
        return [bool(getattr(variable, "trainable", True)) for variable in self._variables()]

    def restore(self, tree: Any) -> None:
        """Assign the committed contents. Raises :class:`StateError` if the commit has other variables."""
        variables = self._variables()
        self._demand_same(variables, tree)
        for variable, tensor in zip(variables, tree, strict=True):
            variable.assign(_array(tensor, variable), read_value=False)

    def fitted(self, given: Any) -> Any:
        """Return a list of contents by the names of the variables, or in their order."""
        variables = self._variables()
        if isinstance(given, Mapping):
            names = [variable.name for variable in variables]
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise StateError(f"several variables are called {listed(repeated)}; give a list of their contents")
            if foreign := [str(name) for name in given if name not in names]:
                raise StateError(f"there is no variable {listed(foreign)} here")
            if absent := [name for name in names if name not in given]:
                raise StateError(f"there is no {listed(absent)}")
            given = [given[name] for name in names]
        if not isinstance(given, Sequence) or not all(isinstance(each, Tensor) for each in given):
            raise StateError("it is not a list of tensors, one for each variable")
        self._demand_same(variables, given)
        return list(given)

    def _demand_same(self, variables: Sequence[Any], tree: Any) -> None:
        if not isinstance(tree, list) or not all(isinstance(each, Tensor) for each in tree):
            raise StateError(f"the commit is of something other than these {self._what}")
        if len(variables) != len(tree):
            raise StateError(
                f"there are {len(tree)} variables in the commit, and {len(variables)} here; build the same "
                f"{self._what} on every rank"
            )
        for variable, tensor in zip(variables, tree, strict=True):
            here, there = variable.dtype.name, str(tensor.dtype).removeprefix("torch.")
            if here != there or not variable.shape.is_compatible_with(tuple(tensor.shape)):
                raise StateError(
                    f"{variable.name!r} is {_size(variable.shape)} {here} here and {_size(tensor.shape)} {there} in "
                    f"the commit; build the same {self._what} on every rank"
                )


class KerasModelPart(VariablesPart):
    """A Keras model: its weights, its other variables, and the states of stateful layers, which Keras does not list.

    Raises :class:`StateError` for a model that is not built.
    """

    def __init__(self, value: Any) -> None:
        _demand_built(value)
        super().__init__(value, lambda: [*value.variables, *self._states], what="model")

    def is_firm(self, tensors: Sequence[Tensor]) -> Sequence[bool]:
        """Weights are equal on all ranks. States come from each rank's own data."""
        firm = super().is_firm(tensors)
        weights = len(firm) - len(self._states)
        return [*firm[:weights], *[False] * len(self._states)]

    @cached_property
    def _states(self) -> list[Any]:
        """Those of recurrent layers that keep them from batch to batch. A built layer has them."""
        import tensorflow as tf

        stateful = [layer for layer in self.value.submodules if getattr(layer, "stateful", False) is True]
        states = tf.nest.flatten([getattr(layer, "states", None) for layer in stateful])
        return list({id(each): each for each in states if isinstance(each, tf.Variable)}.values())

    def _describe(self, names: tuple[str, ...]) -> Description:
        return described(self.value, names=names)

    def generators(self) -> Any:
        """Return the states of its layers' random generators. By default layers have none (``tensorflow_rng``)."""
        return generator_states(self._generators) or None

    def restore_generators(self, states: Any) -> None:
        """Restore them, as far as there are as many."""
        restore_generators(self._generators, states)

    def seed_generators(self, seed: int) -> None:
        """Seed them, each in another way."""
        seed_generators(self._generators, seed)

    @cached_property
    def _generators(self) -> list[Any]:
        """Those of a built model. Finding them takes 50 ms in a large one."""
        layers = (getattr(layer, "_random_generator", None) for layer in self.value.submodules)
        return [made for each in layers if (made := getattr(each, "_generator", None)) is not None]


class KerasOptimizerPart(VariablesPart):
    """A Keras optimizer: slots, step count, and options that are variables, such as the learning rate."""

    def __init__(self, value: Any) -> None:
        super().__init__(value, lambda: optimizer_variables(value), what="optimizer")
        optimizer_variables(value)  # Nadam's counter is known before a graph is made

    @property
    def class_name(self) -> str:
        """The class name of the optimizer. Horovod's wrapper has the name of the class that it wraps."""
        return type(self.value).__name__

    def join(self, parts: Mapping[str, Part]) -> None:
        """Build it for the model that is compiled with it. Raises :class:`StateError` for one that would make its slots
        later: a commit before that could not be restored."""
        inner = _and_inner(self.value)[-1]
        if hasattr(inner, "_create_all_weights"):
            inner._create_all_weights([])  # its step count and options, which it would make in its first step
        if _is_built(inner):
            return
        models = [part.value for part in parts.values() if isinstance(part, KerasModelPart)]
        own = next((each for each in models if getattr(each, "optimizer", None) is self.value), None)
        if own is not None:
            build(self.value, own)
            return
        name = next((name for name, part in parts.items() if part is self), "optimizer")
        first = "" if hasattr(inner, "_create_all_weights") else f"call {name}.build(model.trainable_variables), or "
        raise StateError(
            f"state.{name} has made no step, so it has no variables yet; {first}compile its model with it before"
        )

    def is_firm(self, tensors: Sequence[Tensor]) -> Sequence[bool]:
        """Slots are the same on all ranks. A number, such as the learning rate, may have been set on one alone."""
        return [tensor.dim() > 0 for tensor in tensors]

    def optimizers(self, name: str) -> dict[str, Any]:
        """Return the optimizer by its name in the State."""
        return {name: self.value}

    def settle(self) -> None:
        """Drop gradients that Horovod has added up for a step that is not done (``backward_passes_per_step``)."""
        import tensorflow as tf

        helper = aggregation(self.value)
        if helper is not None:
            for variable in (*helper.locally_aggregated_grads.values(), helper.counter):
                variable.assign(tf.zeros_like(variable), read_value=False)

    @contextmanager
    def watched(self, stepped: Callable[[], None]) -> Iterator[None]:
        """Call ``stepped`` after each call of a function with a graph, and each ``apply_gradients`` outside of one."""
        import tensorflow as tf

        # The class of what tf.function returns has a place of its own in each version.
        places: list[tuple[Any, str]] = [(type(tf.function(lambda: None)), "__call__")]
        places += [(kind, "apply_gradients") for kind in type(self.value).__mro__ if "apply_gradients" in vars(kind)]
        originals = [(kind, name, vars(kind)[name]) for kind, name in places]
        depth = [0]

        def watching(original: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                depth[0] += 1
                try:
                    result = original(*args, **kwargs)
                finally:
                    depth[0] -= 1
                if depth[0] == 0 and tf.executing_eagerly():
                    stepped()
                return result

            return called

        for kind, name, original in originals:
            setattr(kind, name, watching(original))
        try:
            yield
        finally:
            for kind, name, original in originals:
                setattr(kind, name, original)


class _Count(int):
    """Nadam's number, which knows whether a graph was made with it."""

    in_graph = False

    def __add__(self, more: int) -> _Count:
        import tensorflow as tf

        return _count(int(self) + more, in_graph=self.in_graph or not tf.executing_eagerly())


def _count(number: int, *, in_graph: bool) -> _Count:
    made = _Count(number)
    made.in_graph = in_graph
    return made


class _NadamCounter:
    """The number in which Keras' Nadam notes for which step it has made its product of decays. With another one, it
    would multiply once for each variable. It is not a variable; this has what is used of one.

    A graph has the number in it that was there when it was made, and leaves behind one that no step changes. So a
    commit has 0 in its place, and a process that makes its graph after a restore makes it as the others did.
    """

    trainable = False

    def __init__(self, optimizer: Any) -> None:
        import tensorflow as tf

        self._optimizer = weakref.ref(optimizer)
        self.name, self.dtype, self.shape = "u_product_counter", tf.int64, tf.TensorShape([])
        number = vars(optimizer)[_COUNTER]
        setattr(optimizer, _COUNTER, _count(number, in_graph=number != int(optimizer.iterations) + 1))

    @property
    def number(self) -> int:
        """What is committed of it."""
        count = vars(self._optimizer())[_COUNTER]
        return 0 if getattr(count, "in_graph", False) else int(count)

    def assign(self, number: Any, *, read_value: bool) -> None:
        own = vars(self._optimizer())[_COUNTER]
        setattr(self._optimizer(), _COUNTER, _count(int(number) or int(own), in_graph=not number))


_COUNTER: Final = "_u_product_counter"
_counters: Final = weakref.WeakKeyDictionary[Any, _NadamCounter]()


def _counter_of(optimizer: Any) -> _NadamCounter:
    """The same one at each call: a part knows its variables by what they are."""
    if optimizer not in _counters:
        _counters[optimizer] = _NadamCounter(optimizer)
    return _counters[optimizer]


def optimizer_variables(optimizer: Any) -> list[Any]:
    """All variables of a Keras optimizer: those that it lists, options and others that it keeps beside them, and those
    of an optimizer within it, whose loss it scales. Nadam's counter is one of them here."""
    import tensorflow as tf

    found: dict[int, Any] = {}
    counters = []
    for each in _and_inner(optimizer):
        if _COUNTER in vars(each):
            counters.append(_counter_of(each))
        given = each.variables
        beside = [*getattr(each, "_hyper", {}).values(), *vars(each).values()]
        beside += vars(each._loss_scale).values() if hasattr(vars(each).get("_loss_scale"), "__dict__") else ()
        for variable in (*(given() if callable(given) and not isinstance(given, list | tuple) else given), *beside):
            if isinstance(variable, tf.Variable):
                found.setdefault(id(variable), variable)
    return [*found.values(), *counters]


def build(optimizer: Any, model: Any) -> None:
    """Make an optimizer's variables now. Most have one before the first step, and all of them after it."""
    variables = model.trainable_variables
    inner = _and_inner(optimizer)[-1]
    if hasattr(inner, "_create_all_weights"):  # of the older kind
        inner._create_all_weights(variables)
    elif hasattr(inner, "build") and not getattr(inner, "_built", False):
        inner.build(variables)


def _is_built(inner: Any) -> bool:
    """Whether an optimizer has all its variables, or will not have more."""
    import tensorflow as tf

    if not hasattr(inner, "_create_all_weights"):
        return bool(getattr(inner, "_built", False))
    if inner._slots:
        return True
    other = type(inner).from_config(inner.get_config())
    other._create_all_weights([tf.Variable(0.0)])
    return not other._slots


def _demand_built(value: Any) -> None:
    if not value.built:
        raise StateError(f"{value.name!r} is not built yet, so it has no variables; call build(input_shape) first")


def _and_inner(optimizer: Any) -> list[Any]:
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, inner]


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
    """Return the part that keeps ``value``: a variable, or what has variables; None for anything else.

    Keras 3 has variables of its own kind. Its models are ``tf.Module`` only on TensorFlow.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "Variable"):  # it is being imported
        return None
    called = {kind.__name__ for kind in type(value).__mro__ if _is_of_keras_2(kind.__module__)}
    if "Model" in called:
        return KerasModelPart(value)
    if called & {"Optimizer", "OptimizerV2"} and hasattr(value, "apply_gradients"):
        return KerasOptimizerPart(value)
    if isinstance(value, tf.Variable):
        return VariablesPart(value, lambda: [value], what="variable")
    if isinstance(value, tf.random.Generator):
        return VariablesPart(value, lambda: [value.state], what="generator")
    if isinstance(value, tf.Module) and all(isinstance(each, tf.Variable) for each in value.variables):
        if "Layer" in called:
            _demand_built(value)
        return VariablesPart(value, lambda: list(value.variables), what=type(value).__name__)
    return None


def _is_of_keras_2(module: str) -> bool:
    package = module.partition(".")[0]
    return package == "tf_keras" or (package == "keras" and _version_of(package).startswith("2."))


def _version_of(package: str) -> str:
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _read(variable: Any) -> Tensor:
    import tensorflow as tf

    if isinstance(variable, _NadamCounter):
        return torch.tensor(variable.number)
    # In a fifth of the time of read_value(), whose layers of Python are most of a commit of many small variables.
    kind = demand_numbers(variable.dtype, variable.name)
    return to_torch(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=kind))


def demand_numbers(kind: Any, name: str) -> Any:
    """Return a type of TensorFlow. Raises :class:`StateError` for one that torch does not take as it is: it has names,
    and no more, for integers of a few bits, and TensorFlow does not hand over floats of 8."""
    if not (kind.is_floating or kind.is_integer or kind.is_bool or kind.is_complex) or kind.name not in _TYPES:
        raise StateError(f"{name!r} is of type {kind.name}, which cannot be committed")
    return kind


def to_torch(content: Any) -> Tensor:
    """Return torch's view of the memory of a tensor of TensorFlow, or of a copy on the CPU. It is not to be changed."""
    import tensorflow as tf

    if not content.device.endswith("CPU:0"):
        with tf.device("/CPU:0"):
            content = tf.identity(content)
    tensor = torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(content))
    return tensor.view(torch.bool) if content.dtype.is_bool and tensor.dtype != torch.bool else tensor


def _array(tensor: Tensor, variable: Any) -> Any:
    """NumPy's view of a committed tensor, in the variable's type."""
    return to_numpy(tensor, variable.dtype)


def to_numpy(tensor: Tensor, kind: Any) -> Any:
    """Return NumPy's view of a tensor, in the same type, by its name in TensorFlow."""
    tensor = tensor.detach().cpu()
    same_size = _NO_NUMPY.get(tensor.dtype)
    if same_size is None:
        return tensor.numpy()
    return tensor.view(same_size).numpy().view(kind.as_numpy_dtype)


def _size(shape: Any) -> str:
    """A shape for an error message, of a variable whose dimensions may be open."""
    if getattr(shape, "rank", 0) is None:
        return "of any shape,"
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"

"""The parts of Keras 3 on the torch backend. On another backend Keras 3 is refused: nothing averages gradients there.

A model of Keras is a module of torch. Its optimizer is not one of torch's: its whole state is its variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from torch import Tensor

from hvd_elastic_ext.checkpoint.format import descriptions
from hvd_elastic_ext.checkpoint.format.descriptions import Description
from hvd_elastic_ext.checkpoint.values.write import is_parameter
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.commits.copying import copy_batch
from hvd_elastic_ext.worker.comms import Comms, current_world
from hvd_elastic_ext.worker.optim import keras3, keras_torch
from hvd_elastic_ext.worker.parts import InPlace, Part
from hvd_elastic_ext.worker.parts.keras_models import described
from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, ParameterNames

_VARIABLES: Final = "variables"


class KerasModelPart(ModelPart):
    """A model or layer of Keras. Its state includes what is not trained: statistics, and seeds of its layers."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._others: Mapping[str, Part] = {}

    def is_firm(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Those that are trained: statistics of a rank's own batches are parameters of torch, too."""
        return [tensor.requires_grad and is_parameter(tensor) for tensor in tensors]

    def description(self) -> bytes:
        """Return how the model is built, and the order of its variables, which its ``state_dict`` sorts."""
        return self._description

    @cached_property
    def _description(self) -> bytes:
        return descriptions.encode(described(self.value, names=tuple(each.path for each in self.value.variables)))

    def join(self, parts: Mapping[str, Part]) -> None:
        """Check the world. The model's optimizer must be among ``parts``."""
        _demand(self.value, current_world.comms())
        self._others = parts

    def capture(self) -> Any:
        """Return the ``state_dict``. Raises :class:`StateError` if the model has no weights yet, or if the State lacks
        the optimizer that it is compiled with."""
        kind = type(self.value).__name__
        if not self.value.built:
            raise StateError(
                f"the model ({kind}) has no weights yet; give it an Input, or call it once, before the State"
            )
        optimizer = getattr(self.value, "optimizer", None)
        kept = [part.value for part in self._others.values()]
        if self._others and keras3.is_optimizer(optimizer) and not any(each is optimizer for each in kept):
            raise StateError(
                f"the model ({kind}) is compiled with an optimizer ({type(optimizer).__name__}) that its State does "
                "not keep; give the State that one, too: optimizer=model.optimizer"
            )
        return super().capture()


class KerasOptimizerPart(Part):
    """An optimizer of Keras: its variables, in their order. Its settings are not part of its state."""

    firm = True
    takes_views = True

    def __init__(self, value: Any, names: ParameterNames) -> None:
        keras_torch.stepping(value)
        self.value = value
        self._names = names

    @property
    def class_name(self) -> str:
        """The class name of the optimizer. A wrapper makes a subclass with the same name."""
        return type(self.value).__name__

    def join(self, parts: Mapping[str, Part]) -> None:
        """Check the world."""
        _demand(self.value, current_world.comms())

    def capture(self) -> Any:
        """Return the values of its variables. The optimizer is built first, from the State's model."""
        return {_VARIABLES: self._values()}

    def in_place(self) -> InPlace:
        """The result of :meth:`capture`: the number of variables does not change."""
        return InPlace(self.capture())

    def restore(self, tree: Any) -> None:
        """Copy the committed values into the variables. Raises :class:`StateError` if they are of other ones."""
        values = self._values()
        copy_batch(values, self._fitting(values, tree))

    def description(self) -> bytes:
        """Return the names of its variables."""
        return self._description

    @cached_property
    def _description(self) -> bytes:
        self._values()  # builds it
        return descriptions.encode(Description(tuple(variable.path for variable in self.value.variables)))

    def optimizers(self, name: str) -> dict[str, Any]:
        """Return the optimizer by its name in the State."""
        return {name: self.value}

    def fitted(self, given: Any) -> Any:
        """Return a list of the values of ``optimizer.variables``, or a dict with it, in the form of :meth:`capture`."""
        return {_VARIABLES: self._fitting(self._values(), given)}

    def _values(self) -> list[Tensor]:
        if not self.value.built:
            self.value.build(self._trainable())
        return [variable.value for variable in self.value.variables]

    def _trainable(self) -> list[Any]:
        """The trainable variables of the model that it belongs to."""
        models: list[Any] = [model for model in self._names.models().values() if keras3.is_model(model)]
        own = [model for model in models if getattr(model, "optimizer", None) is self.value] or models
        if len(own) != 1 or not own[0].built:
            raise StateError(
                f"the optimizer ({self.class_name}) has no variables yet; call "
                "optimizer.build(model.trainable_variables) before its State is made"
            )
        return list(own[0].trainable_variables)

    def _fitting(self, values: Sequence[Tensor], tree: Any) -> list[Tensor]:
        """Return the tensors in ``tree``. Raises :class:`StateError` if they are not of the forms of ``values``."""
        given: Any = tree.get(_VARIABLES) if isinstance(tree, Mapping) else tree
        are_tensors = isinstance(given, Sequence) and all(isinstance(each, Tensor) for each in given)
        if not are_tensors or list(map(_form, values)) != list(map(_form, given)):
            raise StateError(
                f"these are not values of the {len(values)} variables of the State's optimizer ({self.class_name}); "
                "build the same model and the same optimizer on every rank"
            )
        return list(given)


def part_for(value: object, names: ParameterNames) -> Part | None:
    """Return the part for a model or optimizer of Keras 3; None for any other value.

    Raises :class:`StateError` on another backend than torch.
    """
    if keras3.is_optimizer(value):
        _demand(value)
        return KerasOptimizerPart(value, names)
    if keras3.is_model(value):
        _demand(value)
        return KerasModelPart(value)
    return None


def _demand(value: object, comms: Comms | None = None) -> None:
    why = keras_torch.why_not(comms)
    if why is not None:
        raise StateError(f"{type(value).__name__} {why}")


def _form(value: Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.dtype

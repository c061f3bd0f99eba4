"""Tensors as each library's Horovod takes and returns them, for the record of collectives, which keeps torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from hvd_elastic_ext.worker.calls.collectives import VARIABLES

OBJECTS: Final = frozenset(("broadcast_object", "allgather_object"))
"""Kinds that return what a script has made, and not tensors of their own."""


class Tensors(Protocol):
    """One library's tensors."""

    def plain(self, kind: str, value: Any) -> Any:
        """Return what a record keeps of the result of a collective of this kind."""

    def given_back(self, kind: str, value: Any, like: Sequence[Any]) -> Any:
        """Return a result from what a record has kept. ``like``: the tensors that the collective was called with."""

    def put_into(self, targets: Any, value: Any) -> Any:
        """Write what a record has kept into the tensors that the collective was called with, and return them."""

    def in_graph(self) -> bool:
        """Whether a call now makes an operation of a graph, which runs later, and perhaps often."""


class OfTorch(Tensors):
    """torch's: one, or a list of them."""

    def plain(self, kind: str, value: Any) -> Any:
        """Return it without its history."""
        return _mapped(value, lambda tensor: tensor.detach())

    def given_back(self, kind: str, value: Any, like: Sequence[Any]) -> Any:
        """Return it on the device of the tensors that the collective was called with."""
        from torch import Tensor

        device = next((each.device for each in like if isinstance(each, Tensor)), None)
        if device is None or device.type == "cpu":
            return value
        return _mapped(value, lambda tensor: tensor.to(device))

    def put_into(self, targets: Any, value: Any) -> Any:
        """Copy into each."""
        import torch

        with torch.no_grad():
            if isinstance(targets, torch.Tensor):
                targets.copy_(value)
            else:
                for target, result in zip(targets, value, strict=True):
                    target.copy_(result)
        return targets

    def in_graph(self) -> bool:
        """Never."""
        return False


class OfTensorFlow(Tensors):
    """TensorFlow's: one, or a list of them. Objects of the script are left as they are."""

    def plain(self, kind: str, value: Any) -> Any:
        """Return torch's tensors; of variables, of their present content."""
        import tensorflow as tf

        from hvd_elastic_ext.worker.parts.tensorflow_parts import demand_numbers, to_torch

        def converted(each: Any) -> Any:
            if isinstance(each, tf.Variable):
                each = each.read_value()
            if not isinstance(each, tf.Tensor):
                return each
            demand_numbers(each.dtype, kind)
            return to_torch(each)

        if kind in OBJECTS:
            return value
        return [*map(converted, value)] if kind == VARIABLES else _each(value, converted)

    def given_back(self, kind: str, value: Any, like: Sequence[Any]) -> Any:
        """Return TensorFlow's tensors, which it places as it places others."""
        return value if kind in OBJECTS else _mapped(value, _of_tensorflow)

    def put_into(self, targets: Any, value: Any) -> Any:
        """Assign to each variable; return their contents, as Horovod does."""
        for target, result in zip(targets, value, strict=True):
            target.assign(_of_tensorflow(result))
        return [target.read_value() for target in targets]

    def in_graph(self) -> bool:
        """In a ``tf.function``, and where eager execution is off."""
        import tensorflow as tf

        return not tf.executing_eagerly()


def _of_tensorflow(tensor: Any) -> Any:
    import tensorflow as tf

    from hvd_elastic_ext.worker.parts.tensorflow_parts import to_numpy

    kind = tf.as_dtype(str(tensor.dtype).removeprefix("torch."))
    return tf.constant(to_numpy(tensor, kind), kind)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    from torch import Tensor

    tensors = isinstance(value, Tensor) or (type(value) in (list, tuple) and all(isinstance(x, Tensor) for x in value))
    return _each(value, change) if tensors else value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    return type(value)(map(change, value)) if type(value) in (list, tuple) else change(value)

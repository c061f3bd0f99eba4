"""What a State is made of: each part can be captured, restored and brought to rank 0's contents.

A captured part shares no memory with the live one, in either direction, so
restoring it any number of times gives the same bytes.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn, optim

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.worker import trees
from hvd_elastic_ext.worker.comms import Comms


@runtime_checkable
class Stateful(Protocol):
    """Anything that can say and take its state: schedulers, gradient scalers, samplers, the user's own."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class Part(Protocol):
    """One named piece of shared state around a live ``value``."""

    value: Any

    def capture(self) -> Any:
        """Return a copy of the live state that later training cannot touch."""

    def restore(self, captured: Any) -> None:
        """Make the live state what ``captured`` is, leaving ``captured`` as it is."""

    def sync(self, comms: Comms, *, name: str) -> None:
        """Make the live state rank 0's live state, on every rank."""


class StatefulPart:
    """An object with ``state_dict`` and ``load_state_dict``.

    Sync loads on rank 0 too: what loading brings about (a sampler dealing
    out its samples anew) has to happen on every rank.
    """

    def __init__(self, value: Stateful) -> None:
        self.value = value

    def capture(self) -> Any:
        return copy.deepcopy(self.value.state_dict())

    def restore(self, captured: Any) -> None:
        self.value.load_state_dict(copy.deepcopy(captured))

    def sync(self, comms: Comms, *, name: str) -> None:
        # A copy: a state dict often holds the live containers, which the user's loading may empty first.
        self.value.load_state_dict(copy.deepcopy(receive_tree(self.value.state_dict(), comms, name=name)))


class OptimizerPart(StatefulPart):
    """An optimizer, sent whole.

    Rank 0's own state dict decides what there is to receive, so it does not
    matter that a newcomer has no momenta yet, or that some parameters never
    had a gradient. Loading is also what makes Horovod's optimizer forget
    reductions that were under way; gradients of the same interrupted batch go too.
    """

    value: optim.Optimizer

    def restore(self, captured: Any) -> None:
        super().restore(captured)
        self._drop_gradients()

    def sync(self, comms: Comms, *, name: str) -> None:
        # Without a copy, which would take the optimizer's memory once more: torch's loading needs none.
        self.value.load_state_dict(receive_tree(self.value.state_dict(), comms, name=name))
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for group in self.value.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class ModelPart:
    """A module: parameters and buffers are received in place, extra state is loaded."""

    def __init__(self, value: nn.Module) -> None:
        self.value = value

    def capture(self) -> Any:
        return copy.deepcopy(self.value.state_dict())

    def restore(self, captured: Any) -> None:
        copied = {k: v if isinstance(v, Tensor) else copy.deepcopy(v) for k, v in captured.items()}
        self.value.load_state_dict(copied)

    def sync(self, comms: Comms, *, name: str) -> None:
        own = dict(self.value.state_dict())
        mine, tensors = trees.split(own)
        root = comms.broadcast_object(mine, name=f"{name}.layout")
        _demand_same_layout(mine, root, name=name)
        comms.broadcast_tensors(tensors, name=name)
        if any(not isinstance(slot, trees.Slot) for slot in root.values()):
            self.value.load_state_dict(trees.fill(root, own)[0])


class HandlerPart:
    """A handler the user registered with Horovod for a type of their own; it keeps its commit itself."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.value = handler.value

    def capture(self) -> Any:
        self.handler.save()

    def restore(self, captured: Any) -> None:
        self.handler.restore()

    def sync(self, comms: Comms, *, name: str) -> None:
        self.handler.sync()


def part_for(value: object) -> Part | None:
    """Choose how ``value`` is kept, or None for a plain value."""
    if isinstance(value, nn.Module):
        return ModelPart(value)
    if isinstance(value, optim.Optimizer):
        return OptimizerPart(value)
    if isinstance(value, Stateful) and not isinstance(value, type):
        return StatefulPart(value)
    return None


def receive_tree(own: Any, comms: Comms, *, name: str) -> Any:
    """Return rank 0's tree on every rank, received into the tensors of ``own`` where they fit."""
    skeleton, tensors = trees.split(own)
    tree = own
    root = comms.broadcast_object(skeleton, name=f"{name}.layout")
    if comms.rank() != 0:
        tree, tensors = trees.fill(root, own)
    comms.broadcast_tensors(tensors, name=name)
    return tree


def _demand_same_layout(mine: dict[str, Any], root: dict[str, Any], *, name: str) -> None:
    different = sorted(
        key
        for key in mine.keys() | root.keys()
        if (mine.get(key) if isinstance(mine.get(key), trees.Slot) else key in mine)
        != (root.get(key) if isinstance(root.get(key), trees.Slot) else key in root)
    )
    if different:
        key = different[0]
        raise Permanent(
            f"state.{name}: {key!r} is {mine.get(key, 'absent')} here and {root.get(key, 'absent')} on rank 0; "
            "build the same model on every rank"
        )

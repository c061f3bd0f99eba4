"""State dicts as trees: take the tensors out to send them by themselves, and put them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands in a skeleton where a tensor was: the ``index``-th of those taken out."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def fits(self, tensor: object) -> bool:
        """True if ``tensor`` can take the contents in place."""
        return (
            isinstance(tensor, Tensor)
            and tensor.layout == torch.strided
            and (tuple(tensor.shape), tensor.dtype, tensor.device.type) == (self.shape, self.dtype, self.device)
        )

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        return f"{size} {str(self.dtype).removeprefix('torch.')}"

    def empty(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


def split(tree: Any) -> tuple[Any, list[Tensor]]:
    """Return ``tree`` with slots for its dense tensors, and the tensors.

    Dicts, lists and tuples are entered; anything else stays whole in the skeleton.
    """
    tensors: list[Tensor] = []

    def walk(node: Any) -> Any:
        if isinstance(node, Tensor) and node.layout == torch.strided:
            tensors.append(node)
            return Slot(len(tensors) - 1, tuple(node.shape), node.dtype, node.device.type)
        if type(node) is dict:
            return {key: walk(value) for key, value in node.items()}
        if type(node) in (list, tuple):
            return type(node)(walk(value) for value in node)
        return node

    return walk(tree), tensors


def fill(skeleton: Any, own: Any) -> tuple[Any, list[Tensor]]:
    """Return ``skeleton`` with a tensor in each slot, and those tensors in the order of :func:`split`.

    A tensor that stands at the same place of the tree ``own`` and fits is used
    again; elsewhere a new one is made. Contents are still to be received.
    """
    tensors: list[Tensor] = []

    def walk(node: Any, mine: Any) -> Any:
        if isinstance(node, Slot):
            tensors.append(mine if node.fits(mine) else node.empty())
            return tensors[-1]
        if type(node) is dict:
            known = mine if type(mine) is dict else {}
            return {key: walk(value, known.get(key)) for key, value in node.items()}
        if type(node) in (list, tuple):
            beside = mine if type(mine) is type(node) and len(mine) == len(node) else [None] * len(node)
            return type(node)(walk(value, other) for value, other in zip(node, beside, strict=True))
        return node

    return walk(skeleton, own), tensors

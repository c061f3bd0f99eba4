"""Where each tensor of a commit lies in the bytes of a side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor

from hvd_elastic_ext.core.errors import StateError

ALIGNMENT: Final = 64
"""Bytes; a cache line, and enough for every type of element."""

_dtype = attrgetter("dtype")
_device = attrgetter("device")


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor: what it is, and its first byte. ``device`` is the kind that the live tensor is on."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    offset: int
    length: int

    def view(self, data: Tensor) -> Tensor:
        """The tensor in ``data``, sharing its memory."""
        if self.length == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = data[self.offset : self.offset + self.length].view(self.dtype)
        return flat.as_strided(self.shape, self.stride)


@dataclass(frozen=True, eq=False)
class Layout:
    """Places in the order of the tensors. Those that may differ among ranks lie in the first ``loose`` bytes."""

    places: tuple[Place, ...]
    firm: tuple[bool, ...]
    loose: int
    length: int

    @cached_property
    def encoded(self) -> bytes:
        """The layout for a process that did not see the tensors; JSON, so reading it can do no harm."""
        rows = [
            [str(place.dtype).removeprefix("torch."), place.shape, place.stride, place.device, int(firm)]
            for place, firm in zip(self.places, self.firm, strict=True)
        ]
        return json.dumps(rows, separators=(",", ":")).encode()

    def views(self, data: Tensor) -> list[Tensor]:
        """Every tensor in ``data``, the bytes of a side."""
        return [place.view(data) for place in self.places]


Key = tuple[list[Any], ...]


def key_of(tensors: Sequence[Tensor], firm: Sequence[bool]) -> Key:
    """Equal for tensors that can be copied into each other's places. Cheap: it is made for every commit."""
    return (
        list(map(Tensor.size, tensors)),
        list(map(Tensor.stride, tensors)),
        list(map(_dtype, tensors)),
        list(map(_device, tensors)),
        list(firm),
    )


def plan(tensors: Sequence[Tensor], firm: Sequence[bool]) -> Layout:
    """Give each tensor a place. Memory formats are kept; holes and overlaps are not.

    Raises :class:`StateError` for a tensor that has no plain elements.
    """
    for tensor in tensors:
        if tensor.is_quantized or tensor.is_meta:
            what = "quantized" if tensor.is_quantized else "meta"
            raise StateError(
                f"a {what} tensor of shape {tuple(tensor.shape)} cannot be committed; keep it outside the State"
            )
    kinds = [(t.dtype, tuple(t.shape), _dense_stride(t), t.device.type, t.element_size()) for t in tensors]
    return _placed(kinds, tuple(firm))


def decode(encoded: bytes) -> Layout:
    """Read what :attr:`Layout.encoded` wrote. Raises :class:`StateError` for anything else."""
    try:
        kinds, firm = [], []
        for name, sizes, steps, device, is_firm in json.loads(encoded):
            dtype, shape, stride = getattr(torch, name), tuple(map(int, sizes)), tuple(map(int, steps))
            _demand_dense(dtype, shape, stride)
            kinds.append((dtype, shape, stride, str(device), dtype.itemsize))
            firm.append(bool(is_firm))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StateError(f"the layout of a commit cannot be read: {error}; run the same code on every rank") from error
    return _placed(kinds, tuple(firm))


def _demand_dense(dtype: object, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """What :func:`plan` makes is dense; anything else would reach beyond its place."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{dtype!r} is no type of element")
    if len(shape) != len(stride) or min(shape, default=0) < 0:
        raise ValueError(f"a tensor of {shape} with strides {stride}")
    step = 1
    for width, size in sorted((width, size) for width, size in zip(stride, shape, strict=True) if size != 1):
        if math.prod(shape) and width != step:
            raise ValueError(f"a tensor of {shape} with strides {stride}")
        step *= size


def _placed(kinds: Sequence[tuple[Any, ...]], firm: tuple[bool, ...]) -> Layout:
    places: dict[int, Place] = {}
    offset = loose = 0
    for wanted in (False, True):
        for index, (dtype, shape, stride, device, width) in enumerate(kinds):
            if firm[index] is wanted:
                length = math.prod(shape) * width
                places[index] = Place(dtype, shape, stride, device, offset, length)
                offset += -(-length // ALIGNMENT) * ALIGNMENT
        loose = loose if wanted else offset
    return Layout(tuple(places[index] for index in range(len(kinds))), firm, loose, offset)


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    if tensor.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return _contiguous_stride(tuple(tensor.shape))
    return tuple(tensor.stride())


def _contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))

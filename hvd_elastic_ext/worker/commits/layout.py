"""The place of each tensor of a commit in the bytes of a side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.format import tensor_places
from hvd_elastic_ext.core.errors import Permanent, StateError
from hvd_elastic_ext.core.json_text import to_text


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor: its form, and its first byte in the side. ``device`` is the kind of device of the live tensor."""

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
    """Places in the order of the tensors. Tensors that may differ among ranks are in the first ``loose`` bytes."""

    places: tuple[TensorPlace, ...]
    firm: tuple[bool, ...]
    loose: int
    length: int

    @cached_property
    def encoded(self) -> bytes:
        """The layout as JSON, for a process that does not have the tensors. JSON is safe to read."""
        rows = [
            [str(place.dtype).removeprefix("torch."), place.shape, place.stride, place.device, int(firm)]
            for place, firm in zip(self.places, self.firm, strict=True)
        ]
        return to_text(rows).encode()

    def views(self, data: Tensor) -> list[Tensor]:
        """Every tensor in ``data``, the bytes of a side."""
        return [place.view(data) for place in self.places]


Key = tuple[list[Any], list[tuple[int, tuple[int, ...]]], list[bool]]


def key_of(tensors: Sequence[Tensor], firm: Sequence[bool]) -> Key:
    """Return a key that is equal for tensors that can be copied into each other's places.

    With fewer than two dimensions, the stride does not change the place (:func:`_dense_stride`).
    """
    strides = [(number, tensor.stride()) for number, tensor in enumerate(tensors) if tensor.dim() > 1]
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors], strides, list(firm)


def has_key(tensors: Sequence[Tensor], firm: Sequence[bool], key: Key) -> bool:
    """Whether :func:`key_of` is ``key``. This runs for every commit, and so makes no list of its own."""
    return len(tensors) == len(key[0]) and list(firm) == key[2] and has_rows(tensors, key, 0)


def has_rows(tensors: Sequence[Tensor], key: Key, first: int) -> bool:
    """Whether ``key`` has these tensors at the numbers from ``first`` on."""
    rows, strides, _ = key
    end = first + len(tensors)
    if end > len(rows):
        return False
    for tensor, (shape, dtype, device) in zip(tensors, islice(rows, first, end), strict=True):
        if tensor.dtype is not dtype or tensor.shape != shape or tensor.device != device:
            return False
    return all(tensors[number - first].stride() == stride for number, stride in strides if first <= number < end)


def plan(tensors: Sequence[Tensor], firm: Sequence[bool]) -> Layout:
    """Return the layout with a place for each tensor. It keeps memory formats, but no holes and overlaps.

    Raises :class:`StateError` for a tensor that has no plain elements.
    """
    for tensor in tensors:
        kind = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_quantized or tensor.is_meta or kind not in tensor_places.WIDTHS:
            what = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else kind
            raise StateError(
                f"a {what} tensor of shape {tuple(tensor.shape)} cannot be committed; keep it outside the State"
            )
    kinds = [(t.dtype, tuple(t.shape), _dense_stride(t), t.device.type) for t in tensors]
    lengths = [tensor.numel() * tensor.element_size() for tensor in tensors]
    offsets, loose, length = tensor_places.offsets(lengths, firm)
    places = (TensorPlace(*kind, *where) for kind, *where in zip(kinds, offsets, lengths, strict=True))
    return Layout(tuple(places), tuple(firm), loose, length)


def decode(encoded: bytes) -> Layout:
    """Read what :attr:`Layout.encoded` wrote. Raises :class:`StateError` for anything else."""
    try:
        found = tensor_places.decode(encoded)
        places = (
            TensorPlace(
                getattr(torch, place.dtype), place.shape, place.stride, place.device, place.offset, place.length
            )
            for place in found.all
        )
        return Layout(tuple(places), tuple(place.firm for place in found.all), found.loose, found.length)
    except (Permanent, AttributeError) as error:
        raise StateError(f"{error}; run the same code on every rank") from error


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill the memory without holes, in any order of the dimensions, and without overlaps."""
    return tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    if tensor.is_contiguous() or not is_dense(tensor):
        return _contiguous_stride(tuple(tensor.shape))
    return tuple(tensor.stride())


def _contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))

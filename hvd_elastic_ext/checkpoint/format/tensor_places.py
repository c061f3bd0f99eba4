"""The place of each tensor in a commit's bytes, read from the layout without torch.

The worker, which has the tensors, makes the layout (``worker/commits/layout.py``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from hvd_elastic_ext.core.errors import Permanent

ALIGNMENT: Final = 64
"""Alignment of tensors in bytes: a cache line, and enough for every type of element."""
SECTOR: Final = 4096
"""Bytes of a sector: a multiple of the unit in which a disk writes. No machine's page is shorter."""
_WIDEST: Final = 1 << 62
"""Largest plausible length; a larger one is invalid."""
_DIMENSIONS: Final = 64
"""Most dimensions of a torch tensor."""

WIDTHS: Final = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of an element, for each type with plain elements in torch."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor: its form, and its bytes in the commit's data. It is dense, in the order of its strides."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    """The kind of the live tensor's device."""
    firm: bool
    """Whether the tensor is the same on all ranks."""
    offset: int
    length: int

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions in memory order, the largest stride first."""
        dimensions = range(len(self.shape))
        if self.length == 0 or _is_contiguous(self.shape, self.stride):
            return tuple(dimensions)
        return tuple(sorted(dimensions, key=lambda dimension: -self.stride[dimension]))


@dataclass(frozen=True)
class Places:
    """The places of all tensors of a commit."""

    all: tuple[TensorPlace, ...]
    """In the order of the tensors."""
    loose: int
    """Tensors that may differ among ranks are in the first so many bytes."""
    length: int
    """Bytes of all."""

    @cached_property
    def by_offset(self) -> tuple[int, ...]:
        """Numbers of the tensors that are not empty, in memory order."""
        filled = (number for number, place in enumerate(self.all) if place.length)
        return tuple(sorted(filled, key=lambda number: self.all[number].offset))

    @cached_property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """First byte and end of each gap between tensors, of fewer than :data:`ALIGNMENT` bytes."""
        ends = [(place.offset + place.length, place.offset) for place in (self.all[n] for n in self.by_offset)]
        edges = [(0, 0), *ends, (self.length, self.length)]
        return tuple((end, start) for (end, _), (_, start) in pairwise(edges) if end < start)


def decode(layout: bytes) -> Places:
    """Read a commit's layout. Raises :class:`Permanent` for anything else."""
    try:
        rows = [_row(*row) for row in json.loads(layout)]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError) as error:
        raise Permanent(f"the layout of a commit cannot be read: {error}") from error
    lengths = [math.prod(shape) * WIDTHS[dtype] for dtype, shape, *_ in rows]
    starts, loose, length = offsets(lengths, [firm for *_, firm in rows])
    if length > _WIDEST:
        raise Permanent("the layout of a commit cannot be read: its tensors are larger than any memory")
    return Places(
        tuple(TensorPlace(*row, *where) for row, *where in zip(rows, starts, lengths, strict=True)), loose, length
    )


def offsets(lengths: Sequence[int], firm: Sequence[bool]) -> tuple[list[int], int, int]:
    """Assign the first bytes of tensors with these ``lengths``; those that are not ``firm`` come first.

    Return ``(first bytes, length of the part that is not firm, total length)``.
    """
    starts = [0] * len(lengths)
    end = loose = 0
    for wanted in (False, True):
        for number, length in enumerate(lengths):
            if firm[number] is wanted:
                starts[number] = end
                end += -(-length // ALIGNMENT) * ALIGNMENT
        loose = loose if wanted else end
    return starts, loose, end


Row = tuple[str, tuple[int, ...], tuple[int, ...], str, bool]


def _row(dtype: Any, shape: Any, stride: Any, device: Any, firm: Any) -> Row:
    if dtype not in WIDTHS:
        raise ValueError(f"{dtype!r} is not a type of element that is known here")
    if max(len(shape), len(stride)) > _DIMENSIONS:
        raise ValueError(f"a tensor of {len(shape)} dimensions")
    numbers = [*shape, *stride]
    if len(shape) != len(stride) or not all(type(number) is int and 0 <= number <= _WIDEST for number in numbers):
        raise ValueError(f"a tensor of {shape} with strides {stride}")
    if not isinstance(device, str) or firm not in (0, 1):
        raise ValueError(f"a tensor on {device!r}, firm: {firm!r}")
    _demand_dense(shape, stride)
    return dtype, tuple(shape), tuple(stride), device, bool(firm)


def _demand_dense(shape: Sequence[int], stride: Sequence[int]) -> None:
    step = 1
    for width, size in sorted((width, size) for width, size in zip(stride, shape, strict=True) if size != 1):
        if math.prod(shape) and width != step:
            raise ValueError(f"a tensor of {shape} with strides {stride}")
        step *= size


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    step = 1
    for size, width in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and width != step:
            return False
        step *= size
    return True

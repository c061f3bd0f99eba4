"""Small tensors on a CUDA device, copied to and from a commit in few pieces.

torch takes about 4 µs to queue one copy between a device and the host; in that time the bus moves 200 kB. So small
tensors that are near each other in a commit are gathered in one piece of the device's memory, at the same distances.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from hvd_elastic_ext.checkpoint.format.tensor_places import ALIGNMENT
from hvd_elastic_ext.worker.commits.copying import Streams, on_own_stream
from hvd_elastic_ext.worker.commits.layout import Layout, TensorPlace

log = logging.getLogger(__name__)

SMALL: Final = 64 << 10
"""Bytes of the largest tensor that is staged."""
MAX_STAGING_BYTES: Final = 64 << 20
"""Bytes of staging memory on a device. Tensors beyond it are copied one by one."""
NEAR: Final = 4 << 10
"""Most bytes between two tensors of one piece. They belong to tensors on the host, such as the step of an optimizer."""
PIECE: Final = 4 << 20
"""Bytes of the longest piece."""
FEWEST: Final = 4
"""Fewest tensors of a piece; with fewer there is no gain."""
PLAIN: Final = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
})  # fmt: skip
"""The types for which torch copies many tensors of a device in one call."""
BITS: Final = {torch.float16: torch.int16, torch.bfloat16: torch.int16}
"""The type as which tensors of these types are copied: in their own type, torch would change the bits of a NaN."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tensors by number, ascending; their first byte in the commit and in staging memory, and the length in bytes."""

    numbers: tuple[int, ...]
    there: int
    here: int
    length: int


def pieces(layout: Layout, devices: Sequence[torch.device | None]) -> dict[torch.device, list[Piece]]:
    """Return the pieces of staged tensors for each device. ``devices`` has None for a tensor on the host.

    A piece also covers the bytes between its tensors, so these must be written after it.
    """
    places, used = layout.places, Counter[torch.device]()
    found: dict[torch.device, list[Piece]] = defaultdict(list)
    for bunch in _bunches(layout, devices):
        device, first, last = devices[bunch[0]], places[bunch[0]], places[bunch[-1]]
        length = last.offset + last.length - first.offset
        if device is not None and len(bunch) >= FEWEST and used[device] + length <= MAX_STAGING_BYTES:
            found[device].append(Piece(tuple(bunch), first.offset, used[device], length))
            used[device] += -(-length // ALIGNMENT) * ALIGNMENT
    return dict(found)


def _bunches(layout: Layout, devices: Sequence[torch.device | None]) -> list[list[int]]:
    places, bunches = layout.places, list[list[int]]()
    small = [
        number
        for number, place in enumerate(places)
        if devices[number] is not None and 0 < place.length <= SMALL and place.dtype in PLAIN
    ]
    for number in sorted(small, key=lambda number: places[number].offset):
        if bunches:
            first, last, place = bunches[-1][0], bunches[-1][-1], places[number]
            if (
                (devices[last], layout.firm[last]) == (devices[number], layout.firm[number])
                and place.offset - places[last].offset - places[last].length <= NEAR
                and place.offset + place.length - places[first].offset <= PIECE
            ):
                bunches[-1].append(number)
                continue
        bunches.append([number])
    return bunches


class Staging:
    """Staging memory on one device for the tensors of some pieces, with a view for each tensor."""

    def __init__(self, layout: Layout, found: Sequence[Piece], device: torch.device) -> None:
        self._device = device
        self._pieces = found
        views: list[tuple[int, TensorPlace]] = [
            (number, replace(place, offset=place.offset - piece.there + piece.here))
            for piece in found
            for number in piece.numbers
            for place in (layout.places[number],)
        ]
        self._by_dtype: dict[torch.dtype, tuple[list[int], list[Tensor]]] = defaultdict(lambda: ([], []))
        with torch.inference_mode(False):
            # Zeros, because the gaps between the tensors of a commit are zero.
            self._memory = torch.zeros(found[-1].here + found[-1].length, dtype=torch.uint8, device=device)
            for number, place in sorted(views, key=lambda row: row[0]):
                numbers, tensors = self._by_dtype[place.dtype]
                numbers.append(number)
                tensors += _as_bits(place.dtype, [place.view(self._memory)])
        self.numbers: frozenset[int] = frozenset(number for number, _ in views)

    def gather(self, tensors: Sequence[Tensor], data: Tensor) -> None:
        """Copy the staged ones of ``tensors``, which are all of the layout, into ``data``, the bytes of a side.

        This sets the bytes between them to zero.
        """
        with torch.no_grad(), on_own_stream(self._device):
            for dtype, (numbers, views) in self._by_dtype.items():
                torch._foreach_copy_(views, _as_bits(dtype, [tensors[number] for number in numbers]))
            for here, there in self._both(data, self._pieces):
                there.copy_(here, non_blocking=True)

    def scatter(self, data: Tensor, tensors: Sequence[Tensor], first: int, *, later: Streams | None = None) -> None:
        """Copy from ``data`` into those of ``tensors`` that are staged; they have the numbers from ``first`` on.

        ``later``: as for :func:`copy_batch`.
        """
        end = first + len(tensors)
        touched = [piece for piece in self._pieces if piece.numbers[0] < end and piece.numbers[-1] >= first]
        with torch.no_grad(), on_own_stream(self._device, later):
            for here, there in self._both(data, touched):
                here.copy_(there, non_blocking=True)
            for dtype, (numbers, views) in self._by_dtype.items():
                some = slice(bisect_left(numbers, first), bisect_left(numbers, end))
                if numbers[some]:
                    live = _as_bits(dtype, [tensors[number - first] for number in numbers[some]])
                    torch._foreach_copy_(live, views[some])

    def _both(self, data: Tensor, found: Sequence[Piece]) -> Iterator[tuple[Tensor, Tensor]]:
        for piece in found:
            yield (
                self._memory[piece.here : piece.here + piece.length],
                data[piece.there : piece.there + piece.length],
            )


def _as_bits(dtype: torch.dtype, tensors: list[Tensor]) -> list[Tensor]:
    bits = BITS.get(dtype)
    return tensors if bits is None else [tensor.view(bits) for tensor in tensors]


def stagings(layout: Layout, tensors: Sequence[Tensor]) -> list[Staging]:
    """Return staging memory for tensors like these; empty if there is no gain, or if a device has no memory for it."""
    found: Mapping[torch.device, Sequence[Piece]] = pieces(layout, [t.device if t.is_cuda else None for t in tensors])
    try:
        return [Staging(layout, some, device) for device, some in found.items()]
    except torch.cuda.OutOfMemoryError:
        log.warning("no memory on the device to gather small tensors in: commits will be slower")
        return []

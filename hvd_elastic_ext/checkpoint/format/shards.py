"""Divides the bytes of a commit among writers: about equal parts, one safetensors file each.

Tensors are assigned in the order of their memory, so that a part consists of a few long runs. A tensor of at least
:data:`CUT_ABOVE` bytes may be cut between two parts; smaller ones are not. The bytes that may differ among ranks belong
to the first part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final

from hvd_elastic_ext.checkpoint.format import safetensors_header
from hvd_elastic_ext.checkpoint.format.safetensors_header import Piece
from hvd_elastic_ext.checkpoint.format.tensor_places import SECTOR, Places
from hvd_elastic_ext.core.errors import Permanent

CUT_ABOVE: Final = 1 << 20
MAX_PARTS: Final = 100_000
"""Most parts: in a world of more processes, some write nothing."""

Run = tuple[int, int]
"""A range of a commit's data: first byte, and end."""


@dataclass(frozen=True)
class Share:
    """The content of part number ``part`` of ``parts``."""

    places: Places
    part: int
    parts: int
    pieces: tuple[Piece, ...]

    @cached_property
    def header(self) -> bytes:
        """The header of the file."""
        return safetensors_header.encode(self.pieces, self.places, {"part": str(self.part), "parts": str(self.parts)})

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The ranges of the commit's data that follow, in order."""
        return tuple(joined(piece.span(self.places) for piece in self.pieces))

    @property
    def length(self) -> int:
        """Length of the file in bytes."""
        return len(self.header) + sum(end - start for start, end in self.runs)


def share(places: Places, parts: int) -> tuple[Share, ...]:
    """Divide a commit's bytes among ``parts`` writers. The result is the same for every caller."""
    if not 0 < parts <= MAX_PARTS:
        raise Permanent(f"a checkpoint cannot be written in {parts} parts: 1 to {MAX_PARTS} will do")
    numbers = places.by_offset
    ends = list(accumulate(places.all[number].length for number in numbers))
    cuts = [0, *_cuts(places, numbers, ends, parts), ends[-1] if ends else 0]
    empty = [Piece(number, 0, 0) for number, place in enumerate(places.all) if not place.length]
    dealt = [list(_pieces(places, numbers, ends, start, end)) for start, end in pairwise(cuts)]
    dealt[0] = empty + dealt[0]
    return tuple(Share(places, part, parts, tuple(pieces)) for part, pieces in enumerate(dealt))


def _cuts(places: Places, numbers: Sequence[int], ends: Sequence[int], parts: int) -> Iterator[int]:
    """Return the ends of all parts but the last, counted in bytes of tensors."""
    total = ends[-1] if ends else 0
    loose = sum(place.length for place in places.all if place.offset < places.loose)
    first = max(loose, total // parts)
    for part in range(1, parts):
        wanted = first + (total - first) * (part - 1) // max(parts - 1, 1)
        at = bisect_right(ends, wanted)
        if at == len(ends):
            yield total
            continue
        offset, length = places.all[numbers[at]].offset, places.all[numbers[at]].length
        inside = wanted - (ends[at] - length)
        if length >= CUT_ABOVE:
            yield wanted - min(inside, (offset + inside) % SECTOR)
        else:
            yield wanted - inside + (length if inside * 2 > length else 0)


def _pieces(places: Places, numbers: Sequence[int], ends: Sequence[int], start: int, end: int) -> Iterator[Piece]:
    at = bisect_right(ends, start)
    while start < end:
        number = numbers[at]
        begun = ends[at] - places.all[number].length
        stop = min(end, ends[at])
        yield Piece(number, start - begun, stop - begun)
        start, at = stop, at + 1


def joined(runs: Iterator[Run]) -> Iterator[Run]:
    """Join adjacent runs, and drop empty ones."""
    last: Run | None = None
    for start, end in runs:
        if start == end:
            continue
        if last is not None and last[1] == start:
            last = (last[0], end)
            continue
        if last is not None:
            yield last
        last = (start, end)
    if last is not None:
        yield last

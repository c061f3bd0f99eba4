"""Which writer writes which bytes of a commit: about the same for each, as one safetensors file each.

Tensors are dealt out in the order in which they lie in memory, so that a writer's part is a few long runs. Only a
tensor of :data:`CUT_ABOVE` bytes or more is cut where one part ends and the next begins; smaller ones stay whole.
The bytes that may differ among ranks are the first writer's.
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
MOST: Final = 100_000
"""No more parts than this: a world of more processes lets some of them write nothing."""

Run = tuple[int, int]
"""First byte and end of bytes of a commit's data."""


@dataclass(frozen=True)
class Share:
    """What part number ``part`` of ``parts`` consists of."""

    places: Places
    part: int
    parts: int
    pieces: tuple[Piece, ...]

    @cached_property
    def header(self) -> bytes:
        """What the file begins with."""
        return safetensors_header.encode(self.pieces, self.places, {"part": str(self.part), "parts": str(self.parts)})

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The bytes that follow, from the commit's data, in order."""
        return tuple(joined(piece.span(self.places) for piece in self.pieces))

    @property
    def length(self) -> int:
        """Of the file, in bytes."""
        return len(self.header) + sum(end - start for start, end in self.runs)


def share(places: Places, parts: int) -> tuple[Share, ...]:
    """Deal a commit's bytes out to ``parts`` writers. The same for every caller."""
    if not 0 < parts <= MOST:
        raise Permanent(f"a checkpoint cannot be written in {parts} parts: 1 to {MOST} will do")
    numbers = places.by_offset
    ends = list(accumulate(places.all[number].length for number in numbers))
    cuts = [0, *_cuts(places, numbers, ends, parts), ends[-1] if ends else 0]
    empty = [Piece(number, 0, 0) for number, place in enumerate(places.all) if not place.length]
    dealt = [list(_pieces(places, numbers, ends, start, end)) for start, end in pairwise(cuts)]
    dealt[0] = empty + dealt[0]
    return tuple(Share(places, part, parts, tuple(pieces)) for part, pieces in enumerate(dealt))


def _cuts(places: Places, numbers: Sequence[int], ends: Sequence[int], parts: int) -> Iterator[int]:
    """Where parts end, but for the last one, counted in bytes of tensors."""
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
    """Runs that touch become one; empty ones are left out."""
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

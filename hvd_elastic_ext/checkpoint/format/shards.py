"""Divides the bytes of a commit among writers: about equal parts (shards), one safetensors file each.

Tensors are assigned in the order of their memory, so that a part consists of a few long runs. A tensor of at least
:data:`CUT_ABOVE` bytes may be cut between two parts; smaller ones are not. The bytes that may differ among ranks belong
to the first part.
"""

from __future__ import annotations

import json
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.checkpoint.format.tensor_places import SECTOR, WIDTHS, Places
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.core.json_text import to_text

# --- which bytes are in which part


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
        return encode_header(self.pieces, self.places, {"part": str(self.part), "parts": str(self.parts)})

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
        raise Permanent(f"a checkpoint cannot be written in {parts} parts: give 1 to {MAX_PARTS}")
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


# --- the header of its file: written, and read with strict checks
#
# The name of a tensor is its number in the layout, ``12``; that of a cut one also has the range of its elements in
# memory order, ``12[0:4096]``. The dimensions are in memory order, too, which differs for ``channels_last``, for
# example. ``__metadata__`` contains that order (``order``), and the types that the format cannot express (``bytes``).


WORDS: Final = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""The types that every reader of the format knows. Other types are written as bytes."""

HEADER_LENGTH: Final = struct.Struct("<Q")
HEADER_LIMIT: Final = 100_000_000
"""Most bytes of a header that readers accept."""

_NAME: Final = re.compile(r"(\d{1,9})(?:\[(\d{1,19}):(\d{1,19})\])?")


class Piece(NamedTuple):
    """A range of a tensor's bytes in memory order."""

    tensor: int
    """Its number in the layout."""
    start: int
    end: int

    def span(self, places: Places) -> tuple[int, int]:
        """Return the range within the commit's data."""
        offset = places.all[self.tensor].offset
        return offset + self.start, offset + self.end


def encode_header(pieces: Sequence[Piece], places: Places, facts: Mapping[str, str]) -> bytes:
    """Return the header for a file with these ``pieces`` one after another.

    Its length is a multiple of :data:`SECTOR`, so that bytes that are aligned in memory are aligned in the file.
    """
    entries: dict[str, Any] = {"__metadata__": dict(facts) | _metadata(pieces, places)}
    at = 0
    for piece in pieces:
        entries[_name(piece, places)] = {**_kind(piece, places), "data_offsets": [at, at + piece.end - piece.start]}
        at += piece.end - piece.start
    text = to_text(entries).encode()
    text += b" " * (-(HEADER_LENGTH.size + len(text)) % SECTOR)
    return HEADER_LENGTH.pack(len(text)) + text


def decode_header(text: bytes, places: Places) -> Iterator[Piece]:
    """Read a header without its length: the pieces, in the order of their bytes, which follow each other without gaps.

    Raises ``ValueError`` for anything that :func:`encode` would not have written for ``places``.
    """
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        found = sorted((_offsets(entry["data_offsets"]), name) for name, entry in entries.items())
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from None
    at = 0
    for (start, end), name in found:
        piece = _piece(name, places)
        wanted = {**_kind(piece, places), "data_offsets": [at, at + piece.end - piece.start]}
        if entries[name] != wanted or (start, end) != (at, at + piece.end - piece.start):
            raise ValueError(f"its header does not describe tensor {name[:40]} as the layout does")
        at = end
        yield piece


def _offsets(offsets: Any) -> tuple[int, int]:
    start, end = offsets
    return int(start), int(end)


def _metadata(pieces: Sequence[Piece], places: Places) -> dict[str, str]:
    numbers = sorted({piece.tensor for piece in pieces})
    orders = {str(number): order for number in numbers if (order := places.all[number].order) != tuple(sorted(order))}
    raw = {str(n): places.all[n].dtype for n in numbers if places.all[n].dtype not in WORDS}
    found = {"order": orders, "bytes": raw}
    return {key: to_text(value) for key, value in found.items() if value}


def _name(piece: Piece, places: Places) -> str:
    place = places.all[piece.tensor]
    if piece.end - piece.start == place.length:
        return str(piece.tensor)
    width = WIDTHS[place.dtype]
    return f"{piece.tensor}[{piece.start // width}:{piece.end // width}]"


def _piece(name: str, places: Places) -> Piece:
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) >= len(places.all):
        raise ValueError(f"its header names {name[:40]!r}, which is not a tensor of the layout")
    number = int(match[1])
    place = places.all[number]
    width = WIDTHS[place.dtype]
    whole = Piece(number, 0, place.length)
    piece = whole if match[2] is None else Piece(number, int(match[2]) * width, int(match[3]) * width)
    if not 0 <= piece.start <= piece.end <= place.length or _name(piece, places) != name:
        raise ValueError(f"its header names {name!r}, which is not a part of a tensor of the layout")
    return piece


def _kind(piece: Piece, places: Places) -> dict[str, Any]:
    place = places.all[piece.tensor]
    length = piece.end - piece.start
    word = WORDS.get(place.dtype)
    if word is None:
        return {"dtype": "U8", "shape": [length]}
    if length == place.length:
        return {"dtype": word, "shape": [place.shape[dimension] for dimension in place.order]}
    return {"dtype": word, "shape": [length // WIDTHS[place.dtype]]}

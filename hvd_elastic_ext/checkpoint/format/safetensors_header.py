"""Writes the header of a safetensors file, and reads it with strict checks.

The name of a tensor is its number in the layout, ``12``; that of a cut one also has the range of its elements in
memory order, ``12[0:4096]``. The dimensions are in memory order, too, which differs for ``channels_last``, for example.
``__metadata__`` contains that order (``order``), and the types that the format cannot express (``bytes``).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.checkpoint.format.tensor_places import SECTOR, WIDTHS, Places
from hvd_elastic_ext.core.json_text import to_text

WORDS: Final = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""The types that every reader of the format knows. Other types are written as bytes."""

LENGTH: Final = struct.Struct("<Q")
LIMIT: Final = 100_000_000
"""Most bytes of a header that readers accept."""

_NAME: Final = re.compile(r"(\d{1,9})(?:\[(\d{1,19}):(\d{1,19})\])?")


class Piece(NamedTuple):
    """A range of a tensor's bytes in memory order; ``tensor`` is its number in the layout."""

    tensor: int
    start: int
    end: int

    def span(self, places: Places) -> tuple[int, int]:
        """Return the range within the commit's data."""
        offset = places.all[self.tensor].offset
        return offset + self.start, offset + self.end


def encode(pieces: Sequence[Piece], places: Places, facts: Mapping[str, str]) -> bytes:
    """Return the header for a file with these ``pieces`` one after another.

    Its length is a multiple of :data:`SECTOR`, so that bytes that are aligned in memory are aligned in the file.
    """
    entries: dict[str, Any] = {"__metadata__": dict(facts) | _metadata(pieces, places)}
    at = 0
    for piece in pieces:
        entries[_name(piece, places)] = {**_kind(piece, places), "data_offsets": [at, at + piece.end - piece.start]}
        at += piece.end - piece.start
    text = to_text(entries).encode()
    text += b" " * (-(LENGTH.size + len(text)) % SECTOR)
    return LENGTH.pack(len(text)) + text


def decode(text: bytes, places: Places) -> Iterator[Piece]:
    """Read a header without its length: the pieces, in the order of their bytes, which follow each other without gaps.

    Raises ``ValueError`` for anything that :func:`encode` would not have written for ``places``.
    """
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        found = sorted((_offsets(entry["data_offsets"]), name) for name, entry in entries.items())
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header is none ({type(error).__name__})") from None
    at = 0
    for (start, end), name in found:
        piece = _piece(name, places)
        wanted = {**_kind(piece, places), "data_offsets": [at, at + piece.end - piece.start]}
        if entries[name] != wanted or (start, end) != (at, at + piece.end - piece.start):
            raise ValueError(f"its header describes tensor {name[:40]} otherwise than the layout")
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

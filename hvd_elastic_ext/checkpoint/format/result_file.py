"""The bytes of a training call's result: what the worker appends to its slot's past, and what a checkpoint stores.

8 bytes (little endian) with the length of the head, the head as JSON (ASCII), then data, layout and tree of the State's
last commit in that call, as in a commit's memory (``core/commit_record.py``), without local state. Call 0, and a call
without a State of ours, have none of these three.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FORMAT: Final = 1
LIMIT: Final = 1 << 30
"""Most bytes of a head."""
_LENGTH: Final = struct.Struct("<Q")
_LENGTHS: Final = ("loose", "data", "layout", "tree")
_KEYS: Final = ("format", "program", "record", "value", "rng", "collectives")
_MOST: Final = 1 << 62


@dataclass(frozen=True)
class Head:
    """The first part of a result. ``loose``, ``data``, ``layout`` and ``tree`` are lengths, as in a commit's record."""

    program: str
    """Which program made it."""
    value: str | None = None
    """What the training function returned (None for call 0), as text of ``checkpoint/values/alone.py``."""
    loose: int = 0
    data: int = 0
    layout: int = 0
    tree: int = 0
    rng: str | None = None
    """The state of the random generators, as such text; None if it differs between ranks."""
    collectives: Sequence[Any] = ()
    """What collectives returned between this call and the next."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further entries; a reader ignores those that it does not know."""

    @property
    def has_state(self) -> bool:
        """Whether the content of a State comes after it."""
        return self.tree > 0


@dataclass(frozen=True)
class Result:
    """A result: its head, and data, layout and tree, which are parts of the bytes it was read from."""

    head: Head
    data: memoryview
    layout: memoryview
    tree: memoryview


def encode_head(head: Head) -> bytes:
    """Return the bytes before data, layout and tree. Raises ``ValueError`` or ``TypeError`` for collectives that are
    not JSON."""
    plain = {
        **head.more,
        "format": FORMAT,
        "program": head.program,
        "record": {name: getattr(head, name) for name in _LENGTHS},
        "value": head.value,
        "rng": head.rng,
        "collectives": list(head.collectives),
    }
    text = json.dumps(plain, allow_nan=False).encode("ascii")
    if len(text) > LIMIT:
        raise ValueError(f"its head has {len(text)} bytes, and {LIMIT} is the most")
    return _LENGTH.pack(len(text)) + text


def decode(content: bytes | bytearray | memoryview) -> Result:
    """Read a result, without a copy of its data. Raises ``ValueError`` that says what is wrong."""
    view = memoryview(content).cast("B")
    if len(view) < _LENGTH.size:
        raise ValueError(f"a result of {len(view)} bytes is not whole")
    length = _LENGTH.unpack_from(view)[0]
    at = _LENGTH.size + length
    if length > LIMIT or at > len(view):
        raise ValueError(f"the head of a result would have {length} bytes")
    try:
        head = _head(json.loads(bytes(view[_LENGTH.size : at])))
    except (KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the head of a result is not valid ({type(error).__name__})") from None
    if at + head.data + head.layout + head.tree != len(view):
        raise ValueError("a result is not as long as its head says")
    regions = []
    for size in (head.data, head.layout, head.tree):
        regions.append(view[at : at + size])
        at += size
    return Result(head, *regions)


def _head(plain: Mapping[str, Any]) -> Head:
    if plain["format"] != FORMAT:
        raise ValueError(f"it is a result of format {str(plain['format'])[:20]}; this program reads format {FORMAT}")
    lengths = {name: _count(plain["record"][name]) for name in _LENGTHS}
    program, value, rng, collectives = (plain[name] for name in ("program", "value", "rng", "collectives"))
    texts = isinstance(program, str) and isinstance(value, str | None) and isinstance(rng, str | None)
    if not texts or not isinstance(collectives, list) or lengths["loose"] > lengths["data"]:
        raise ValueError("the head of a result is not valid")
    more = {name: each for name, each in plain.items() if name not in _KEYS}
    return Head(program=program, value=value, rng=rng, collectives=collectives, more=more, **lengths)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{str(value)[:40]!r} is not a length")
    return value

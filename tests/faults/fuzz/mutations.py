"""An input made of another one: bytes changed, dropped and repeated; JSON with other values in it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

LONGEST: Final = 64 << 10
"""Bytes of an input."""

WORDS: Final = (
    b"[", b"{", b"]", b"}", b'"', b"[" * 2000, b'{"a":' * 2000, b"\x00", b"\xff" * 8, b"1e999999", b"1e3000000", b"-",
    b"9" * 5000, b"NaN", b"0x" + b"f" * 3000, b"\r\n\r\n", b"\n", b"\n" * 3000, b"Content-Length: 99999999999\r\n",
    b"%s%n", b"::", b":", b"@", b"#", b" slots=", b"\x96\xff\xff\xff\x7f\x00\x00\x00\x00",
    b"2\x86" * 60, b"\x85" * 3000, b"\x80\x05", b"\xff\xff\xff\xff", b"\xe2\x80\xae", b"\\ud800",
)  # fmt: skip
"""Bytes that mean something to some reader."""
VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**18, 1.5, 1e308, "", "a", "x" * 3000, "\ud800", "../x", "/",
    "1e3000000", "1/3", "<f8", "|S", "<U999999999", [], {}, [[]], [0] * 300, {"a": 1},
)  # fmt: skip


def mutated(random_: random.Random, seeds: Sequence[bytes], values: Sequence[Any] = ()) -> bytes:
    """One of the seeds, changed a few times; where it is JSON by parts of it as often as by bytes.

    ``values`` are put into JSON besides :data:`VALUES`.
    """
    data = random_.choice(seeds)
    for _ in range(random_.choice((1, 1, 2, 3, 8))):
        tree = _tree_of(data) if random_.random() < 0.5 else None
        if tree is not None:
            data = json.dumps(_changed(random_, tree, (*VALUES, *values))).encode()
        else:
            data = _bytes_changed(random_, data, seeds)
    return data[:LONGEST]


def _tree_of(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _bytes_changed(random_: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at, end = sorted((random_.randrange(len(data) + 1), random_.randrange(len(data) + 1)))
    end = min(end, at + random_.choice((1, 4, 64, LONGEST)))
    byte, again = bytes([random_.randrange(256)]), data[at:end] * random_.choice((2, 3, 50))
    piece = random_.choice((b"", byte, random_.choice(WORDS), again, random_.choice(seeds)[at:end]))
    return data[:at] + piece + data[random_.choice((at, end)) :]


def _changed(random_: random.Random, tree: Any, values: Sequence[Any]) -> Any:
    """With one of its parts replaced, dropped, repeated, or put one level deeper."""
    places = list(_places(tree))
    if not places:
        return random_.choice(values)
    holder, key = random_.choice(places)
    change = random_.randrange(5)
    if change == 0:
        del holder[key]
    elif change == 1:
        holder[key] = [holder[key]] * random_.choice((1, 2, 300))
    elif change == 2:
        other, its = random_.choice(places)
        holder[key] = json.loads(json.dumps(other[its]))
    elif change == 3 and isinstance(holder, dict):
        holder[str(random_.choice(values))] = holder.pop(key)
    else:
        holder[key] = random_.choice(values)
    return tree


def _places(tree: Any) -> Any:
    todo = [tree]
    while todo:
        holder = todo.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            todo.append(holder[key])

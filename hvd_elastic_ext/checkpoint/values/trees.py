"""A commit's tree: one JSON object with the value of each part of a State, each on a line of its own.

The text of one part can be read without the others, because the text has no other line breaks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from hvd_elastic_ext.checkpoint.values import read
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.core.json_text import to_text

VALUES: Final = "$values"
"""The part that holds the plain values of a State (``epoch``, ``batch``); no attribute has such a name."""

CLASSES: Final = ":classes"
"""The key among these values for the class names of optimizers and schedulers, by part. Older commits do not have it,
and older programs read it as a value."""

_BETWEEN: Final = ",\n"


def encode(parts: Mapping[str, str]) -> bytes:
    """Return the tree of these parts: the text of each by its name."""
    lines = (f"{to_text(name)}:{text}" for name, text in parts.items())
    return encode_value(f"{{{_BETWEEN.join(lines)}}}")


def decode(tree: bytes) -> dict[str, str]:
    """Return the text of each part by its name. Raises :class:`StateError` for bytes of another form."""
    parts: dict[str, str] = {}
    try:
        for line in decode_value(tree)[1:-1].split(_BETWEEN):
            name, end = json.JSONDecoder().raw_decode(line)
            parts[_text(name)] = line[end + 1 :]
    except (ValueError, RecursionError, MemoryError) as error:
        raise StateError(f"a commit's tree cannot be read: {str(error)[:200]}") from None
    return parts


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError("a part without a name")
    return name


def check(tree: bytes) -> None:
    """Raise :class:`StateError` if the bytes are not a tree. Does not make its values."""
    for text in decode(tree).values():
        read.check(text)


def encode_value(text: str) -> bytes:
    """Return the text of a value as bytes. Keeps half a surrogate pair, which a str may contain."""
    return text.encode("utf-8", "surrogatepass")


def decode_value(data: bytes) -> str:
    """Return the text of a value. Raises ``ValueError`` for invalid bytes."""
    return data.decode("utf-8", "surrogatepass")


def check_value(data: bytes) -> None:
    """Raise :class:`StateError` or ``ValueError`` if the bytes are not a value. Does not make the value."""
    read.check(decode_value(data))

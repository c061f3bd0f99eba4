"""Parses bodies while they arrive: lines of a watch, objects of a list. Pure.

A list of ten thousand pods has fifty megabytes. The parser never holds the text of the whole list.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

MAX_LINE: Final = 16 << 20
"""Most bytes of a line. etcd keeps no object of more than 1.5 MiB."""

_DECODER = json.JSONDecoder()
_ITEMS = re.compile(r'"items"\s*:\s*\[')
_BEFORE_OBJECT = re.compile(r"\s*(,?)\s*(?=\{)")


class LineSplitter:
    """Makes lines from the pieces of a body. A line is bytes without the line end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Add ``piece``; return the lines that are complete now, without blank ones. Raises ``ValueError`` for a line
        that is too long.
        """
        *ended, rest = piece.split(b"\n")
        if ended:
            ended[0] = b"".join([*self._pieces, ended[0]])
            self._pieces, self._size = [], 0
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
            if self._size > MAX_LINE:
                raise ValueError(f"a line of the answer is longer than {MAX_LINE >> 20} MiB")
        return [line for line in ended if line.strip()]


class ListParser:
    """Parses a list: ``{"kind": …, "metadata": {…}, "items": [{…}, …]}``, with the keys in any order."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._head = ""
        self._began = False
        self._wanted = 0

    def feed(self, piece: bytes) -> list[Any]:
        """Add ``piece``; return the objects that are complete now. Raises ``ValueError`` if the body is not a list."""
        self._text += self._utf8.decode(piece)
        return self._complete() if len(self._text) >= self._wanted else []

    def finish(self) -> list[Any]:
        """End the list; return the last objects. Raises ``ValueError`` if it is incomplete."""
        self._text += self._utf8.decode(b"", final=True)
        found = self._complete()
        around = json.loads(self._head + self._text)  # the list without its objects
        if not isinstance(around, dict) or around.get("items", self) not in (None, []):
            raise ValueError("the answer is not a list: it has no items")
        if isinstance(metadata := around.get("metadata"), dict):
            self.metadata = metadata
        return found

    def _complete(self) -> list[Any]:
        """Remove the complete objects from the text, and return them."""
        if not self._head and (start := _ITEMS.search(self._text)) is not None:
            self._head, self._text = self._text[: start.end()], self._text[start.end() :]
        found, at = [], 0
        while self._head and (before := _BEFORE_OBJECT.match(self._text, at)) is not None:
            if bool(before[1]) is not self._began:
                raise ValueError("the answer is not a list: commas separate its items")
            try:
                item, at = _DECODER.raw_decode(self._text, before.end())
            except ValueError:
                break
            self._began = True
            found.append(item)
        self._text = self._text[at:]
        # Parse an incomplete object again only when twice as much text is there, so that repeated parsing costs little.
        self._wanted = 2 * len(self._text)
        return found

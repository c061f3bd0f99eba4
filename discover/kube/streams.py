"""Parses bodies while they arrive: lines of a watch, objects of a list. Pure.

A list of ten thousand pods has fifty megabytes; only one object at a time is held as a whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

_Reading: TypeAlias = Generator[None, None, T]
"""Returns what was read; yields where more of the text is needed."""

MAX_LINE: Final = 16 << 20
"""Bytes. etcd keeps no object of more than 1.5 MiB."""

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")


class LineSplitter:
    """Cuts pieces into lines: bytes without their line end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take in ``piece``; return the complete lines without blank ones. Raises ``ValueError`` for a line that is too
        long.
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
    """Parses a list: ``{"kind": …, "metadata": {…}, "items": [{…}, …]}``, the keys in any order."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._wanted = 0
        self._found: list[Any] = []
        self._whole = False
        self._reading = self._document()

    def feed(self, piece: bytes) -> list[Any]:
        """Take in ``piece``; return the complete objects. Raises ``ValueError`` for what is no list."""
        self._text += self._utf8.decode(piece)
        if len(self._text) >= self._wanted:
            self._go_on()
        found, self._found = self._found, []
        return found

    def finish(self) -> list[Any]:
        """End the list; return the last objects. Raises ``ValueError`` if it is incomplete."""
        self._text += self._utf8.decode(b"", final=True)
        self._go_on()
        if not self._whole:
            raise ValueError("the list ends before its end")
        found, self._found = self._found, []
        return found

    def _go_on(self) -> None:
        next(self._reading, None)
        self._text, self._at = self._text[self._at :], 0
        # An incomplete object is tried again once there is twice as much of it: so trying costs little.
        self._wanted = 2 * len(self._text)

    def _document(self) -> _Reading[None]:
        yield from self._one_of("{")
        listed = False
        while True:
            key = yield from self._value()
            yield from self._one_of(":")
            if key == "items":
                listed = True
                yield from self._items()
            elif key == "metadata" and isinstance(value := (yield from self._value()), dict):
                self.metadata = value
            elif key != "metadata":
                yield from self._value()
            if (yield from self._one_of(",}")) == "}":
                break
        if not listed:
            raise ValueError("the answer is no list: it has no items")
        self._whole = True

    def _items(self) -> _Reading[None]:
        if (yield from self._peek()) == "n":  # null is how an empty list may be written
            yield from self._value()
            return
        yield from self._one_of("[")
        if (yield from self._peek()) == "]":
            self._at += 1
            return
        while True:
            found = yield from self._value()
            self._found.append(found)
            if (yield from self._one_of(",]")) == "]":
                return

    def _value(self) -> _Reading[Any]:
        while True:
            yield from self._peek()
            try:
                value, self._at = _DECODER.raw_decode(self._text, self._at)
            except ValueError:
                yield
            else:
                return value

    def _one_of(self, characters: str) -> _Reading[str]:
        found = yield from self._peek()
        if found not in characters:
            raise ValueError(f"the answer is no list: {found!r} where {' or '.join(map(repr, characters))} belongs")
        self._at += 1
        return found

    def _peek(self) -> _Reading[str]:
        """The next character that is not blank."""
        while True:
            self._at = _end_of_blanks(self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            yield


def _end_of_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()

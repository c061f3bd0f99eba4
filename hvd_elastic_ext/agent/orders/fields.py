"""Reads the fields of a JSON object one by one, and says of what is wrong neither more nor less than needed. Pure."""

from __future__ import annotations

import binascii
import math
from typing import Any, Final

MAX_SLOT: Final = 1023
MAX_COUNT: Final = (1 << 63) - 1
"""Of things that are counted for as long as a job lives."""

_LONG_S: Final = 1e6
_REQUIRED: Final = object()


class OrderError(ValueError):
    """What is wrong with an order, in one line without any of its values; ``slot`` if that could be read."""

    def __init__(self, problem: str, slot: int | None = None) -> None:
        super().__init__(problem)
        self.slot = slot


class Fields:
    """Takes the fields of an object one by one and refuses what is wrong, missing or left over."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self._entry = dict(entry)
        self._known: list[str] = []
        self._slot: int | None = None

    def slot(self) -> int:
        self._slot = self.whole("slot", most=MAX_SLOT)
        return self._slot

    def wrong(self, name: str, must_be: str) -> OrderError:
        return OrderError(f"'{name}' must be {must_be}", self._slot)

    def take(self, name: str, default: object = _REQUIRED) -> Any:
        self._known.append(name)
        value = self._entry.pop(name, None)
        if value is None and default is _REQUIRED:
            raise OrderError(f"'{name}' is missing", self._slot)
        return default if value is None else value

    def whole(self, name: str, default: object = _REQUIRED, *, least: int = 0, most: int) -> int:
        value = self.take(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def life(self) -> int | None:
        return None if self.peek("life") is None else self.whole("life", least=1, most=MAX_COUNT)

    def peek(self, name: str) -> Any:
        self._known.append(name)
        return self._entry.get(name)

    def seconds(self, name: str, default: float | None) -> float | None:
        value = self.take(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_time(value):
            raise self.wrong(name, f"seconds from 0 to {_LONG_S:g}")
        return float(value)

    def span(self, name: str, default: float) -> float:
        value = self.seconds(name, default)
        assert value is not None
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: object = _REQUIRED) -> str:
        value = self.take(name, default)
        if value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return str(value)

    def flag(self, name: str) -> bool:
        value = self.take(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.take(name, None)
        if value is not None and not _is_word(value):
            raise self.wrong(name, "a string that is not empty")
        return value if value is None else str(value)

    def data(self, name: str, *, most: int) -> bytes:
        """Bytes, written in base64."""
        value = self.take(name, "")
        try:
            data = binascii.a2b_base64(value.encode("ascii")) if value else b""
        except (AttributeError, ValueError):
            raise self.wrong(name, "base64") from None
        if len(data) > most:
            raise self.wrong(name, f"at most {most} bytes")
        return data

    def thing(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return value

    def name(self, name: str) -> str:
        """A word that may stand in a message to people."""
        value = self.take(name)
        if not isinstance(value, str) or not is_name(value):
            raise self.wrong(name, "a name of at most 255 printable ASCII characters")
        return value

    def lives(self, name: str) -> dict[int, int]:
        """Lives by slot."""
        value = self.take(name)
        if not isinstance(value, dict) or not all(map(_is_life, value.items())):
            raise self.wrong(name, "an object of lives by slot")
        return {int(slot): life for slot, life in value.items()}

    def slots(self, name: str) -> tuple[int, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not all(type(slot) is int and 0 <= slot <= MAX_SLOT for slot in value):
            raise self.wrong(name, "a list of slots")
        return tuple(value)

    def words(self, name: str) -> tuple[str, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not value or not _is_word(value[0]) or not all(map(_is_text, value)):
            raise self.wrong(name, "a list of strings that names a program")
        return tuple(value)

    def table(self, name: str) -> dict[str, str]:
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        bad = [key for key, text in value.items() if not _is_word(key) or "=" in key or not _is_text(text)]
        if bad:
            raise self.wrong(name, f"an object of strings; the one named {bad[0]!r:.60} is not")
        return value

    def done(self) -> None:
        if self._entry:
            name = next(iter(self._entry))
            known = ", ".join(self._known)
            raise OrderError(f"'{name:.60}' is unknown; known are {known}", self._slot)


def is_name(value: str) -> bool:
    """True for a word that may stand in a message to people."""
    return 0 < len(value) < 256 and value.isascii() and value.isprintable()


def _is_time(value: float) -> bool:
    return math.isfinite(value) and 0 <= value <= _LONG_S


def _is_text(value: object) -> bool:
    """True for what the kernel takes as an argument: no NUL, and nothing that cannot be encoded."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" and not "\udc80" <= letter <= "\udcff" for letter in value)


def _is_word(value: object) -> bool:
    return bool(value) and _is_text(value)


def _is_life(item: tuple[str, Any]) -> bool:
    slot, life = item
    return slot.isascii() and slot.isdigit() and len(slot) <= 4 and int(slot) <= MAX_SLOT and type(life) is int

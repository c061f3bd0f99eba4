"""Reads JSON fields and reports each invalid one in a short line. Pure."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, Final

MAX_SLOT: Final = 1023
"""Highest number of a slot: of a host with as many slots as :data:`hvd_elastic_ext.core.hosts.MAX_SLOTS` allows."""
MAX_COUNT: Final = (1 << 63) - 1
"""Largest value of a count that grows for the whole life of a job."""

_LONG_S: Final = 1e6
_REQUIRED: Final = object()


class OrderError(ValueError):
    """An invalid order. The message is one line without any of its values; ``slot`` is set if that could be read."""

    def __init__(self, problem: str, slot: int | None = None) -> None:
        super().__init__(problem)
        self.slot = slot


class Fields:
    """Takes the fields of an object one by one and refuses wrong, missing and unknown ones.

    A field that is null counts as missing. Methods that take a field raise :class:`OrderError`.
    """

    def __init__(self, entry: dict[str, Any]) -> None:
        self._entry = dict(entry)
        self._known: list[str] = []
        self._slot: int | None = None

    def slot(self) -> int:
        """The required field ``slot``, from 0 to :data:`MAX_SLOT`. Later errors contain it."""
        self._slot = self.whole("slot", most=MAX_SLOT)
        return self._slot

    def wrong(self, name: str, must_be: str) -> OrderError:
        """Return the error, for the caller to raise, that the field must be as ``must_be`` says."""
        return OrderError(f"'{name}' must be {must_be}", self._slot)

    def take(self, name: str, default: object = _REQUIRED) -> Any:
        """The field unchecked, or the default if it is missing. Raises :class:`OrderError` if there is no default."""
        self._known.append(name)
        value = self._entry.pop(name, None)
        if value is None and default is _REQUIRED:
            raise OrderError(f"'{name}' is missing", self._slot)
        return default if value is None else value

    def checked(self, name: str, must_be: str, valid: Callable[[Any], bool], default: object = _REQUIRED) -> Any:
        """The field if it is ``valid``, or the default if it is missing."""
        value = self.take(name, default)
        if value is not default and not valid(value):
            raise self.wrong(name, must_be)
        return value

    def whole(self, name: str, default: object = _REQUIRED, *, least: int = 0, most: int) -> int:
        """A whole number from ``least`` to ``most``, neither a float nor a boolean; the default if it is missing."""
        must_be = f"a whole number from {least} to {most}"
        return int(self.checked(name, must_be, lambda value: type(value) is int and least <= value <= most, default))

    def life(self) -> int | None:
        """The field ``life``, from 1; None if it is missing."""
        return None if self.peek("life") is None else self.whole("life", least=1, most=MAX_COUNT)

    def peek(self, name: str) -> Any:
        """The field unchecked; None if it is missing. A later call still has to take it."""
        self._known.append(name)
        return self._entry.get(name)

    def seconds(self, name: str, default: float | None) -> float | None:
        """Seconds, from 0 to a million; the default, which may be None, if it is missing."""
        value = self.checked(name, f"seconds from 0 to {_LONG_S:g}", _is_time, default)
        return None if value is None else float(value)

    def span(self, name: str, default: float) -> float:
        """As ``seconds``, but never None."""
        value = self.seconds(name, default)
        assert value is not None
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: object = _REQUIRED) -> str:
        """One of ``choices``, or the default if it is missing."""
        return str(self.checked(name, f"one of {', '.join(choices)}", lambda value: value in choices, default))

    def flag(self, name: str) -> bool:
        """A boolean; False if it is missing."""
        return bool(self.checked(name, "true or false", lambda value: isinstance(value, bool), False))

    def text(self, name: str) -> str | None:
        """A string that is not empty; None if it is missing."""
        value = self.checked(name, "a string that is not empty", _is_word, None)
        return None if value is None else str(value)

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

    def thing(self, name: str, default: object = _REQUIRED) -> dict[str, Any]:
        """A JSON object, its content unchecked; the default if it is missing."""
        value: dict[str, Any] = self.checked(name, "an object", lambda value: isinstance(value, dict), default)
        return value

    def name(self, name: str) -> str:
        """A word that messages to users may contain."""
        return str(self.checked(name, "a name of at most 255 printable ASCII characters", is_name))

    def lives(self, name: str) -> dict[int, int]:
        """Lives by slot."""
        value = self.checked(name, "an object of lives by slot", _is_lives)
        return {int(slot): life for slot, life in value.items()}

    def slots(self, name: str) -> tuple[int, ...]:
        """A required list of slot numbers; it may be empty."""
        return tuple(self.checked(name, "a list of slots", _is_slots))

    def words(self, name: str) -> tuple[str, ...]:
        """A required command: a list of strings, the first of them not empty."""
        return tuple(self.checked(name, "a list of strings that names a program", _is_command))

    def table(self, name: str) -> dict[str, str]:
        """Strings by name, as in an environment; empty if it is missing. A name is not empty and contains no ``=``."""
        value = self.thing(name, {})
        bad = [key for key, text in value.items() if not _is_word(key) or "=" in key or not _is_text(text)]
        if bad:
            raise self.wrong(name, f"an object of strings; the one named {bad[0]!r:.60} is not")
        return value

    def done(self) -> None:
        """Raise :class:`OrderError` if a field is left that was not taken. Call it last."""
        if self._entry:
            name = next(iter(self._entry))
            known = ", ".join(dict.fromkeys(self._known))
            raise OrderError(f"'{name:.60}' is unknown; known are {known}", self._slot)


def is_name(value: object) -> bool:
    """Whether messages to users may contain this word."""
    return isinstance(value, str) and 0 < len(value) < 256 and value.isascii() and value.isprintable()


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONG_S


def _is_text(value: object) -> bool:
    """Whether the kernel accepts this as an argument: no NUL, and nothing that cannot be encoded."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" and not "\udc80" <= letter <= "\udcff" for letter in value)


def _is_word(value: object) -> bool:
    return bool(value) and _is_text(value)


def _is_command(value: object) -> bool:
    return isinstance(value, list) and bool(value) and _is_word(value[0]) and all(map(_is_text, value))


def _is_slots(value: object) -> bool:
    return isinstance(value, list) and all(type(slot) is int and 0 <= slot <= MAX_SLOT for slot in value)


def _is_lives(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_life, value.items()))


def _is_life(item: tuple[str, Any]) -> bool:
    slot, life = item
    return slot.isascii() and slot.isdigit() and len(slot) <= 4 and int(slot) <= MAX_SLOT and type(life) is int

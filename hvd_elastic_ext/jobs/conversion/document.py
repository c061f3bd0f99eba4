"""A document during its conversion: its fields, and the changes so far. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from hvd_elastic_ext.core.json_text import finite

Body = dict[str, Any]

_ABSENT: Final = object()


@dataclass(slots=True)
class Conversion:
    """A document during its conversion. Every field that is removed has a line in ``changes`` or ``dropped``."""

    body: Body
    """The document so far."""
    changes: list[str] = field(default_factory=list)
    """Each change, with its reason."""
    dropped: list[str] = field(default_factory=list)
    """Fields without an equivalent, with their values."""

    def set(self, path: str, value: Any, why: str) -> None:
        """Set a field, and note the reason."""
        *above, last = path.split(".")
        into = _made(self.body, above)
        old = into.get(last, _ABSENT)
        if old == value:
            return
        into[last] = value
        was = "" if old is _ABSENT or isinstance(old, dict | list) else f" (it was {short(old)})"
        shown = "" if isinstance(value, dict | list) else f" = {short(value)}"
        self.changes.append(f"{path}{shown}{was}: {why}")

    def move(self, path: str, to: str, why: str) -> None:
        """Move a field if it exists. If the new place has a value already, that value stays, as the operator would use
        it."""
        value = self.take(path)
        if value is _ABSENT:
            return
        *above, last = to.split(".")
        into = _made(self.body, above)
        if last in into and into[last] != value:
            self.changes.append(f"{path} = {short(value)}: left out, since {to} = {short(into[last])} counts")
            return
        into[last] = value
        self.changes.append(f"{path} -> {to}: {why}")

    def drop(self, path: str, why: str) -> None:
        """Remove a field that has no equivalent, if it exists, and note its value."""
        value = self.take(path)
        if value is not _ABSENT:
            self.dropped.append(f"{path}: {short(value)}: {why}")

    def take(self, path: str) -> Any:
        """Remove a field and return it."""
        *above, last = path.split(".")
        into: Any = self.body
        for step in above:
            into = into.get(step) if isinstance(into, Mapping) else None
        return into.pop(last, _ABSENT) if isinstance(into, MutableMapping) else _ABSENT

    def get(self, path: str, default: Any = None) -> Any:
        """A field."""
        value: Any = self.body
        for step in path.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return default
            value = value[step]
        return value

    def drop_others(self, path: str, known: frozenset[str], why: str) -> None:
        """Remove every field below ``path`` that is not known."""
        for name in sorted({*(self.get(path) or {})} - known):
            self.drop(f"{path}.{name}", why)


def absent(value: Any) -> bool:
    """Whether :meth:`Conversion.take` found no such field."""
    return value is _ABSENT


def commented(text: str, conversion: Conversion) -> str:
    """Return ``text``, the document, below comments that explain its changes."""
    lines = [f"# {one_line(line)}" for line in conversion.changes] or ["# unchanged"]
    lines += [f"# NO EQUAL: {one_line(line)}" for line in conversion.dropped]
    return "\n".join(lines) + "\n" + text


def one_line(text: str) -> str:
    """Return a text as it can stand in a comment: names and values of a file may hold line ends and escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _made(body: Body, path: list[str]) -> Body:
    for step in path:
        body = body.setdefault(step, {})
    return body


def short(value: Any) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(finite(value, instead=str), ensure_ascii=False, default=str, allow_nan=False)

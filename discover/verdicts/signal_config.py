"""Makes rows of the signal table from a user's YAML file. Pure.

example-drain:              # a new signal
  object: node
  taint: example.com/going
  class: imminent
  deadline: taint-time+60
aws-rebalance: {class: imminent}    # a built-in one, changed
node-cordoned: false                # a built-in one, removed
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from discover.verdicts.signals import BASES, FIELDS, KINDS, OBJECTS, Deadline, Evidence, Signal, SignalClass, Table
from hvd_elastic_ext.core.errors import UsageError

_NARROWING: Final = ("value", "effect", "status", "reason", "message")
_OPTIONS: Final = ("object", *KINDS, "class", "says", *_NARROWING, "only-on", "evidence", "deadline")


_NARROWED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "taint": ("value", "effect"),
    "condition": ("status", "reason", "message"),
    "label": ("value",),
    "annotation": ("value",),
    "field": ("value", "reason"),
}


_KINDS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "pod": ("condition", "label", "annotation", "field"),
    "node": KINDS,
    "job": ("label", "annotation"),
}
_DEADLINE: Final = re.compile(r"(?P<base>[a-z-]+)(\+(?P<more>grace|\d+(\.\d+)?))?", re.ASCII)

MAX_DEADLINE: Final = 30 * 24 * 3600
"""Most seconds from the base of a deadline to the deadline."""

_E = TypeVar("_E", bound=Enum)


def with_rules(table: Table, rules: Mapping[Any, Any], *, where: str) -> Table:
    """Return the table with a user's rows: built-in rows are changed or removed, and new rows come first.

    ``where`` names the file. Raises :class:`UsageError`: one line with the file, the row and what to write instead.
    """
    rows = {signal.name: signal for signal in table.signals}
    own: dict[str, Signal] = {}
    for name, rule in rules.items():
        place = f"{where}: signal {name!r}"
        if not isinstance(name, str) or not name:
            raise UsageError(f"{place}: a signal's name is text; put it in quotes")
        known = rows.get(name)
        if rule is False:
            if known is None:
                raise UsageError(f"{place} is not built in and cannot be left out{_near(name, rows)}")
            del rows[name]
        elif known is None:
            own[name] = _signal(name, rule, place, hint=_near(name, rows))
        else:
            rows[name] = _signal(name, _over(known, rule, place), place)
    return Table((*own.values(), *rows.values()))


def as_rule(signal: Signal) -> dict[str, Any]:
    """Return a row in the form of a user's file."""
    whole: dict[str, Any] = {
        "object": signal.object,
        signal.kind: signal.key,
        "value": signal.value,
        "effect": signal.effect,
        "status": signal.status,
        "reason": list(signal.reasons),
        "message": signal.message,
        "only-on": dict(signal.only_on),
        "class": signal.category.value,
        "evidence": signal.evidence.value,
        "deadline": None if signal.deadline is None else str(signal.deadline),
        "says": signal.says,
    }
    return {key: value for key, value in whole.items() if value not in (None, "", [], {})}


def _over(known: Signal, rule: object, place: str) -> dict[str, Any]:
    """Return the row ``known`` with the keys of ``rule`` instead of its own. If ``rule`` names an object or a kind, the
    row's old conditions and its deadline are dropped.
    """
    change = _options(rule, place)
    base = as_rule(known)
    if any(kind in change for kind in KINDS) or "object" in change:
        for key in (known.kind, *_NARROWING, "only-on", "deadline"):
            base.pop(key, None)
    if "deadline" in change and change["deadline"] in (None, "none"):
        base.pop("deadline", None)
    return {**base, **change}


def _options(rule: object, place: str) -> dict[str, Any]:
    if not isinstance(rule, Mapping):
        raise UsageError(f"{place} is {_shown(rule)}; write a table of its keys, or false to leave a built-in one out")
    for key in rule:
        if key not in _OPTIONS:
            raise UsageError(f"{place}: {_shown(key)} is not a key of a signal{_near(str(key), _OPTIONS)}")
    return dict(rule)


def _signal(name: str, rule: object, place: str, *, hint: str = "") -> Signal:
    given = _options(rule, place)
    what = _choice(given, "object", OBJECTS, place, hint=hint)
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1 or kinds[0] not in _KINDS_OF[what]:
        choice = ", ".join(_KINDS_OF[what])
        raise UsageError(
            f"{place}: a signal of a {what} is exactly one of {choice}; it has {' and '.join(kinds) or 'none'}"
        )
    kind = kinds[0]
    key = _choice(given, "field", FIELDS[what], place) if kind == "field" else _text(given, kind, place)
    _check_narrowing(given, kind, place)
    status = _text(given, "status", place) if "status" in given else None if "reason" in given else "True"
    return Signal(
        name=name,
        object=what,
        kind=kind,
        key=key,
        category=SignalClass(_choice(given, "class", _values(SignalClass), place)),
        says=_text(given, "says", place) if "says" in given else f"shows {kind} {key}",
        value=_text(given, "value", place) if "value" in given else None,
        effect=_text(given, "effect", place) if "effect" in given else None,
        status=status if kind == "condition" else None,
        reasons=_texts(given.get("reason", []), "reason", place),
        message=_text(given, "message", place) if "message" in given else "",
        only_on=_pairs(given.get("only-on", {}), place),
        evidence=Evidence(_choice({"evidence": "notice", **given}, "evidence", _values(Evidence), place)),
        deadline=_deadline(given.get("deadline"), kind, place),
    )


def _check_narrowing(given: Mapping[str, Any], kind: str, place: str) -> None:
    """Raises :class:`UsageError` for a key that this kind of signal does not have, because it would have no effect."""
    for key in _NARROWING:
        if key in given and key not in _NARROWED_BY[kind]:
            raise UsageError(
                f"{place}: a {kind} has no {key}; it is narrowed down by {' or '.join(_NARROWED_BY[kind])}"
            )


def _deadline(text: object, kind: str, place: str) -> Deadline | None:
    if text is None or text == "none":
        return None
    found = _DEADLINE.fullmatch(text) if isinstance(text, str) else None
    bases = [base for base, kinds in BASES.items() if kind in kinds]
    if found is None or found["base"] not in bases:
        near = _near(found["base"], bases) if found else ""
        raise UsageError(
            f"{place}: deadline {_shown(text)} is not a deadline of a {kind}{near}; write none, "
            f"or {' or '.join(bases)}, and +SECONDS or +grace after it"
        )
    more = found["more"] or "0"
    seconds = 0.0 if more == "grace" else float(more)
    if seconds > MAX_DEADLINE:
        raise UsageError(f"{place}: deadline {_shown(text)} is too far away; write at most +{MAX_DEADLINE} (30 days)")
    return Deadline(found["base"], seconds, grace=more == "grace")


def _choice(given: Mapping[str, Any], key: str, choices: Iterable[str], place: str, *, hint: str = "") -> str:
    choices = tuple(choices)
    if key not in given:
        raise UsageError(f"{place}{hint or ''} has no {key}; write one of {', '.join(choices)}")
    value = given[key]
    if value not in choices:
        near = _near(value, choices) if isinstance(value, str) else ""
        raise UsageError(f"{place}: {key} {_shown(value)} is not one of {', '.join(choices)}{near}")
    return str(value)


def _text(given: Mapping[str, Any], key: str, place: str) -> str:
    value = given[key]
    if not isinstance(value, str) or not value:
        quotes = f'; put it in quotes: "{str(value).lower()}"' if isinstance(value, bool | int | float) else ""
        raise UsageError(f"{place}: {key} is text, not {_shown(value)}{quotes}")
    return value


def _texts(value: object, key: str, place: str) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    return tuple(_text({key: each}, key, place) for each in given)


def _pairs(value: object, place: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{place}: only-on is a table of labels and their values, not {_shown(value)}")
    return tuple((_text({"only-on": key}, "only-on", place), _text(value, key, place)) for key in value)


def _values(kind: type[_E]) -> tuple[str, ...]:
    return tuple(str(each.value) for each in kind)


def _near(name: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"

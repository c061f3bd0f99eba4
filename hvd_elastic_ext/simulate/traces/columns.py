"""Reads cells of published tables strictly: an error is one line with the place and the expected form."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final, TypeVar

from hvd_elastic_ext.core.errors import UsageError

T = TypeVar("T")
MISSING: Final = ("", "-1", "None", "NA")
"""Spellings of an unknown value in published tables."""


def table(
    text: str, *, where: str, needed: Sequence[str], known: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each row by its columns' names, with its place. Skip a header in the middle, where files were joined.

    Raises :class:`UsageError`.
    """
    header: list[str] = []
    for number, words in enumerate(csv.reader(text.splitlines()), 1):
        if not words:
            continue
        if not header:
            header = [word.strip() for word in words]
            wrong = [name for name in header if name not in known]
            lacking = [name for name in needed if name not in header]
            if wrong or lacking:
                what = f"column {wrong[0]!r} is unknown" if wrong else f"column {lacking[0]!r} is missing"
                raise UsageError(f"{where}:{number}: {what}; these are known: {','.join(known)}")
        elif words != header:
            if len(words) != len(header):
                raise UsageError(
                    f"{where}:{number}: has {len(words)} values for {len(header)} columns; correct it, or leave it out"
                )
            yield f"{where}:{number}", dict(zip(header, map(str.strip, words), strict=True))


def cell(place: str, values: Mapping[str, object], name: str, read: Callable[[str], T], *, what: str) -> T:
    """Return one value. Raises :class:`UsageError`."""
    text = str(values.get(name, ""))
    try:
        return read(text)
    except ValueError:
        raise UsageError(f"{place}: {name} is {text!r}; write {what}") from None


def moment(place: str, values: Mapping[str, object], name: str) -> float:
    """Read a time in Unix seconds; a time without a zone is UTC."""
    return cell(place, values, name, _moment, what="a time such as 2020-06-09 18:41:01")


def _moment(text: str) -> float:
    found = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp()


def price(place: str, values: Mapping[str, object], name: str) -> float:
    """Read the price of a host for an hour."""
    return cell(place, values, name, _price, what="a price such as 0.35")


def _price(text: str) -> float:
    found = float(text)
    if not 0.0 <= found < 1e6:
        raise ValueError
    return found


def whole(place: str, values: Mapping[str, object], name: str) -> int:
    """Read a whole number, 0 or more."""
    return cell(place, values, name, _whole, what="a whole number")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)

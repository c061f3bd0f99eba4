"""Reads cells of published tables strictly: an error is one line with the place and the expected form."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final, TypeVar

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces.rows import shown, whole

T = TypeVar("T")
MOST: Final = 1_000_000
"""Largest whole number, such as the GPUs of a job."""
MISSING: Final = ("", "-1", "None", "NA")
"""Spellings of an unknown value in published tables."""


def table(
    text: str, *, where: str, needed: Sequence[str], known: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each row by its columns' names, with its place. Skip a header in the middle, where files were joined.

    Raises :class:`UsageError`.
    """
    header: list[str] = []
    for number, words in enumerate(_lines(text, where=where), 1):
        if not words:
            continue
        if not header:
            header = [word.strip() for word in words]
            wrong = [name for name in header if name not in known]
            lacking = [name for name in needed if name not in header]
            if wrong or lacking:
                what = f"column {shown(wrong[0])} is unknown" if wrong else f"column {lacking[0]!r} is missing"
                raise UsageError(f"{where}:{number}: {what}; these are known: {','.join(known)}")
        elif words != header:
            if len(words) != len(header):
                raise UsageError(
                    f"{where}:{number}: has {len(words)} values for {len(header)} columns; correct it, or leave it out"
                )
            yield f"{where}:{number}", dict(zip(header, map(str.strip, words), strict=True))


def _lines(text: str, *, where: str) -> Iterator[list[str]]:
    reader = csv.reader(text.splitlines())
    try:
        yield from reader
    except csv.Error as error:
        raise UsageError(f"{where}:{reader.line_num}: {error}; correct the line, or leave it out") from None


def cell(place: str, values: Mapping[str, object], name: str, read: Callable[[str], T], *, what: str) -> T:
    """Return one value. Raises :class:`UsageError`."""
    text = str(values.get(name, ""))
    try:
        return read(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{place}: {name} is {shown(text)}; write {what}") from None


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


def number(place: str, values: Mapping[str, object], name: str) -> int:
    """Read a whole number, 0 or more."""
    return cell(place, values, name, _number, what=f"a whole number up to {MOST:,}")


def _number(text: str) -> int:
    if (found := whole(text, MOST)) is None:
        raise ValueError
    return found

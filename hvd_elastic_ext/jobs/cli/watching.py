"""``get --watch``: which rows have changed since they were shown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hvd_elastic_ext.jobs.reading.states import GONE

AGE: Final = "AGE"
PLACE: Final = "NAMESPACE"
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and rows. The first cell of a row names it; if a namespace comes first, the first two cells do."""


class Changes:
    """Tables that are printed repeatedly: first complete, then only rows of which more than the age has changed."""

    def __init__(self) -> None:
        self._shown: dict[str, dict[tuple[str, ...], Sequence[str]]] = {}
        self._widths: dict[str, list[int]] = {}

    def lines(self, tables: Sequence[Table]) -> Iterator[str]:
        """Return the lines to print now."""
        for headings, rows in tables:
            first = headings[0] not in self._shown
            before = self._shown.setdefault(headings[0], {})
            named = 2 if headings[0] == PLACE else 1
            now = {tuple(row[:named]): row for row in rows}
            if first:
                self._widths[headings[0]] = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
                yield self._line(headings[0], headings)
            gone = [_gone(headings, before[name]) for name in before if name not in now]
            for row in (*now.values(), *gone):
                if _lasting(headings, row) != _lasting(headings, before.get(tuple(row[:named]), ())):
                    yield self._line(headings[0], row)
            self._shown[headings[0]] = now

    def _line(self, table: str, cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths[table], strict=True))
        return "  ".join(padded).rstrip() + "\n"


def _lasting(headings: Sequence[str], row: Sequence[str]) -> list[str]:
    return [cell for name, cell in zip(headings, row, strict=False) if name != AGE]


def _gone(headings: Sequence[str], row: Sequence[str]) -> list[str]:
    """Return the row of an object that no longer exists."""
    return [GONE if name in ("STATE", "PHASE") else cell for name, cell in zip(headings, row, strict=True)]

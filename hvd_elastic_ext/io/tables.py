"""Prints tables, on a terminal or as plain text."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from typing import Final, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_CONTROLS: Final = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "?")
"""Control characters, which become "?": cells contain text from clusters and hosts."""
BETWEEN: Final = 3
"""Most characters that a column of a table needs beside its content."""


def plain(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Return rows as plain lines of text, without borders and colours, for ``grep`` and ``awk``. No cell is wrapped.

    ``right``: headings of the columns that are aligned to the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True)
    longest = len(headings)
    for cells in rows:
        table.add_row(*map(_text, cells))
        longest += sum(map(len, cells)) + 2 * len(cells)
    text = io.StringIO()
    console = Console(file=text, no_color=True, color_system=None, width=longest + sum(map(len, headings)) * 2)
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def show(
    stream: TextIO,
    headings: Sequence[str],
    rows: Iterable[tuple[Sequence[str], str]],
    *,
    right: Collection[str] = (),
    summary: str = "",
) -> None:
    """Write rows and a line of ``summary``. Each row has cells and a style of rich.

    On a terminal the last column is wrapped. Elsewhere no column is, so that ``grep`` works and paths can be copied.
    ``right``: headings of the columns that are aligned to the right.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        justify = "right" if heading in right else "left"
        last = heading == headings[-1]
        table.add_column(
            heading,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",  # the names of checkpoints differ at their ends
        )
    longest = list(map(len, headings))
    for cells, style in rows:
        table.add_row(*map(_text, cells), style=style)
        longest = [max(known, cell_len(cell)) for known, cell in zip(longest, cells, strict=True)]
    terminal, text = stream.isatty(), io.StringIO()
    console = Console(
        file=stream if terminal else text,
        force_terminal=terminal,
        no_color=None if terminal else True,
        color_system="auto" if terminal else None,
        width=None if terminal else max(cell_len(summary), sum(longest) + BETWEEN * len(longest)),
        highlight=False,
    )
    console.print(table)
    if summary:
        console.print(Text(summary))
    if not terminal:
        stream.write("\n".join(line.rstrip() for line in text.getvalue().split("\n")))


def _text(cell: str) -> Text:
    return Text(cell.translate(_CONTROLS))

"""Tables for people, on a terminal or as plain text."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from typing import Final, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH: Final = 150
"""Columns without a terminal: wide enough that lines do not break."""


def plain(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Rows as lines of text without lines or colours between them, for ``grep`` and ``awk``. No cell is wrapped.

    ``right``: headings of the columns that are aligned to the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True)
    longest = len(headings)
    for cells in rows:
        table.add_row(*map(Text, cells))
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
    """Write rows, each its cells and a style of rich, and a line of ``summary``. Only the last column is wrapped.

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
            overflow="fold" if last else "ellipsis",  # the names of checkpoints differ in their ends
        )
    for cells, style in rows:
        table.add_row(*map(Text, cells), style=style)
    terminal = stream.isatty()
    console = Console(
        file=stream,
        force_terminal=terminal,
        no_color=None if terminal else True,
        color_system="auto" if terminal else None,
        width=None if terminal else PLAIN_WIDTH,
        highlight=False,
    )
    console.print(table)
    if summary:
        console.print(Text(summary))

"""The story as a table on a terminal, or as plain text where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_elastic_ext.report.story import BEGUN_ANEW, Row, Story

PLAIN_WIDTH: Final = 150
"""Columns where there is no terminal to ask: wide enough that lines of a pipe do not break."""

STYLES: Final = {
    "hosts added": "green",
    "cooldown over": "green",
    "hosts removed": "yellow",
    "hosts changed": "yellow",
    "worker failed": "red",
}
HEADINGS: Final = ("at", "event", "hosts", "size", "downtime", "steps lost", "note")
TO_THE_RIGHT: Final = ("at", "downtime", "steps lost")


def show(story: Story, stream: TextIO) -> None:
    """Write the table of events and one line of summary."""
    terminal = stream.isatty()
    console = Console(
        file=stream,
        force_terminal=terminal,
        no_color=None if terminal else True,
        color_system="auto" if terminal else None,
        width=None if terminal else PLAIN_WIDTH,
        highlight=False,
    )
    console.print(events_table(story.rows))
    console.print(Text(summary(story)))


def events_table(rows: Sequence[Row]) -> Table:
    """One line for each row of the story."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        right = heading in TO_THE_RIGHT
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading != "note")
    for row in rows:
        table.add_row(*(Text(cell) for cell in cells(row)), style=STYLES.get(row.cause, ""))
    return table


def cells(row: Row) -> tuple[str, ...]:
    """The texts of one row, in the order of ``HEADINGS``. What is not known is ``?``, what does not apply is empty."""
    resized = row.event == "resized"
    downtime = "" if row.downtime_s is None else f"{row.downtime_s:.2f} s"
    lost = "" if row.steps_lost is None else str(row.steps_lost)
    if resized and row.cause != "start":
        downtime, lost = downtime or "?", lost or "?"
    elif row.cause == "start" and not row.downtime_s:
        lost = lost if row.steps_lost else ""
    # A resize goes by its cause; of anything else the cause is a remark.
    event, note = (row.cause, row.note) if resized else (row.event, "; ".join(filter(None, (row.cause, row.note))))
    return f"{row.at:.1f} s", event, hosts_text(row), size_text(row), downtime, lost, note


def hosts_text(row: Row) -> str:
    """``+`` for hosts that came, ``-`` for hosts that went, bare names for others concerned."""
    signed = [f"+{name}" for name in row.added] + [f"-{name}" for name in row.removed]
    return " ".join([*signed, *(name for name in row.hosts if name not in (*row.added, *row.removed))])


def size_text(row: Row) -> str:
    """World size before and after."""
    if row.event not in ("resized", "slept"):
        return ""
    return f"{'?' if row.before is None else row.before} → {'?' if row.after is None else row.after}"


def summary(story: Story) -> str:
    """The job in one line."""
    resizes = [row for row in story.resizes if row.before]
    downtime = sum(row.downtime_s or 0.0 for row in resizes)
    lost = sum(row.steps_lost or 0 for row in story.rows if row.event in ("resized", BEGUN_ANEW))
    end = "has not finished" if story.code is None else f"finished with exit code {story.code}"
    steps = "no steps journalled" if story.steps is None else f"{story.steps} steps"
    return (
        f"{story.duration_s:.1f} s, {steps}; {counted(len(resizes), 'resize')} cost {downtime:.2f} s of standing still "
        f"and {lost} steps done again; {_sleeps_text(story)}the job {end}."
    )


def _sleeps_text(story: Story) -> str:
    """What sleeps cost, with what it took to train again after each."""
    sleeps = [i for i, row in enumerate(story.rows) if row.event == "slept"]
    if not sleeps:
        return ""
    after = [next((row for row in story.rows[i:] if row.event == "resized"), None) for i in sleeps]
    starts = [row for row in dict.fromkeys(after) if row is not None]
    cost = sum(row.downtime_s or 0.0 for row in [*(story.rows[i] for i in sleeps), *starts])
    return f"{counted(len(sleeps), 'sleep')} cost {cost:.2f} s; "


def counted(number: int, noun: str) -> str:
    """Such as "1 resize" and "2 resizes"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""The demo's progress: a live panel on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hvd_elastic_ext.demo.runner import Frame

EPOCHS_A_LINE: Final = 5
WIDEST: Final = 110
"""Columns of the live panel on a wide terminal."""
COLOURS: Final = ("cyan", "magenta", "green", "yellow")

Watch = Callable[[Frame], None]


class PlainView:
    """Writes a line for each change."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before: Frame | None = None

    def __enter__(self) -> Watch:
        return self._show

    def __exit__(self, *_: object) -> None:
        return

    def _show(self, frame: Frame) -> None:
        for line in changes(self._before, frame):
            self._stream.write(f"{frame.at:6.1f} s  {line}\n")
        self._stream.flush()
        self._before = frame


class LiveView:
    """Updates one panel."""

    def __init__(self, stream: TextIO) -> None:
        console = Console(file=stream, highlight=False)
        console.width = min(console.width, WIDEST)
        self._live = Live(console=console, refresh_per_second=8)

    def __enter__(self) -> Watch:
        self._live.__enter__()
        return lambda frame: self._live.update(panel(frame))

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)


def changes(before: Frame | None, after: Frame) -> list[str]:
    """The lines for the changes between two frames."""
    lines = []
    if before is None or before.did != after.did:
        lines += [f"--> {after.did}"] if after.did else []
    old = before.seen if before is not None else None
    if old is None or len(old.worlds) != len(after.seen.worlds):
        world = after.seen.world
        lines += [f"world of {world.size}: {' '.join(world.hosts)} ({world.cause})"] if world.size else []
    elif old.last != after.seen.last:
        lines.append(after.seen.last)
    if old is not None and old.epoch // EPOCHS_A_LINE != after.seen.epoch // EPOCHS_A_LINE:
        lines.append(progress_text(after))
    shown = len(before.done) if before is not None else 0
    for i in range(shown, len(after.done)):
        lines.append(f"shown: {after.scenario[i].name}: {after.done[i]}")
    if before is None or before.position.index != after.position.index:
        lines.append(f"next: {next_text(after)}")
    return lines


def progress_text(frame: Frame) -> str:
    """The progress of training."""
    loss = "" if frame.seen.loss is None else f"  loss {frame.seen.loss:.4f}"
    return f"epoch {frame.seen.epoch}  step {frame.seen.step}{loss}"


def next_text(frame: Frame) -> str:
    """The name of the next event."""
    if frame.position.index < len(frame.scenario):
        return frame.scenario[frame.position.index].name
    return "training goes on to its end"


def panel(frame: Frame) -> Panel:
    """The panel of one frame."""
    top = Table.grid(padding=(0, 2))
    top.add_column(style="dim", justify="right")
    top.add_column()
    top.add_row("world", _world(frame))
    top.add_row("training", Text(progress_text(frame)))
    top.add_row("last", Text(frame.seen.last or "starting", overflow="ellipsis", no_wrap=True))
    top.add_row("next", Text(next_text(frame)))
    title = f"hvd-elastic demo · {frame.at:.0f} s"
    return Panel(Group(top, Text(), _events(frame)), title=title, title_align="left", border_style="blue")


def _world(frame: Frame) -> Text:
    world = frame.seen.world
    line = Text(f"{world.size} workers  " if world.size else world.cause or "forming")
    for host in world.hosts:
        colour = COLOURS[sum(host.encode()) % len(COLOURS)]
        line.append("■ ", style=colour).append(f"{host}  ")
    return line


def _events(frame: Frame) -> Table:
    table = Table.grid(padding=(0, 2))
    for i, event in enumerate(frame.scenario):
        if i < len(frame.done):
            table.add_row(Text("✓", style="green"), Text(event.name), Text(frame.done[i], style="dim"))
        elif i == frame.position.index:
            table.add_row(Text("▶", style="yellow"), Text(event.name, style="bold"), Text(frame.waiting, style="dim"))
        else:
            table.add_row(Text("·", style="dim"), Text(event.name, style="dim"), Text())
    return table

"""The report as a picture: world size, throughput and loss over time, with every event marked.

For a job with ``--autoscale`` it also has a curve: speed by number of hosts. matplotlib is imported only to draw.
"""

from __future__ import annotations

import io
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.own_files import write_output
from hvd_elastic_ext.report.job_report import JobReport, Row
from hvd_elastic_ext.report.table import HEADINGS, cells, hosts_text, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: Final = ("svg", "png", "html")
WIDTH_IN: Final = 11.0
LEFT, RIGHT = 0.075, 0.975
HEAD_IN, STRIP_IN, PANELS_IN, FOOT_IN, KEY_LINE_IN = 0.8, 1.02, 5.4, 0.9, 0.17
"""Heights in inches, from the top down."""
CURVE_IN, CURVE_GAP_IN = 1.5, 0.65
"""Height of the curve, and the gap above it, for the numbers of the time axis."""
KEY_COLUMNS: Final = 3
NUMBER_LANES: Final = 4
LANE_IN: Final = 0.19
"""Height of a lane for the numbers of events that follow one another."""

INK, FAINT, GRID = "#2b2f36", "#8a919c", "#e6e8ec"
WORLD, SPEED, LOSS = "#3b6ea5", "#4f8f6b", "#a5603b"


class Mark(NamedTuple):
    """How one kind of event looks: a marker of matplotlib, a colour."""

    marker: str
    colour: str


MARKS: Final = {
    "start": Mark(">", "#5b6470"),
    "hosts added": Mark("^", "#2e8b57"),
    "cooldown over": Mark("D", "#1f9aa0"),
    "hosts removed": Mark("v", "#c78a1b"),
    "hosts changed": Mark("h", "#7a6a3a"),
    "worker failed": Mark("X", "#c0392b"),
    "notice": Mark("d", "#c7641b"),
    "slept": Mark("<", "#4a4e9a"),
    "woke": Mark("*", "#4a4e9a"),
    "refused": Mark("s", "#8e5ea2"),
    "scaled": Mark("H", "#3b6ea5"),
    "finished": Mark("o", "#5b6470"),
}
"""By title. Others look alike."""
OTHER: Final = Mark("P", "#5b6470")


def mark_of(row: Row) -> Mark:
    """A resize looks like its cause, anything else like its event."""
    return MARKS.get(row.title, OTHER)


def label_of(row: Row) -> str:
    """A short label for the event."""
    if row.event == "resized":
        if row.cause == "start":
            return f"start: {row.after}"
        if row.cause == "worker failed":
            failed = [name for name in row.hosts if name not in row.added]
            return f"{' '.join(failed) or 'a worker'} failed"
        return hosts_text(row).replace("-", "−") or row.cause
    if row.event == "scaled":
        return row.cause
    return row.kind.label or f"{row.event} {hosts_text(row)}".strip()


def draw(report: JobReport, path: Path, *, title: str = "Elastic training") -> None:
    """Write the picture to ``path``; its suffix is the format: svg, png or html.

    Raises :class:`UsageError` for another suffix, a missing matplotlib, or a path that cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise UsageError(f"{path}: a picture is written as .svg, .png or .html; choose one of these endings")
    drawn = _render(report, kind="svg" if kind == "html" else kind, title=title)
    if kind == "html":
        drawn = page(report, drawn.decode(), title=title).encode()
    try:
        write_output(path, drawn, option="--plot")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; choose another file") from None


def page(report: JobReport, svg: str, *, title: str) -> str:
    """A self-contained page: the picture, the summary and the table of events."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(row)) + "</tr>" for row in report.rows
    )
    inline = svg[svg.index("<svg") :]
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: {INK}; max-width: 1080px; margin: 2em auto; padding: 0 1em }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse; font-size: 13px; width: 100% }}
th, td {{ text-align: left; padding: .3em .7em; border-bottom: 1px solid {GRID}; vertical-align: top }}
th {{ color: {FAINT}; font-weight: 600 }}
td:nth-child(1), td:nth-child(5), td:nth-child(6) {{ text-align: right; white-space: nowrap }}
</style></head><body>
<h1>{escape(title)}</h1>
<p>{escape(summary(report))}</p>
{inline}
<table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table>
</body></html>
"""


def _render(report: JobReport, *, kind: str, title: str) -> bytes:
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("a picture needs matplotlib, which is not installed; pip install matplotlib") from None
    style: dict[Any, Any] = {
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "text.parse_math": False,
        "svg.hashsalt": "hvd-elastic",
    }
    out = io.BytesIO()
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH_IN, 7.2), facecolor="white")
        FigureCanvasAgg(figure)
        _compose(figure, report, title=title)
        figure.savefig(out, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _compose(figure: Figure, report: JobReport, *, title: str) -> None:
    span = max(report.duration_s, 1e-3)
    key_lines = -(-len(report.rows) // KEY_COLUMNS)
    foot = FOOT_IN + KEY_LINE_IN * key_lines
    below = foot + (CURVE_IN + CURVE_GAP_IN if shows_curve(report) else 0.0)
    height = HEAD_IN + STRIP_IN + PANELS_IN + below
    figure.set_size_inches(WIDTH_IN, height)
    panel = PANELS_IN / 3.4
    grid = figure.add_gridspec(
        4,
        1,
        height_ratios=[STRIP_IN, panel, 1.15 * panel, 1.25 * panel],
        left=LEFT,
        right=RIGHT,
        top=1 - HEAD_IN / height,
        bottom=below / height,
        hspace=0.12,
    )
    strip, world, speed, loss = axes = [figure.add_subplot(grid[i]) for i in range(4)]
    strip.set_ylim(0, STRIP_IN)
    _draw_world(world, report, span)
    _draw_speed(speed, report)
    _draw_loss(loss, report)
    _frame(axes, span)
    if shows_curve(report):
        _draw_curve(figure.add_axes((LEFT, foot / height, RIGHT - LEFT, CURVE_IN / height)), report)
    _mark_events(strip, axes[1:], report.rows)
    _number_events(figure, strip, report.rows, height=height)
    figure.text(LEFT, 1 - 0.32 / height, title, size=14, weight="bold", va="center")
    figure.text(LEFT, 1 - 0.58 / height, summary(report), size=9, color=FAINT, va="center")
    _key(figure, report.rows, key_lines=key_lines, height=height)


def _frame(axes: Sequence[Axes], span: float) -> None:
    for ax in axes:
        ax.set_xlim(-0.012 * span, 1.012 * span)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        ax.tick_params(length=0)
        ax.tick_params(axis="x", labelbottom=ax is axes[-1])
    for ax in axes[1:]:
        ax.grid(visible=True, axis="y", color=GRID, linewidth=0.8)
        ax.set_axisbelow(True)
        ax.yaxis.set_label_coords(-0.045, 0.5)
    axes[0].axis("off")
    axes[-1].set_xlabel("time since the start (s)")


def _draw_world(ax: Axes, report: JobReport, span: float) -> None:
    from matplotlib.ticker import MaxNLocator

    times = [0.0, *(point.at for point in report.world), span]
    sizes: list[int] = [0, *(point.size for point in report.world)]
    sizes.append(sizes[-1])
    ax.step(times, sizes, where="post", color=WORLD, linewidth=1.8)
    ax.fill_between(times, sizes, step="post", color=WORLD, alpha=0.14, linewidth=0)
    ax.set_ylim(0, max(max(sizes), 1) * 1.18)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set_ylabel("world size\n(workers)")


def _draw_speed(ax: Axes, report: JobReport) -> None:
    rates = report.throughput
    in_samples = bool(rates) and any(rate.samples_per_s is not None for rate in rates)
    heights = [(rate.samples_per_s or 0.0) if in_samples else rate.steps_per_s for rate in rates]
    ax.set_ylabel("throughput\n(samples/s)" if in_samples else "throughput\n(steps/s)")
    if not rates:
        _nothing(ax, "no steps journalled")
        return
    edges = [*(rate.at for rate in rates), rates[-1].at + rates[-1].width]
    ax.stairs(heights, edges, color=SPEED, linewidth=1.3)
    ax.stairs(heights, edges, color=SPEED, alpha=0.14, fill=True)
    ax.set_ylim(0, max(max(heights), 1e-9) * 1.15)


def _draw_loss(ax: Axes, report: JobReport) -> None:
    ax.set_ylabel("training loss")
    if not report.loss:
        _nothing(ax, "no loss journalled")
        return
    times, raw = [point.at for point in report.loss], [point.loss for point in report.loss]
    ax.plot(times, raw, ".", color=LOSS, alpha=0.35, markersize=3.5, markeredgewidth=0)
    pauses = [row.at for row in report.resizes]
    trend = smooth(raw)
    for begin, end in stretches(times, pauses):
        ax.plot(times[begin:end], trend[begin:end], color=LOSS, linewidth=1.6)
    if min(raw) >= 0:
        ax.set_ylim(0, max(max(trend) * 1.12, 1e-9))


def shows_curve(report: JobReport) -> bool:
    """Whether there is a curve to show."""
    return report.hosts_asked_for is not None and len(report.speeds) > 1


def _draw_curve(ax: Axes, report: JobReport) -> None:
    """Speed by number of hosts; a ring marks the number in the last request."""
    from matplotlib.ticker import MaxNLocator

    sizes = [speed.hosts for speed in report.speeds]
    in_samples = all(speed.samples_per_s is not None for speed in report.speeds)
    heights = [(speed.samples_per_s or 0.0) if in_samples else speed.steps_per_s for speed in report.speeds]
    most = sizes[-1]
    even = heights[0] / sizes[0]
    ax.plot([0, most], [0, even * most], color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
    ax.text(most, even * most, "each host as fast as the first ", color=FAINT, size=8, ha="right", va="bottom")
    ax.plot(sizes, heights, color=SPEED, linewidth=1.3, marker="o", markersize=5)
    if report.hosts_asked_for in sizes:
        chosen = report.hosts_asked_for, heights[sizes.index(report.hosts_asked_for)]
        ax.plot(*([each] for each in chosen), "o", color=SPEED, markersize=11, fillstyle="none")
        ax.annotate("chosen", chosen, (0, -17), textcoords="offset points", size=8, color=SPEED, ha="center")
    ax.set_xlim(0, most * 1.04)
    ax.set_ylim(0, max(*heights, even * most) * 1.15)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("hosts")
    ax.set_ylabel("throughput\n(samples/s)" if in_samples else "throughput\n(steps/s)")
    ax.yaxis.set_label_coords(-0.045, 0.5)
    ax.grid(visible=True, axis="y", color=GRID, linewidth=0.8)
    ax.tick_params(length=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _nothing(ax: Axes, why: str) -> None:
    ax.set_yticks([])
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", color=FAINT)


def smooth(raw: Sequence[float]) -> list[float]:
    """Exponential mean, so that the trend shows through the noise of batches."""
    kept: list[float] = []
    for value in raw:
        kept.append(value if not kept else kept[-1] + 0.25 * (value - kept[-1]))
    return kept


def stretches(times: Sequence[float], pauses: Sequence[float]) -> list[tuple[int, int]]:
    """Return index ranges of ``times`` (ascending) without a pause: a line across a pause would show steps that do
    not exist.
    """
    cuts = sorted({0, len(times), *(bisect_right(times, pause) for pause in pauses)})
    return list(itertools.pairwise(cuts))


def _mark_events(strip: Axes, panels: Sequence[Axes], rows: Sequence[Row]) -> None:
    for row in rows:
        mark = mark_of(row)
        for ax in panels:
            ax.axvline(row.at, color=mark.colour, linewidth=0.9, alpha=0.55, linestyle=(0, (3, 2)))
        strip.plot([row.at], [0.1], marker=mark.marker, color=mark.colour, markersize=6.5, clip_on=False)


def _number_events(figure: Figure, strip: Axes, rows: Sequence[Row], *, height: float) -> None:
    """Number the markers, and list their labels below the picture."""
    lines = -(-len(rows) // KEY_COLUMNS)
    for i, row in enumerate(rows):
        mark = mark_of(row)
        y = 0.35 + (i % NUMBER_LANES) * LANE_IN
        strip.annotate(str(i + 1), (row.at, y), size=7, color=mark.colour, ha="center", va="center")
        column, line = divmod(i, lines)
        figure.text(
            LEFT + column * (RIGHT - LEFT) / KEY_COLUMNS,
            (0.12 + KEY_LINE_IN * (lines - 1 - line)) / height,
            f"{i + 1}   {row.at:.1f} s   {label_of(row)}",
            size=7.5,
            color=mark.colour,
            va="center",
        )


def _key(figure: Figure, rows: Sequence[Row], *, key_lines: int, height: float) -> None:
    """The key of the markers that appear."""
    from matplotlib.lines import Line2D

    names = {mark_of(row): (row.kind.label or row.title) if row.title in MARKS else "other" for row in rows}
    if not names:
        return
    handles = [
        Line2D([], [], marker=mark.marker, color=mark.colour, linestyle="", markersize=6, label=name)
        for mark, name in names.items()
    ]
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(LEFT, (0.24 + KEY_LINE_IN * key_lines) / height),
        ncols=len(names),
        frameon=False,
        fontsize=8,
        handletextpad=0.1,
        columnspacing=1.0,
        borderaxespad=0,
    )

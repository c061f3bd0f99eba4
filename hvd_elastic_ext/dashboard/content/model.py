"""The content of a job's page, as plain values that can be sent. Pure.

Each part is one view. A part is sent again only when it has changed.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from hvd_elastic_ext.core.events import BAD, EVENTS, WARN
from hvd_elastic_ext.core.goodput import Accounting, Goodput, accounted
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.dashboard.content import advice, host_facts, sentences
from hvd_elastic_ext.dashboard.content.gaps import broken, gaps, trained
from hvd_elastic_ext.dashboard.content.host_facts import HostFacts
from hvd_elastic_ext.dashboard.content.scaling import scaling_of
from hvd_elastic_ext.report.faults import expected
from hvd_elastic_ext.report.job_report import JobReport, Row, build_report
from hvd_elastic_ext.report.series import Rate, World
from hvd_elastic_ext.report.table import hosts_text
from hvd_elastic_ext.report.timeline import Moment, number, select, text, timeline, values, whole

BINS: Final = 480
STEPS_A_BIN: Final = 10
"""Sampled steps in a bin: with fewer, the throughput would vary too much."""
MAX_LOSSES: Final = 1500
MAX_ROWS: Final = 1000
MAX_RECORDS: Final = 1500
MAX_TEXT: Final = 600
MAX_NAMED: Final = 20
"""Most hosts that a row names; of more, only the number is shown."""
NEWEST: Final = 50
"""Number of newest checkpoints that are shown."""
BEFORE_S, AFTER_S = 10.0, 1.0
"""Ends of processes within these seconds of a fault belong to it."""
MAX_WHO: Final = 3
_DETAILS: Final = ("cpu", "memory", "gpu", "gpu_memory", "price", "ranks", "heard_s", "step_s", "shares")
"""Fields that the launcher reports of a connected host."""
_COUNTED: Final = ("spares",)
"""Details that an older launcher does not tell: none then."""
_QUIET: Final = frozenset(
    {"stepped", "committed", "spawned", "standby", "parked", "synced", "inherited", "published", "call_skipped"}
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The data for a page."""

    name: str
    records: Sequence[Record]
    hosts: Mapping[str, HostFacts]
    now: float
    """Unix seconds."""
    step_s: float | None = None
    """Typical seconds of a step, if only some of the steps are in ``records``."""
    live: Mapping[str, Any] | None = None
    """The launcher's answer; None without one."""
    newest_step: Record | None = None
    runs: Sequence[str | None] = ()
    """The names of all runs in the journal."""
    lines: int = 0
    """Lines of the journal."""
    foreign: int = 0
    """Lines that are not of a journal."""
    left_out: int = 0
    """Records that were not kept."""
    accounting: Accounting | None = None
    """Of all records, where ``records`` hold only some of them."""


@dataclass(frozen=True, slots=True)
class Page:
    """One part for each view."""

    now: Mapping[str, Any]
    timeline: Mapping[str, Any]
    records: Sequence[Any]
    hosts: Sequence[Mapping[str, Any]]
    checkpoints: Mapping[str, Any]
    scaling: Mapping[str, Any]

    def parts(self) -> dict[str, Any]:
        """Return the parts by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def page_of(facts: Facts) -> Page:
    """The page of a job."""
    steps = sum(record.event == "stepped" for record in facts.records)
    bins = BINS if facts.step_s is None else max(1, min(BINS, steps // STEPS_A_BIN))
    goodput = _goodput_now(facts)
    report = build_report(facts.records, step_s=facts.step_s, most_bins=bins, goodput=goodput)
    moments = timeline(facts.records)
    hosts = _hosts(facts)
    return Page(
        now=_now(facts, report, moments, hosts, goodput=goodput),
        timeline=_timeline(report, moments),
        records=[_detail(moment) for moment in moments if moment.record.event not in _QUIET][-MAX_RECORDS:],
        hosts=hosts,
        checkpoints=_checkpoints(facts.records),
        scaling=scaling_of(facts.records, report.speeds, ((facts.live or {}).get("details") or {}).get("scaling")),
    )


def _goodput_now(facts: Facts) -> Goodput:
    """Return the goodput until now, or until the last record of a job without a launcher."""
    accounting = accounted(facts.records) if facts.accounting is None else facts.accounting
    if facts.live is None:
        return accounting.goodput()
    newest = max((record.t for record in facts.records), default=facts.now)
    return accounting.goodput(accounting.newest_at + max(0.0, facts.now - newest))


def _last(records: Sequence[Record], *events: str) -> Record | None:
    return next((record for record in reversed(records) if record.event in events), None)


def _now(
    facts: Facts,
    report: JobReport,
    moments: Sequence[Moment],
    hosts: Sequence[Mapping[str, Any]],
    *,
    goodput: Goodput,
) -> dict[str, Any]:
    started = _last(facts.records, "started")
    state = _last(facts.records, "started", "slept", "woke", "resized")
    last = max((record.t for record in facts.records), default=0.0)
    asleep = state is not None and state.event == "slept"
    live = None if facts.live is None else {**facts.live, "hosts": hosts}
    verdict = sentences.of_now(report, live, now=facts.now, last=last, asleep=asleep)
    stepped = facts.newest_step or _last(facts.records, "stepped")
    size = report.world[-1].size if report.world else 0
    per_s = _speed_now(report)
    return {
        "job": facts.name,
        "run": report.run,
        "runs": len(facts.runs),
        "level": verdict.level,
        "text": verdict.text,
        "do": verdict.do,
        "why": sentences.why(report) if verdict.level in (BAD, WARN) else [],
        "ended": report.code is not None,
        "code": report.code,
        "launcher": facts.live is not None,
        "size": size,
        "generation": max((record.generation for record in facts.records), default=0),
        "hosts": len({host["name"] for host in hosts if host["trains"]}),
        **_of_hosts([host for host in hosts if host["trains"]]),
        "step": report.steps if report.code is not None else _step_now(stepped, report),
        "call": _call_now(stepped, _last(facts.records, "resized")),
        "loss": _loss_now(stepped, report),
        "rate": per_s,
        "rate_unit": _unit(report.throughput),
        **_goodput(report, goodput),
        "started": None if not moments else moments[0].record.t,
        "last": last,
        "duration_s": report.duration_s,
        "pid": None if started is None else whole(started.get("pid")),
        "command": "" if started is None else text(started.get("command")),
        "output": None if started is None else text(started.get("output")) or None,
        "lines": facts.lines,
        "foreign": facts.foreign,
        "left_out": facts.left_out,
    }


def _of_hosts(training: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean GPU load of the hosts that train, and their price for an hour; None if unknown."""
    busy, full = ([host[key] for host in training if host[key] is not None] for key in ("gpu", "gpu_memory"))
    prices = [host["price"] for host in training]
    return {
        "gpu": statistics.fmean(busy) if busy else None,
        "gpu_memory": statistics.fmean(full) if full else None,
        "per_hour": sum(prices) if prices and None not in prices else None,
    }


def _step_now(stepped: Record | None, report: JobReport) -> int | None:
    step = None if stepped is None else whole(stepped.get("step"))
    return step if step is not None else report.steps


def _call_now(*newest: Record | None) -> int:
    """The training call in progress, as far as the newest records know."""
    return max([1, *(call for record in newest if record is not None and (call := whole(record.get("call"))))])


def _loss_now(stepped: Record | None, report: JobReport) -> float | None:
    loss = None if stepped is None else number(values(stepped).get("loss"))
    return loss if loss is not None else report.loss[-1].loss if report.loss else None


def _value(rate: Rate, unit: str) -> float:
    return (rate.samples_per_s or 0.0) if unit == "samples/s" else rate.steps_per_s


def _unit(rates: Sequence[Rate]) -> str:
    return "samples/s" if any(rate.samples_per_s is not None for rate in rates) else "steps/s"


def _speed_now(report: JobReport) -> float | None:
    """Return the newest throughput above 0 of the last few bins; the last bin may be short."""
    unit = _unit(report.throughput)
    latest = [speed for rate in report.throughput[-5:] if (speed := _value(rate, unit)) > 0]
    return statistics.median(latest) if latest else None


def _goodput(report: JobReport, goodput: Goodput) -> dict[str, Any]:
    """Return the goodput, what it is taken from, and the hours of processes used."""
    return {
        "goodput": goodput.ratio,
        "since_s": goodput.since_s,
        "downtime_s": goodput.stepless_s,
        "steps_lost": goodput.lost,
        "lost_s": goodput.lost_s,
        "process_hours": _process_s(report.world, report.duration_s) / 3600,
    }


def _process_s(world: Sequence[World], end: float) -> float:
    ends = [*(point.at for point in world[1:]), end]
    return sum(point.size * max(0.0, until - point.at) for point, until in zip(world, ends, strict=False))


def _timeline(report: JobReport, moments: Sequence[Moment]) -> dict[str, Any]:
    unit = _unit(report.throughput)
    every = max(1, -(-len(report.loss) // MAX_LOSSES))
    pauses = gaps(moments)
    losses = broken(report.loss[::every], pauses)
    rates = trained([(rate.at, rate.width, _value(rate, unit)) for rate in report.throughput], pauses)
    first = max(0, len(report.rows) - MAX_ROWS)
    wall = _walls(moments)
    exits = [moment for moment in moments if moment.record.event == "exited" and not expected(moment.record)]
    return {
        "duration_s": report.duration_s,
        "wall": wall,
        "world": [[round(point.at, 2), point.size] for point in report.world[-5000:]],
        "unit": unit,
        "rate": [[round(at, 2), round(width, 3), _round(value)] for at, width, value in rates],
        "loss": [[round(at, 2), None if loss is None else _round(loss)] for at, loss in losses],
        "sealed": [
            [round(moment.at, 3), whole(moment.record.get("step"))] for moment in select(moments, "sealed")[-MAX_ROWS:]
        ],
        "first": first,
        "rows": [_row(row, at, exits) for at, row in enumerate(report.rows) if at >= first],
    }


def _round(value: float) -> float:
    """Round to four digits, more than a chart shows."""
    return float(f"{value:.4g}")


def _walls(moments: Sequence[Moment]) -> list[list[float]]:
    """Return the Unix time at the start of each monotonic clock: ``[at, t]``."""
    walls: dict[int, list[float]] = {}
    for moment in moments:
        walls.setdefault(moment.clock, [moment.at, moment.record.t])
    return list(walls.values())


def _row(row: Row, number_: int, exits: Sequence[Moment]) -> dict[str, Any]:
    hosts = hosts_text(row).split(" ") if hosts_text(row) else []
    return {
        "id": number_,
        "at": round(row.at, 3),
        "event": row.title,
        "kind": row.level,
        "means": row.kind.meaning,
        "text": row.details,
        "do": advice.advice(row),
        "hosts": hosts[:MAX_NAMED],
        "more": max(0, len(hosts) - MAX_NAMED),
        "before": row.before,
        "after": row.after,
        "down": row.downtime_s,
        "lost": row.steps_lost,
        "who": _who(row, exits),
        "on": list(dict.fromkeys(map(advice.without_slot, row.hosts[:MAX_WHO])))
        if sentences.needs_attention(row)
        else [],
    }


def _who(row: Row, exits: Sequence[Moment]) -> list[list[Any]]:
    """Return the processes whose output helps to explain a fault: the name of each in its output files, and when it
    ended."""
    if row.level != BAD:
        return []
    times = [moment.at for moment in exits]
    near = exits[bisect_left(times, row.at - BEFORE_S) : bisect_right(times, row.at + AFTER_S)]
    whole_job, hosts = row.event == "finished", set(map(advice.without_slot, row.hosts))
    processes: list[list[Any]] = []
    for moment in near:
        record = moment.record
        if whole_job or text(record.get("host")) in hosts:
            rank = whole(record.get("rank"))
            who = f"{text(record.get('host'))}[{whole(record.get('slot'))}]" if rank is None else str(rank)
            processes.append([who, record.t])
    return processes[:MAX_WHO]


def _detail(moment: Moment) -> list[Any]:
    """Return one record for the details of a row: ``[at, generation, event, text]``."""
    record = moment.record
    lines = []
    for key, value in record.fields.items():
        if value is None or value in ("", [], {}):
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, list | dict) else str(value)
        lines.append(f"{key}: {shown[:MAX_TEXT]}")
    return [round(moment.at, 3), record.generation, record.event, "\n".join(lines)[: 3 * MAX_TEXT]]


def _hosts(facts: Facts) -> list[dict[str, Any]]:
    """Return the hosts: those that train first, then those that could. From the launcher if it answers."""
    rows = {name: host_facts.row(name, host, facts.now) for name, host in facts.hosts.items()}
    if facts.live is not None:
        rows = _with_live(rows, facts.live)
    wanted = [
        row for row in rows.values() if row["trains"] or row["listed"] or row["strikes"] or row["why"] or row["gone"]
    ]
    return sorted(wanted, key=lambda row: (not row["trains"], not row["listed"], row["name"]))


def _with_live(rows: dict[str, dict[str, Any]], live: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Data from the launcher take precedence over the journal."""
    details: Mapping[str, Any] = live.get("details") or {}
    for row in rows.values():
        row.update(listed=False, trains=False, spares=0, strikes=0, state="free", left_s=None)
    for entry in live.get("ledger") or ():
        row = rows.setdefault(str(entry["name"]), host_facts.row(str(entry["name"]), HostFacts(), 0.0))
        keys = ("slots", "state", "strikes", "left_s", "why", "starting_s")
        row.update({key: entry[key] for key in keys if entry.get(key) is not None})
        row["listed"] = bool(entry.get("published"))
    for name, detail in details.get("hosts", {}).items():
        row = rows.setdefault(name, host_facts.row(name, HostFacts(), 0.0))
        row.update({key: detail.get(key) for key in _DETAILS})
        row.update({key: detail.get(key) or 0 for key in _COUNTED})
        row["trains"] = bool(detail.get("trains"))
    return rows


def _checkpoints(records: Sequence[Record]) -> dict[str, Any]:
    started = _last(records, "started")
    sealed = [record for record in records if record.event == "sealed"]
    failed = [record for record in records if record.event in ("not_sealed", "checkpoint_skipped", "not_resumed")]
    choices = [record for record in records if record.event == "interval"]
    every = next((record for record in reversed(choices) if number(record.get("seconds"))), None)
    calls = next((record for record in reversed(choices) if whole(record.get("calls"))), None)
    seconds = None if every is None else number(every.get("seconds"))
    return {
        "place": None if started is None else text(started.get("checkpoints")) or None,
        "every_s": seconds if seconds is not None else _usual_pause(sealed),
        "because": "" if every is None else text(every.get("reason")),
        "commits": "" if calls is None else text(calls.get("reason")),
        "sealed": [
            {
                "t": record.t,
                "step": whole(record.get("step")),
                "path": text(record.get("path")),
                "bytes": number(record.get("bytes")),
                "seconds": number(record.get("seconds")),
            }
            for record in sealed[-NEWEST:][::-1]
        ],
        "count": len(sealed),
        "failed": [
            {"t": record.t, "event": EVENTS[record.event].title, "why": text(record.get("reason"))}
            for record in failed[-NEWEST:][::-1]
        ],
    }


def _usual_pause(sealed: Sequence[Record]) -> float | None:
    """Return the median time between checkpoints, for a job without a chosen interval."""
    times = [record.t for record in sealed]
    gaps = [after - before for before, after in itertools.pairwise(times) if after > before]
    return statistics.median(gaps) if gaps else None

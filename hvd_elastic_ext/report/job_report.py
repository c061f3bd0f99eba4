"""What happened in a job, from its journal: rows for important events, and series over time.

Pure. A journal is evidence after a crash, so any content gives a report; unknown values are ``None``.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from hvd_elastic_ext.core.events import BAD, BY_TITLE, EVENTS, OK, RESIZES, EventKind
from hvd_elastic_ext.core.goodput import Goodput, accounted
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.report import faults
from hvd_elastic_ext.report.series import (
    AT_ONCE_S,
    MOST_BINS,
    Loss,
    Rate,
    Speed,
    World,
    losses,
    speeds,
    throughput,
    world_sizes,
)
from hvd_elastic_ext.report.timeline import (
    Moment,
    downtimes,
    names,
    number,
    select,
    text,
    timeline,
    typical_interval,
    whole,
)

TOGETHER_S: Final = 2.0
"""Roll-backs of several ranks within this time are one event."""


@dataclass(frozen=True, slots=True)
class Row:
    """One important event. None means unknown."""

    at: float
    """Seconds since the start of the journal."""
    event: str
    """A title of the catalogue."""
    cause: str
    hosts: tuple[str, ...] = ()
    """The hosts concerned."""
    added: tuple[str, ...] = ()
    """The hosts that came with it."""
    removed: tuple[str, ...] = ()
    """The hosts that went with it."""
    before: int | None = None
    """The size of the world before it."""
    after: int | None = None
    """The size of the world after it."""
    downtime_s: float | None = None
    """Seconds without a step."""
    steps_lost: int | None = None
    note: str = ""

    @property
    def title(self) -> str:
        """The name of the event; of a resize, its cause."""
        return self.cause if self.event == "resized" and self.cause else self.event

    @property
    def details(self) -> str:
        """The cause, unless it is the title, and the note."""
        return "; ".join(filter(None, (self.cause if self.event != "resized" else "", self.note)))

    @property
    def kind(self) -> EventKind:
        """What the catalogue says of such an event; of a resize, of its cause."""
        if self.event == "resized":
            return RESIZES.get(self.cause, EVENTS["resized"])
        return BY_TITLE.get(self.event, EventKind(self.event, ""))

    @property
    def level(self) -> str:
        """The level of the event; that of the end of a job depends on its exit code."""
        return self.kind.level if self.event != "finished" else OK if self.note == "exit code 0" else BAD


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job from its first record to its last."""

    rows: tuple[Row, ...]
    world: tuple[World, ...]
    throughput: tuple[Rate, ...]
    loss: tuple[Loss, ...]
    speeds: tuple[Speed, ...]
    duration_s: float
    steps: int | None
    """The highest number of a step in any record."""
    step_s: float
    """The typical time between two journalled steps; 0 if there are too few."""
    code: int | None
    """The exit code; None for a job without an end (or with a killed launcher)."""
    run: str | None = None
    """The name of the run; of several, that of the last one."""
    first_step: int = 0
    """The step of the checkpoint with which the records begin; 0 without one."""
    hosts_asked_for: int | None = None
    """The number of hosts in the last request or recommendation (``--autoscale``)."""
    goodput: Goodput | None = None
    """That of the job from the listing of its first host to its last record."""
    job: str | None = None
    """The name of the job."""

    @property
    def resizes(self) -> tuple[Row, ...]:
        """The rows of new worlds."""
        return tuple(row for row in self.rows if row.event == "resized")


class Total(NamedTuple):
    """The sum of what is known of a number of values, and how many of them are not known."""

    known: float
    number: int
    unknown: int

    @property
    def nothing_known(self) -> bool:
        """Whether there are values, and none of them is known."""
        return self.number == self.unknown > 0


def total(values: Iterable[float | None]) -> Total:
    """Return the total of values of which some are not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return Total(sum(known), len(found), len(found) - len(known))


def steps_again(report: JobReport) -> Total:
    """Return the number of steps that were done again. A start without a number repeats none."""
    rows = [row for row in report.rows if row.event in ("resized", "training restarted")]
    return total(row.steps_lost for row in rows if row.cause != "start" or row.steps_lost is not None)


def build_report(
    records: Iterable[Record],
    *,
    step_s: float | None = None,
    most_bins: int = MOST_BINS,
    goodput: Goodput | None = None,
) -> JobReport:
    """Build the report of one journal, which may hold the records of several launchers.

    ``step_s``, ``goodput``: the typical time between two steps, and the goodput, where ``records`` hold a sample of
    the steps.
    """
    moments = timeline(records)
    resized, stepped = select(moments, "resized"), select(moments, "stepped")
    typical = typical_interval([m.at for m in stepped], [m.at for m in resized]) if step_s is None else step_s
    finished = list(select(moments, "started", "finished"))[-1:]
    return JobReport(
        rows=_rows(moments, typical),
        world=world_sizes(moments),
        throughput=throughput(moments, typical=typical, most_bins=most_bins),
        loss=losses(moments),
        speeds=speeds(moments),
        duration_s=moments[-1].at if moments else 0.0,
        steps=max(_step_numbers(moments), default=None),
        step_s=typical,
        code=whole(finished[0].record.get("code")) if finished else None,
        run=_newest_name(moments, "run"),
        job=_newest_name(moments, "job"),
        first_step=_first_step(moments),
        goodput=accounted(moment.record for moment in moments).goodput() if goodput is None else goodput,
        hosts_asked_for=next((whole(m.record.get("hosts")) for m in reversed(select(moments, *_SIZED))), None),
    )


def _newest_name(moments: Sequence[Moment], key: str) -> str | None:
    """What the newest launcher that says it says of itself."""
    return next((name for m in reversed(select(moments, "started")) if (name := text(m.record.get(key)))), None)


_SLOT: Final = re.compile(r"slot (\d{1,6}) of ", re.ASCII)
"""The beginning of the subject of a strike against one slot."""
_SIZED: Final = ("scaled", "scale_recommended")
_OWN_STEPS: Final = ("stepped", "committed", "sealed")
"""Events with the number of a step that this run has done."""


def _step_numbers(moments: Iterable[Moment]) -> list[int]:
    return [number for moment in moments if (number := whole(moment.record.get("step"))) is not None]


def _first_step(moments: Sequence[Moment]) -> int:
    """The step of the checkpoint with which training begins, if it begins with one."""
    begins = select(moments, "resumed", *_OWN_STEPS)[:1]
    resumed = [moment for moment in begins if moment.record.event == "resumed"]
    return max(_step_numbers(resumed), default=0)


def _rows(moments: Sequence[Moment], typical: float) -> tuple[Row, ...]:
    rows, reported = _stops(moments, typical)
    starts = 0
    for moment in moments:
        starts += moment.record.event == "started"
        if id(moment) in reported or (moment.record.event == "started" and starts == 1):
            continue
        row = None if moment.record.event in ("resized", "slept") else _single(moment)
        if row is not None and row.event == "started":
            row = replace(row, note=_without_a_launcher(moment, moments))
        if row is not None:
            rows.append(row)
    return _without_repeats(sorted(rows, key=lambda row: row.at))


def _without_repeats(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Merge repeated rows: an unreadable list, a roll-back of every rank, checkpoints."""
    kept: list[Row] = []
    times = 1
    for row in rows:
        same = bool(kept) and _is_same(kept[-1], row)
        times = times + 1 if same else 1
        if same:
            kept[-1] = _merged(kept[-1], row, times=times)
        else:
            kept.append(row)
    return tuple(kept)


def _is_same(one: Row, other: Row) -> bool:
    if one.event != other.event or one.event not in ("refused", "rolled back", "sealed", "notice"):
        return False
    if one.event == "sealed":
        return True
    return one.cause == other.cause and (one.event == "refused" or other.at - one.at < TOGETHER_S)


def _merged(one: Row, other: Row, *, times: int) -> Row:
    if one.event == "refused":
        return replace(one, note=f"{times} times")
    if one.event == "sealed":
        return replace(other, note=f"{_path(other)} ({times} in a row)")
    # Hosts with notice at one moment, or ranks that roll back.
    lost = [n for n in (one.steps_lost, other.steps_lost) if n is not None]
    return replace(one, hosts=tuple(dict.fromkeys((*one.hosts, *other.hosts))), steps_lost=max(lost, default=None))


# -- resizes and sleeps, with what belongs to them --------------------------------------------------------------


def _stops(moments: Sequence[Moment], typical: float) -> tuple[list[Row], set[int]]:
    """Return the rows of all resizes and sleeps, and the moments in them (by ``id``)."""
    rows: list[Row] = []
    reported: set[int] = set()
    size = 0
    for clock in sorted({moment.clock for moment in moments}):
        part = [moment for moment in moments if moment.clock == clock]
        for row, belonging in _stops_of_one_clock(part, typical):
            rows.append(replace(row, before=size))
            size = size if row.after is None else row.after
            reported |= {id(moment) for moment in belonging}
    return rows, reported


def _stops_of_one_clock(part: Sequence[Moment], typical: float) -> list[tuple[Row, list[Moment]]]:
    resized, stepped = select(part, "resized"), select(part, "stepped")
    steps = [moment.at for moment in stepped]
    stops = select(part, "resized", "slept")
    shares = downtimes([moment.at for moment in stops], steps, typical)
    pauses = {id(moment): share for moment, share in zip(stops, shares, strict=True)}
    back = _whose(select(part, "rolled_back"), resized, steps)
    blamed = _blamed(select(part, "exited", "struck"), resized)
    watched = bool(select(part, "stepped", "committed", "synced", "rolled_back"))
    rows = [(_slept(moment, pauses[id(moment)]), [moment]) for moment in stops if moment.record.event == "slept"]
    for i, moment in enumerate(resized):
        # A value in the journal is preferred: a later launcher makes measurements of its own.
        pause = number(moment.record.get("downtime_s"))
        computed = _lost(moment, back[i], stepped, steps) if watched else None
        lost = [n for n in (whole(moment.record.get("steps_lost")), computed) if n is not None]
        rows.append(
            (
                replace(
                    _resize(moment, blamed[i]),
                    downtime_s=pauses[id(moment)] if pause is None or pause < 0 else pause,
                    steps_lost=max(lost, default=None),
                    note=_resize_note(moment, blamed[i], steps),
                ),
                [*back[i], *blamed[i]],
            )
        )
    return sorted(rows, key=lambda each: each[0].at)


def _slept(moment: Moment, pause: float | None) -> Row:
    """No process trains until the next world has formed."""
    row = _single(moment)
    assert row is not None, "each sleep has a row"
    return replace(row, downtime_s=pause)


def _resize(moment: Moment, blamed: Sequence[Moment]) -> Row:
    record = moment.record
    added, removed, failed = (_seats(record, key, blamed) for key in ("added", "removed", "failed"))
    cause = text(record.get("cause"))
    if not added and cause == "start":
        added = names(record.get("hosts"))
    concerned = tuple(dict.fromkeys((*failed, *added, *removed)))
    return Row(moment.at, "resized", cause, concerned, added, removed, after=whole(record.get("size")))


def _seats(record: Record, key: str, blamed: Sequence[Moment]) -> tuple[str, ...]:
    """The hosts in a field; of those of which only some slots are meant, the slots, such as ``h3[0]``."""
    by_host = record.get(f"slots_{key}")
    slots_of: Mapping[str, object] = by_host if isinstance(by_host, dict) else {}
    seats: list[str] = []
    for host in names(record.get(key)):
        given = slots_of.get(host) if slots_of or key == "added" else _slots_that_ended(record, host, blamed)
        slots = [n for each in given if (n := whole(each)) is not None] if isinstance(given, list) else []
        seats += [faults.seat(host, slot) for slot in slots] or [host]
    return tuple(seats)


def _slots_that_ended(record: Record, host: str, blamed: Sequence[Moment]) -> list[int] | None:
    """The slots that a host lost, by the ends of its processes: older launchers journal only how many it had."""
    counts = (record.get("slots_before"), record.get("hosts"))
    before, after = (whole(each.get(host)) if isinstance(each, dict) else None for each in counts)
    ends = {
        whole(m.record.get("slot")) for m in blamed if m.record.event == "exited" and faults.host_of(m.record) == host
    }
    slots = sorted(slot for slot in ends if slot is not None)
    return slots if before is not None and after and len(slots) == before - after else None


def _whose(rollbacks: Sequence[Moment], resized: Sequence[Moment], steps: Sequence[float]) -> tuple[list[Moment], ...]:
    """Assign each roll-back to its resize.

    Survivors roll back before the new world forms, newcomers perhaps after it. One step of tolerance, as a peer may
    roll back before the last step is journalled.
    """
    belonging: tuple[list[Moment], ...] = tuple([] for _ in resized)
    places = [bisect_right(steps, moment.at) for moment in resized]
    for rollback in rollbacks:
        place = bisect_right(steps, rollback.at)
        following = [i for i, m in enumerate(resized) if m.at >= rollback.at and places[i] <= place + 1]
        before = [i for i, m in enumerate(resized) if m.at < rollback.at and places[i] == place]
        if following or before:
            belonging[following[0] if following else before[-1]].append(rollback)
    return belonging


def _blamed(ends: Sequence[Moment], resized: Sequence[Moment]) -> tuple[list[Moment], ...]:
    """Assign exits and strikes to the resize that names their host: the next one, else the last one."""
    belonging: tuple[list[Moment], ...] = tuple([] for _ in resized)
    times = [moment.at for moment in resized]
    for end in ends:
        host = faults.host_of(end.record)
        place = bisect_right(times, end.at)
        for i in (place, place - 1):
            if 0 <= i < len(resized) and host in _gone(resized[i].record):
                belonging[i].append(end)
                break
    return belonging


def _gone(record: Record) -> tuple[str, ...]:
    return (*names(record.get("failed")), *names(record.get("removed")))


def _lost(moment: Moment, rollbacks: Sequence[Moment], stepped: Sequence[Moment], steps: Sequence[float]) -> int | None:
    """Return the steps to repeat: the reported loss, or what the step numbers show, whichever is more.

    The step numbers reveal a job that started over without a report.
    """
    losses = [n for m in rollbacks if (n := whole(m.record.get("steps_lost"))) is not None]
    if rollbacks and not losses:
        return None
    place = bisect_right(steps, moment.at)
    numbers = [whole(m.record.get("step")) for m in stepped[max(0, place - 1) : place + 1]] if place else []
    if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None and numbers[1] <= numbers[0]:
        losses.append(numbers[0] - numbers[1] + 1)
    return max(losses, default=0)


def _resize_note(moment: Moment, blamed: Sequence[Moment], steps: Sequence[float]) -> str:
    """Permanent losses come first."""
    lost, without = text(moment.record.get("lost_because")), "; ".join(names(moment.record.get("without")))
    notes = (
        lost and f"behind the newest commit: {lost}",
        without and f"without {without}",
        faults.note_of(blamed) or _start_note(moment, steps),
    )
    return "; ".join(filter(None, notes))


def _start_note(moment: Moment, steps: Sequence[float]) -> str:
    place = bisect_right(steps, moment.at)
    if moment.record.get("cause") != "start" or place == len(steps):
        return ""
    return f"first step {steps[place] - moment.at:.1f} s later"


# -- everything else: one moment, one row -----------------------------------------------------------------------


def _single(moment: Moment) -> Row | None:
    """The row of an event of its own; None for a detail of others."""
    record = moment.record
    kind = EVENTS.get(record.event)
    if kind is None or not kind.row(record.fields):
        return None
    if record.event == "struck":
        return _struck(moment)
    if record.event == "exited":
        return _exited(moment)
    concerned = (record.get(key) for key in kind.hosts)
    hosts = [names(each) if isinstance(each, list | dict) else (text(each),) for each in concerned if each]
    return Row(
        moment.at,
        kind.title,
        text(kind.says(record.fields)),
        tuple(itertools.chain(*hosts)),
        after=0 if record.event in ("slept", "finished") else None,
        steps_lost=whole(record.get("steps_lost")),
        note=text(kind.note(record.fields)),
    )


def _without_a_launcher(started: Moment, moments: Sequence[Moment]) -> str:
    """Describe the time before a launcher restart: nothing was journalled, but training may have continued."""
    same = [m for m in moments if m.clock == started.clock and m is not started]
    before, after = [m for m in same if m.at < started.at], [m for m in same if m.at >= started.at]
    if not before:
        return ""
    gap = f"no records for {started.at - before[-1].at:.1f} s"
    lives = (m.record.event for m in reversed(before) if m.record.event in ("started", "finished"))
    if next(lives, None) == "finished":
        return gap  # no process was left: what the samples do not show was done before the end
    later = select(after, "stepped")
    # Hosts keep their records until a launcher is there, then send all at once.
    around = (*select(before, "stepped")[-1:], *[m for m in later if m.at - later[0].at < AT_ONCE_S][-1:])
    numbers = [n for m in around if (n := whole(m.record.get("step"))) is not None]
    meanwhile = numbers[1] - numbers[0] - 1 if len(numbers) == 2 else 0
    return f"{gap}, {meanwhile} steps done meanwhile" if meanwhile > 0 else gap


def _struck(moment: Moment) -> Row:
    record = moment.record
    note = faults.joined(faults.detail_of(record), faults.strike_note(record))
    return Row(moment.at, "struck", text(record.get("cause")), (_struck_place(record),), note=note)


def _struck_place(record: Record) -> str:
    """What is charged: the slot, unless no slot of its host gets work."""
    host, slot = faults.host_of(record), _SLOT.match(text(record.get("subject")))
    return host if slot is None or record.get("host_blocked") else faults.seat(host, int(slot[1]))


def _exited(moment: Moment) -> Row | None:
    record = moment.record
    if faults.expected(record):
        return None
    place = faults.seat(faults.host_of(record), whole(record.get("slot")))
    return Row(moment.at, "exited", faults.exit_note(record), (place,), note=faults.detail_of(record))


def _path(row: Row) -> str:
    """The path of the newest checkpoint, without the count."""
    return row.note.partition(" (")[0]

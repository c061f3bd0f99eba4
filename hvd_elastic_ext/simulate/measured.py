"""Takes times and hosts from a real job's journal, as a model for the next job.

Times are means, because slow cases count, too. If the journal has no data for a time, the default stays. Hosts are the
listed ones. Notices and the ends of processes show how each host was lost.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core import journal
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.goodput import LONGEST_S, accounted
from hvd_elastic_ext.core.hosts import MAX_SLOTS, name_error
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.io.user_files import read_text
from hvd_elastic_ext.report.runs import runs
from hvd_elastic_ext.simulate.cluster.times import LATENCY_S, Times
from hvd_elastic_ext.simulate.traces.rows import DAY_S, MAX_DAYS, Row, Trace, checked

PROMPT_S: Final = 120.0
"""Seconds from the listing of a host to the start of a process; a later start waited for something else."""
FEW: Final = 4
"""Number of values needed for an estimate of their variation."""
ASKED_S: Final = 2 * LATENCY_S
"""Seconds to ask for a rank and to get it."""
LEAVES_S: Final = 60.0
"""If the processes of a host leave within this time of its removal from the list, the removal was announced."""
TOGETHER_S: Final = 5.0
"""A process that fails within this time before its host is removed ended with the host."""
ENDS: Final = ("exited", "sealed", "not_sealed", "finished")
"""Events of the end of a job, when no process trains."""


@dataclass(frozen=True, slots=True)
class Measured:
    """``steps``: from the first to the newest one; ``kept``: those of all ranks; ``lost``: repeated steps.

    ``downtime_s``: sum of all changes of the world. ``worlds``: number of worlds. ``goodput``: None if it is not known.
    """

    times: Times
    trace: Trace
    steps: int
    kept: int
    lost: int
    downtime_s: float
    worlds: int
    goodput: float | None


def read(path: Path) -> Measured:
    """Read the run with the most steps of a journal. Raises :class:`UsageError` if the file is not a journal, or has no
    training."""
    text = read_text(path, expected="give the journal of a job")
    found = runs(journal.read(text.split("\n")))
    longest = max((each.records for each in found), key=lambda each: sum(1 for _ in _of(each, "stepped")), default=())
    return of_records(longest, where=str(path))


def of_records(records: Sequence[Record], *, where: str) -> Measured:
    """Return the measurements of records. Raises :class:`UsageError`."""
    goodput = accounted(records).goodput()
    records = [_plain(each) for each in records if abs(each.mono) < LONGEST_S]
    paces = _paces(records)
    if not paces:
        raise UsageError(f"{where}: has no two consecutive steps; give the journal of a job that has trained")
    rows = list(_rows(records))
    changes = list(_changes(records))
    numbers = [int(each.get("step", 0)) for each in _of(records, "stepped")]
    ends = max((each.mono for each in records if each.event not in ENDS), default=0.0) - _first(records)
    return Measured(
        _times(records, paces, changes),
        dataclasses.replace(checked(rows, where=where, ends=ends), boots=_of_hosts(records)),
        max(numbers) - min(numbers) + 1,
        goodput.kept,
        sum(each.lost for each in changes),
        sum(each.downtime_s for each in changes),
        sum(1 for _ in _of(records, "resized")),
        goodput.ratio,
    )


def _plain(record: Record) -> Record:
    """Return a record without fields of wrong types: a journal is evidence after a crash."""
    fields = {name: value for name, value in record.fields.items() if (known := _KNOWN.get(name)) and known(value)}
    if abs(fields.get("deadline", record.mono) - record.mono) > MAX_DAYS * DAY_S:
        del fields["deadline"]
    return dataclasses.replace(record, fields=fields)


def _is_number(value: object) -> bool:
    return finite_number(value) is not None and abs(finite_number(value) or 0.0) < LONGEST_S


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15


def _is_host(value: object) -> bool:
    return isinstance(value, str) and name_error(value) is None


def _are_slots(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_host(host) and _is_whole(count) and 1 <= count <= MAX_SLOTS for host, count in value.items()
    )


_KNOWN: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("step", "steps_lost", "rank", "number", "slot"), _is_whole),
    **dict.fromkeys(("downtime_s", "seconds", "deadline"), _is_number),
    "size": lambda value: _is_whole(value) and bool(value),
    "host": _is_host,
    "hosts": _are_slots,
    "cause": lambda value: isinstance(value, str),
    "failed": lambda value: isinstance(value, dict),
}
"""The fields that are read here, and what they must be."""


def _of(records: Sequence[Record], *events: str) -> Iterator[Record]:
    return (each for each in records if each.event in events)


def _first(records: Sequence[Record]) -> float:
    return next((each.mono for each in records if each.event == "published"), records[0].mono)


class _Change(NamedTuple):
    """A change of the world. ``failed``: a process or steps were lost."""

    failed: bool
    downtime_s: float
    lost: int


def _changes(records: Sequence[Record]) -> Iterator[_Change]:
    for each in _of(records, "resized"):
        downtime_s, lost = each.get("downtime_s"), each.get("steps_lost")
        if each.get("cause") != "start" and isinstance(downtime_s, int | float):
            lost = lost if isinstance(lost, int) else 0
            yield _Change(bool(each.get("failed") or lost), float(downtime_s), lost)


# --- times


def _times(records: Sequence[Record], paces: Mapping[int, tuple[float, int]], changes: Sequence[_Change]) -> Times:
    usual, found = Times(), dict[str, Any]()
    step_s = sum(seconds for seconds, _ in paces.values()) / sum(count for _, count in paces.values())
    sizes = {size: seconds / count for size, (seconds, count) in paces.items()}
    first, later = _boots(records)
    boots = later or first
    if boots:
        found["boot_s"] = _middle(boots)
        found["cold_s"] = max(0.0, _middle(first) - found["boot_s"]) if first and later else 0.0
    if len(boots) >= FEW and min(boots) > 0.0:
        found["spread"] = min(1.0, statistics.stdev(map(math.log, boots)))
    for name, values in (
        ("agent_s", _agents(records)),
        ("write_s", [max(0.0, each - 2 * usual.helper_s - usual.seal_s) for each in _seconds(records, "sealed")]),
        ("load_s", _seconds(records, "resumed")),
        ("transfer_s", _seconds(records, "sent")),
    ):
        if values:
            found[name] = _middle(values)
    found |= _of_changes(changes, usual, step_s)
    return dataclasses.replace(usual, step_s=step_s, sizes=sizes, every=_every(records), publish_s=0.0, **found)


def _of_changes(changes: Sequence[_Change], usual: Times, step_s: float) -> dict[str, float]:
    """Return the times of planned changes and of losses. A loss interrupts a step: on average, half a step is lost.

    They include the time until newcomers are live.
    """
    planned = [max(0.0, each.downtime_s - ASKED_S) for each in changes if not each.failed]
    before_s = ASKED_S + usual.notice_s + step_s / 2
    failed = [max(0.0, each.downtime_s - before_s) for each in changes if each.failed]
    if not planned and not failed:
        return {}
    common = statistics.fmean(planned or failed)
    lost = {"lost_s": statistics.fmean(failed)} if failed else {}
    return {"go_s": 0.0, "join_s": common / 2, "sync_s": common / 2, **lost}


def _middle(values: Sequence[float]) -> float:
    """Return the median of a lognormal distribution with the mean logarithm of these values."""
    if min(values) <= 0.0:
        return statistics.fmean(values)
    return math.exp(statistics.fmean(map(math.log, values)))


def _seconds(records: Sequence[Record], event: str) -> list[float]:
    values = (each.get("seconds") for each in _of(records, event))
    return [float(value) for value in values if isinstance(value, int | float)]


def _pairs(records: Sequence[Record], event: str) -> Iterator[tuple[Record, Record]]:
    """Yield neighbouring records of one rank in one world."""
    own: dict[tuple[Any, ...], Record] = {}
    for each in _of(records, event):
        key = (each.generation, each.get("host"), each.get("rank"))
        if key in own:
            yield own[key], each
        own[key] = each


def _paces(records: Sequence[Record]) -> dict[int, tuple[float, int]]:
    """Return, by size of the world, times in seconds with the number of steps in each."""
    found = defaultdict[int, tuple[float, int]](lambda: (0.0, 0))
    for one, other in _pairs(records, "stepped"):
        count, size = int(other.get("step", 0)) - int(one.get("step", 0)), int(other.get("size", 1))
        if count > 0 and other.mono > one.mono:
            seconds, steps = found[size]
            found[size] = (seconds + other.mono - one.mono, steps + count)
    return dict(found)


def _every(records: Sequence[Record]) -> int:
    found = [
        (int(other.get("step", 0)) - int(one.get("step", 0)))
        / (int(other.get("number", 0)) - int(one.get("number", 0)))
        for one, other in _pairs(records, "committed")
        if int(other.get("number", 0)) > int(one.get("number", 0))
    ]
    return max(1, round(statistics.median(found))) if found else 1


class _Boot(NamedTuple):
    """The boot of a process. ``took_s``: seconds until it was ready, or None. ``late``: after the first world."""

    host: str
    took_s: float | None
    late: bool


def _starts(records: Sequence[Record]) -> Iterator[_Boot]:
    """Yield the starts of processes."""
    begun, late = dict[tuple[Any, Any], tuple[float, bool]](), False
    for each in _of(records, "spawned", "parked", "resized"):
        seat = (each.get("host"), each.get("slot"))
        late = late or each.event == "resized"
        if each.event == "spawned":
            begun[seat] = (each.mono, late)
        elif seat in begun:
            at, later = begun.pop(seat)
            yield _Boot(str(seat[0]), each.mono - at, later)
    yield from (_Boot(str(host), None, later) for (host, _), (_, later) in begun.items())


def _boots(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Return the seconds of boots before the first world, and of later ones."""
    found = [each for each in _starts(records) if each.took_s is not None]
    return [each.took_s or 0.0 for each in found if not each.late], [each.took_s or 0.0 for each in found if each.late]


def _of_hosts(records: Sequence[Record]) -> dict[str, float | None]:
    """Return the mean seconds of boots by host; None if no process of a host was ever ready."""
    found = defaultdict[str, list[float]](list)
    for each in _starts(records):
        found[each.host] += [] if each.took_s is None else [each.took_s]
    return {host: statistics.fmean(values) if values else None for host, values in found.items()}


def _agents(records: Sequence[Record]) -> list[float]:
    listed, there, found = dict[Any, float](), set[str](), []
    for each in _of(records, "published", "spawned"):
        if each.event == "published":
            hosts = set(each.get("hosts") or {})
            listed.update(dict.fromkeys(hosts - there, each.mono))
            there = hosts
        elif (at := listed.pop(each.get("host"), None)) is not None and each.mono - at < PROMPT_S:
            found.append(each.mono - at)
    return found


# --- hosts


def _rows(records: Sequence[Record]) -> Iterator[Row]:
    gone = list(_listed(records))
    rows = [*gone, *_crashes(records, [row for row in gone if row.event == "down"])]
    there: set[str] = set()
    for row in sorted(rows, key=lambda each: each.at):
        if (row.event == "up") == (row.host in there):
            continue  # it had gone before the list dropped it
        if row.event != "crash":
            (there.add if row.event == "up" else there.discard)(row.host)
        yield row


def _listed(records: Sequence[Record]) -> Iterator[Row]:
    first, there = _first(records), dict[str, float]()
    for each in _of(records, "published"):
        hosts: Mapping[str, int] = each.get("hosts") or {}
        for host in [host for host in hosts if host not in there]:
            there[host] = each.mono
            yield Row(max(0.0, each.mono - first), host, "up", slots=int(hosts[host]))
        for host in [host for host in there if host not in hosts]:
            yield _gone(records, host, came=there.pop(host), at=each.mono, first=first)


def _gone(records: Sequence[Record], host: str, *, came: float, at: float, first: float) -> Row:
    """Return how a host that was listed from ``came`` on was removed or lost."""
    notice = _first_notice([each for each in records if each.get("host") == host and came <= each.mono <= at])
    listed = (each for each in _of(records, "published") if host in (each.get("hosts") or ()))
    again = next((each.mono for each in listed if each.mono > at), math.inf)
    if notice is not None:  # the host may have stayed until its deadline
        since, deadline = notice
        gone = max(at, min(deadline, again))
        return Row(gone - first, host, "down", gone - since)
    own = [each for each in records if each.get("host") == host and at - LEAVES_S < each.mono <= at + LEAVES_S]
    leaves = [each.mono for each in _of(own, "exited") if each.mono >= at and each.get("cause") == "told to leave"]
    if leaves:
        gone = min(max(leaves) + 1.0, again)
        return Row(gone - first, host, "down", gone - at)
    cut = [each.mono for each in _of(own, "fenced") if each.mono > came]
    gone = min(cut, default=at)  # its connections were cut; without a cut, the list dropped it
    return Row(max(0.0, gone - first), host, "down", max(0.0, gone - at))


def _first_notice(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the time of a host's notice, and its deadline, from its records."""
    notice = None
    for each in _of(records, "notice", "notice_over"):
        if each.event == "notice_over":
            notice = None
        elif notice is None:
            deadline = each.get("deadline")
            notice = each.mono, float(deadline) if isinstance(deadline, int | float) else each.mono
    return notice


def _crashes(records: Sequence[Record], gone: Sequence[Row]) -> Iterator[Row]:
    """Yield processes that failed, without those that ended with their hosts."""
    first = _first(records)
    struck = [each for each in _of(records, "exited") if str(each.get("cause", "")).startswith("crashed")]
    struck.sort(key=lambda each: (str(each.get("host")), each.mono))
    for host, group in itertools.groupby(struck, key=lambda each: str(each.get("host"))):
        for _, same in itertools.groupby(group, key=lambda each: each.generation):
            at = max(0.0, next(same).mono - first)
            if not any(row.host == host and abs(row.at - at) < TOGETHER_S for row in gone):
                yield Row(at, host, "crash")

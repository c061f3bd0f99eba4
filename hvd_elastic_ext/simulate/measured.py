"""What a real job's journal says of times and hosts: the model of the next one.

Where the journal says nothing of a time, the default stays. Hosts are those that it lists; how they went follows from
their processes: told to leave is a notice, else they were taken away.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core import journal
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.traces.rows import Row, Trace, checked

PROMPT_S: Final = 120.0
"""A process that starts later after its host was listed has waited for something else."""
FEW: Final = 4
"""So many values say how much they vary."""
LEAVES_S: Final = 60.0
"""A host whose processes leave within this time of its removal from the list was announced."""


@dataclass(frozen=True, slots=True)
class Measured:
    """``steps``: from the first to the newest one; ``lost``: done again; ``downtime_s``: of all changes."""

    times: Times
    trace: Trace
    steps: int
    lost: int
    downtime_s: float
    worlds: int


def read(path: Path) -> Measured:
    """Read a journal. Raises :class:`UsageError` if it is none, or no world of it has trained."""
    try:
        with path.open(encoding="utf-8") as lines:
            records = _longest(journal.read(lines))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path}: cannot be read: {why}; give the journal of a job") from None
    return of_records(records, where=str(path))


def _longest(records: Iterable[Record]) -> list[Record]:
    """Those of the launcher under which most steps were done: between two of them nothing ran."""
    launchers: list[list[Record]] = [[]]
    for each in records:
        if each.event == "started":
            launchers.append([])
        launchers[-1].append(each)
    return max(launchers, key=lambda each: sum(record.event == "stepped" for record in each))


def of_records(records: Sequence[Record], *, where: str) -> Measured:
    """What the records say. Raises :class:`UsageError`."""
    steps = _step_s(records)
    if not steps:
        raise UsageError(f"{where}: tells of no two steps in a row; give the journal of a job that has trained")
    rows = list(_rows(records))
    ends = records[-1].mono - _first(records)
    lost = sum(value for each in _of(records, "resized") if isinstance(value := each.get("steps_lost"), int))
    downtime = [float(value) for each in _of(records, "resized") if (value := each.get("downtime_s")) is not None]
    numbers = [int(each.get("step", 0)) for each in _of(records, "stepped")]
    trace = checked(rows, where=where, ends=ends)
    times = _times(records, steps, downtime)
    return Measured(
        times, trace, max(numbers) - min(numbers) + 1, lost, sum(downtime), sum(1 for _ in _of(records, "resized"))
    )


def _of(records: Sequence[Record], *events: str) -> Iterator[Record]:
    return (each for each in records if each.event in events)


def _first(records: Sequence[Record]) -> float:
    return next((each.mono for each in records if each.event == "published"), records[0].mono)


# --- times


def _times(records: Sequence[Record], steps: list[float], downtime: list[float]) -> Times:
    usual, step_s = Times(), statistics.median(steps)
    boots, found = _boots(records), dict[str, Any]()
    change = [max(0.0, each - step_s) for each in downtime]
    for name, values in (
        ("boot_s", boots),
        ("agent_s", _agents(records)),
        ("join_s", [each / 2 for each in change]),
        ("sync_s", [each / 2 for each in change]),
        ("write_s", [max(0.0, each - 2 * usual.helper_s - usual.seal_s) for each in _seconds(records, "sealed")]),
        ("load_s", _seconds(records, "resumed")),
        ("transfer_s", _seconds(records, "sent")),
    ):
        if values:
            found[name] = statistics.median(values)
    if len(boots) >= FEW and min(boots) > 0.0:
        found["spread"] = min(1.0, statistics.stdev(map(math.log, boots)))
    return dataclasses.replace(usual, step_s=step_s, every=_every(records), publish_s=0.0, **found)


def _seconds(records: Sequence[Record], event: str) -> list[float]:
    values = (each.get("seconds") for each in _of(records, event))
    return [float(value) for value in values if isinstance(value, int | float)]


def _pairs(records: Sequence[Record], event: str) -> Iterator[tuple[Record, Record]]:
    """Neighbouring records of one rank in one world."""
    own: dict[tuple[Any, ...], Record] = {}
    for each in _of(records, event):
        key = (each.generation, each.get("host"), each.get("rank"))
        if key in own:
            yield own[key], each
        own[key] = each


def _step_s(records: Sequence[Record]) -> list[float]:
    pairs = (
        (one, other, int(other.get("step", 0)) - int(one.get("step", 0))) for one, other in _pairs(records, "stepped")
    )
    return [(other.mono - one.mono) / count for one, other, count in pairs if count > 0 and other.mono > one.mono]


def _every(records: Sequence[Record]) -> int:
    found = [
        (int(other.get("step", 0)) - int(one.get("step", 0)))
        / (int(other.get("number", 0)) - int(one.get("number", 0)))
        for one, other in _pairs(records, "committed")
        if int(other.get("number", 0)) > int(one.get("number", 0))
    ]
    return max(1, round(statistics.median(found))) if found else 1


def _boots(records: Sequence[Record]) -> list[float]:
    begun, found = dict[tuple[Any, Any], float](), []
    for each in _of(records, "spawned", "parked"):
        seat = (each.get("host"), each.get("slot"))
        if each.event == "spawned":
            begun[seat] = each.mono
        elif seat in begun:
            found.append(each.mono - begun.pop(seat))
    return found


def _agents(records: Sequence[Record]) -> list[float]:
    listed, found = dict[Any, float](), []
    for each in _of(records, "published", "spawned"):
        if each.event == "published":
            listed.update(dict.fromkeys(each.get("added") or (), each.mono))
        elif (at := listed.pop(each.get("host"), None)) is not None and each.mono - at < PROMPT_S:
            found.append(each.mono - at)
    return found


# --- hosts


def _rows(records: Sequence[Record]) -> Iterator[Row]:
    rows = [*_listed(records), *_crashes(records)]
    there: set[str] = set()
    for row in sorted(rows, key=lambda each: each.at):
        if (row.event == "up") == (row.host in there):
            continue  # it had gone before it was listed no more
        if row.event != "crash":
            (there.add if row.event == "up" else there.discard)(row.host)
        yield row


def _listed(records: Sequence[Record]) -> Iterator[Row]:
    first, there = _first(records), dict[str, int]()
    for each in _of(records, "published"):
        hosts: Mapping[str, int] = each.get("hosts") or {}
        for host in [host for host in hosts if host not in there]:
            yield Row(max(0.0, each.mono - first), host, "up", slots=int(hosts[host]))
        for host in [host for host in there if host not in hosts]:
            yield _gone(records, host, each.mono, first)
        there = {host: int(slots) for host, slots in hosts.items()}


def _gone(records: Sequence[Record], host: str, at: float, first: float) -> Row:
    """How a host went that is listed no more."""
    leaves = [
        each.mono
        for each in _of(records, "exited")
        if each.get("host") == host and at <= each.mono <= at + LEAVES_S and each.get("cause") == "told to leave"
    ]
    if leaves:
        return Row(max(leaves) + 1.0 - first, host, "down", max(leaves) + 1.0 - at)
    cut = [each.mono for each in _of(records, "fenced") if each.get("host") == host and at - LEAVES_S < each.mono <= at]
    return Row(max(0.0, min([at, *cut]) - first), host, "down")


def _crashes(records: Sequence[Record]) -> Iterator[Row]:
    first = _first(records)
    struck = [each for each in _of(records, "exited") if str(each.get("cause", "")).startswith("crashed")]
    for host, group in itertools.groupby(struck, key=lambda each: str(each.get("host"))):
        for _, same in itertools.groupby(group, key=lambda each: each.generation):
            yield Row(max(0.0, next(same).mono - first), host, "crash")

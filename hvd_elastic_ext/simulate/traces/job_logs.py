"""Reads logs of a cluster's jobs as traces of free hosts, for a job that uses free hosts and gives them back.

Philly (Microsoft, ATC '19): ``cluster_job_log`` of ``msr-fiddle/philly-traces``, JSON. It names machines. A machine is
free while no job has one of its GPUs. Helios (SenseTime, SC '21): ``cluster_log.csv`` of
``S-Lab-System-Group/HeliosData``. It has the number of GPUs of each job. The free GPUs count as whole hosts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import name_error
from hvd_elastic_ext.simulate.traces.published import (
    MISSING,
    Assumed,
    Level,
    Levels,
    Pool,
    count_of,
    levels,
    moment,
    table,
)
from hvd_elastic_ext.simulate.traces.rows import brief

HELIOS: Final = (
    "job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "start_time", "end_time",
    "duration", "queue",
)  # fmt: skip
NEEDED: Final = ("job_id", "vc", "gpu_num", "start_time", "end_time")
GPUS: Final = 8
"""GPUs of a Helios host."""


def philly(text: str, *, where: str, assumed: Assumed) -> Levels:
    """Read a job log of Philly. Raises :class:`UsageError` that names the job."""
    assumed.only((), where=where, what="a job log of Philly")
    busy = defaultdict[str, list[tuple[float, float]]](list)
    gpus = defaultdict[str, set[str]](set)
    for place, attempt in _attempts(text, where=where):
        times = attempt.get("start_time"), attempt.get("end_time")
        if any(time is None or time in MISSING for time in times):
            continue  # by the authors' notes: an error in the log, or the attempt was still running
        begun, ended = (moment(place, attempt, name) for name in ("start_time", "end_time"))
        if ended < begun:
            raise UsageError(f"{place}: end_time is before start_time; correct it, or leave the attempt out")
        for host, names in _machines(place, attempt):
            busy[host].append((begun, ended))
            gpus[host] |= names
    if not busy:
        raise UsageError(f"{where}: has no attempt on a machine; give cluster_job_log as it was published")
    begins = min(begun for spans in busy.values() for begun, _ in spans)
    ends = max(ended for spans in busy.values() for _, ended in spans)
    free = (
        level
        for host, spans in busy.items()
        for level in _free(Pool(host, "", assumed.slots or len(gpus[host]), machine=True), spans, begins, ends)
    )
    return levels(free, where=where, assumed=assumed)


def _attempts(text: str, *, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        jobs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is not JSON: {error}; give cluster_job_log as it was published") from None
    for number, job in enumerate(jobs, 1):
        attempts = job.get("attempts") if isinstance(job, dict) else None
        if not isinstance(attempts, list):
            raise UsageError(f"{where}: job {number} has no list 'attempts'; correct it, or leave it out")
        place = f"{where}: job {number} ({brief(str(job.get('jobid')))})"
        for attempt in attempts:
            if not isinstance(attempt, dict):
                raise UsageError(f"{place}: an attempt is {brief(str(attempt))}; correct it, or leave it out")
            yield place, attempt


def _machines(place: str, attempt: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    detail = attempt.get("detail") or ()
    if not isinstance(detail, list | tuple):
        raise UsageError(f"{place}: detail is {brief(str(detail))}; write a list, or leave the attempt out")
    for each in detail:
        host, gpus = (each.get("ip"), each.get("gpus")) if isinstance(each, dict) else (None, None)
        if not isinstance(host, str) or not isinstance(gpus, list) or not gpus or name_error(host) is not None:
            raise UsageError(
                f"{place}: detail is {brief(str(each))}; write an ip and its gpus, or leave the attempt out"
            )
        yield host, set(map(str, gpus))


def _free(pool: Pool, spans: Iterable[tuple[float, float]], begins: float, ends: float) -> Iterator[Level]:
    """Yield the times in which a machine is free."""
    free = begins
    for begun, ended in sorted(spans):
        if begun > free:
            yield Level(free, pool, 1)
            yield Level(begun, pool, 0)
        free = max(free, ended)
    yield Level(free, pool, 1 if free < ends else 0)


def helios(text: str, *, where: str, assumed: Assumed) -> Levels:
    """Read a job log of Helios. Raises :class:`UsageError` that names the line."""
    assumed.only(("gpus", "vc"), where=where, what="a job log of Helios")
    changes = list[tuple[float, int]]()
    for place, values in table(text, where=where, needed=NEEDED, known=HELIOS):
        gpus = count_of(place, values, "gpu_num")
        if not gpus or (assumed.vc and values["vc"] != assumed.vc) or values["start_time"] in MISSING:
            continue
        begun, ended = (moment(place, values, name) for name in ("start_time", "end_time"))
        if ended < begun:
            raise UsageError(f"{place}: end_time is before start_time; correct it, or leave it out")
        changes += ((begun, gpus), (ended, -gpus))
    used, most, busy = 0, 0, dict[float, int]()
    for at, change in sorted(changes):
        used += change
        busy[at] = used
    most = assumed.gpus or max(busy.values(), default=0)
    pool = Pool(slots=assumed.slots or GPUS)
    free = (Level(at, pool, max(0, most - used) // pool.slots) for at, used in busy.items())
    return levels(free, where=where, assumed=assumed)

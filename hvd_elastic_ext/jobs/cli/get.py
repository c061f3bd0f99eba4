"""``hvd-elastic get`` and ``hvd-elastic list``: jobs of a namespace, and the pods of one.

Tables look like kubectl's, and so do the errors, because users of kubectl and scripts around it read them. With
``--watch``, tables come once, then only rows of which more than the age has changed; an API server that is away is
waited for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.io import tables
from hvd_elastic_ext.io.config_file import to_documents
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.jobs.cli.options import add_cluster, add_labels, cluster_of, patient
from hvd_elastic_ext.jobs.cluster import changes
from hvd_elastic_ext.jobs.cluster.api import Cluster, Patience
from hvd_elastic_ext.jobs.reading.states import GONE, JobStatus, PodStatus, leftover_note

# --- the commands


JOB: Final = ("NAME", "KIND", "STATE", "READY", "WORKERS", "AGE")
WIDE: Final = ("IMAGE", "MESSAGE")
PODS: Final = ("POD", "ROLE", "PHASE", "READY", "AGE", "NODE", "WHY")


def main(argv: Sequence[str], *, command: str = "get", other: str = "list") -> int:
    """Run ``get``. Print the table; returns 0 also without jobs. Raises :class:`UsageError` for a named job that does
    not exist. ``command``: the name by which it was called, of two; ``other``: the other one.
    """
    parser = Parser(
        prog=f"hvd-elastic {command}",
        description="Show the jobs that were submitted, or one job and its pods. READY counts workers. "
        f"`hvd-elastic {other}` is the same.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="one job (default: all)")
    parser.add_argument("-o", "--output", choices=("wide", "json", "yaml", "name"), default="", help="another format")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="jobs of all namespaces")
    add_labels(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="print rows that change, until it is interrupted")
    add_cluster(parser)
    options = parser.parse_args(argv)
    if options.name is not None and options.selector:
        raise UsageError("name cannot be provided when a selector is specified")
    if options.name is not None and options.all_namespaces:
        raise UsageError("a resource cannot be retrieved by name across all namespaces; leave one of them out")
    cluster = cluster_of(options)
    place = cluster.namespace
    if options.all_namespaces:
        cluster = cluster.within("")
    if options.watch:
        if options.output not in ("", "wide"):
            raise UsageError(f"--watch shows tables; leave --output {options.output} out")
        wide, patience = options.output == "wide", patient(command)
        return watch(cluster, options.name, wide=wide, labels=options.selector, write=_written, patience=patience)
    one = options.name is not None
    jobs, unread = _looked(cluster, options.name, options.selector)
    if not jobs and options.output in ("", "wide"):
        where = "in any namespace" if options.all_namespaces else f"in namespace {place}"
        labels = f" has the labels {options.selector}" if options.selector else " was submitted"
        note = changes.not_read(unread)
        sys.stderr.write(f"no job{labels} {where}{'; ' * bool(note)}{note}\n")
    sys.stdout.write(shown(jobs, options.output, alone=one, everywhere=options.all_namespaces, now=time.time()))
    if one:
        sys.stderr.write(leftover_note(jobs[0]))
    return 0


def all_jobs(argv: Sequence[str]) -> int:
    """Run ``list``: ``get`` by another name."""
    return main(argv, command="list", other="get")


def watch(
    cluster: Cluster,
    name: str | None,
    *,
    wide: bool,
    labels: str = "",
    write: Callable[[str], object],
    sleep: Callable[[float], None] = time.sleep,
    patience: Patience | None = None,
) -> int:
    """Print tables, then the rows that change. Returns when a named job ends. Waits for an API server that is away."""
    seen = Changes()
    patience = patience or Patience(sleep=sleep)
    jobs, _ = patience.of(lambda: _looked(cluster, name, labels))
    everywhere = not cluster.namespace
    while True:
        tables = _tables(jobs, wide=wide, alone=name is not None, everywhere=everywhere, now=time.time())
        for line in seen.lines(tables):
            write(line)
        if name is not None and not jobs:
            return 0
        sleep(changes.LOOKS_S)
        kind = jobs[0].kind if jobs else ""
        jobs, _ = patience.of(partial(_looked_again, cluster, name, labels, kind=kind))


def _looked(cluster: Cluster, name: str | None, labels: str) -> changes.Found:
    return changes.search(cluster, labels) if name is None else changes.Found([changes.look(cluster, name)], ())


def _looked_again(cluster: Cluster, name: str | None, labels: str, *, kind: str) -> changes.Found:
    if name is None:
        return changes.search(cluster, labels)
    found = changes.look_again(cluster, name, kind)
    return changes.Found([] if isinstance(found, changes.NoSuchJob) else [found], ())


def _written(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def shown(jobs: Sequence[JobStatus], form: str, *, alone: bool, everywhere: bool = False, now: float) -> str:
    """Return the answer as text. ``alone``: one job was named, so its pods are shown, too. Pure."""
    match form:
        case "json":
            return to_text(_plain(jobs[0]) if alone else [_plain(job) for job in jobs]) + "\n"
        case "yaml":
            return to_documents([_plain(job) for job in jobs])
        case "name":
            return "".join(f"{job.kind.lower()}/{job.name}\n" for job in jobs)
    headed = _tables(jobs, wide=form == "wide", alone=alone, everywhere=everywhere, now=now)
    return "\n".join(tables.plain(headings, rows) for headings, rows in headed if rows)


def _tables(jobs: Sequence[JobStatus], *, wide: bool, alone: bool, everywhere: bool, now: float) -> list[Table]:
    rows = [
        ((job.namespace,) if everywhere else ())
        + _row(job, now)
        + ((job.image, job.message) if wide else (job.message,) if alone else ())
        for job in jobs
    ]
    more = WIDE if wide else WIDE[1:] if alone else ()
    shown_tables: list[Table] = [((*((PLACE,) if everywhere else ()), *JOB, *more), rows)]
    return [*shown_tables, (PODS, [_pod_row(pod, now) for job in jobs for pod in job.pods])] if alone else shown_tables


def _plain(job: JobStatus) -> dict[str, Any]:
    whole = asdict(job)
    return {**whole, "ready": job.ready, "pods": [dict(pod) for pod in whole["pods"]]}


def _row(job: JobStatus, now: float) -> tuple[str, ...]:
    ready = f"{job.ready}/{'?' if job.asked is None else job.asked}"
    limits = "" if job.least is None else f"{job.least}-{job.most}"
    return (job.name, job.kind, job.state, ready, limits, age(job.created, now))


def _pod_row(pod: PodStatus, now: float) -> tuple[str, ...]:
    return (pod.name, pod.role, pod.phase, "yes" if pod.ready else "no", age(pod.created, now), pod.node, pod.why)


def age(created: str, now: float) -> str:
    """Return the time since then as kubectl writes it: 45s, 12m, 5h, 3d. Pure."""
    try:
        seconds = max(0, int(now - datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()))
    except ValueError:
        return "?"
    for most, size, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < most:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86_400}d"


# --- --watch


AGE: Final = "AGE"
PLACE: Final = "NAMESPACE"
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and rows. The first cell of a row names it; if a namespace comes first, the first two cells do."""


class Changes:
    """Tables that are printed repeatedly: first complete, then only rows of which more than the age has changed."""

    def __init__(self) -> None:
        self._shown: dict[str, dict[tuple[str, ...], Sequence[str]]] = {}
        self._widths: dict[str, list[int]] = {}

    def lines(self, tables: Sequence[Table]) -> Iterator[str]:
        """Return the lines to print now."""
        for headings, rows in tables:
            first = headings[0] not in self._shown
            before = self._shown.setdefault(headings[0], {})
            named = 2 if headings[0] == PLACE else 1
            now = {tuple(row[:named]): row for row in rows}
            if first:
                self._widths[headings[0]] = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
                yield self._line(headings[0], headings)
            gone = [_gone(headings, before[name]) for name in before if name not in now]
            for row in (*now.values(), *gone):
                if _lasting(headings, row) != _lasting(headings, before.get(tuple(row[:named]), ())):
                    yield self._line(headings[0], row)
            self._shown[headings[0]] = now

    def _line(self, table: str, cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths[table], strict=True))
        return "  ".join(padded).rstrip() + "\n"


def _lasting(headings: Sequence[str], row: Sequence[str]) -> list[str]:
    return [cell for name, cell in zip(headings, row, strict=False) if name != AGE]


def _gone(headings: Sequence[str], row: Sequence[str]) -> list[str]:
    """Return the row of an object that no longer exists."""
    return [GONE if name in ("STATE", "PHASE") else cell for name, cell in zip(headings, row, strict=True)]

"""A job's page in one file, for a post-mortem: it needs no server and makes no connection."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard import files
from hvd_elastic_ext.dashboard.jobs import Job
from hvd_elastic_ext.dashboard.launcher_client import LauncherClient
from hvd_elastic_ext.dashboard.logs import Logs
from hvd_elastic_ext.dashboard.reading import Reading
from hvd_elastic_ext.dashboard.watch import parts_of
from hvd_elastic_ext.io.user_files import write_given

MAX_BYTES: Final = 5_000_000
LOG_BYTES: Final = 2_000_000
"""Most bytes of output in the file, of all ranks together. The ends of failed ranks' output come first."""
FAILED_END, END = 64 << 10, 8 << 10
"""Bytes of the end of a file: of a rank that failed, of another one."""
AROUND: Final = 16 << 10
"""Bytes from around a fault."""


def export(job: Job, path: Path, *, run: int | None = None) -> str:
    """Write the page. Return a sentence about the job's outcome. Raises :class:`UsageError`."""
    reading = Reading(job.journal, run=run)
    try:
        reading.read_all()
    except OSError as error:
        raise UsageError(f"{job.journal}: cannot be read: {error.strerror}") from None
    if run is not None and run > len(reading.runs) > 0:
        raise UsageError(f"--run {run}: {job.journal} has {len(reading.runs)}, counted from 1")
    if not reading.kept.counts and not reading.kept.steps:
        raise UsageError(f"{job.journal}: holds no journal line; give the file that `hvd-elastic run --journal` wrote")
    parts = {name: json.loads(part) for name, part in parts_of(reading, job, LauncherClient(job.folder).ask()).items()}
    text = _small_enough({"parts": parts, "logs": _logs(parts), "written": time.time(), "job": job.name})
    try:
        write_given(path, text.encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; choose another file") from None
    return str(parts["now"]["text"])


def _small_enough(data: dict[str, Any]) -> str:
    """Return the page; leaves out the oldest details and output until the size is within the limit."""
    while len(text := files.single_file(data).encode()) > MAX_BYTES:
        records, ends, around = data["parts"]["records"], data["logs"]["ends"], data["logs"]["around"]
        if not (records or ends or around):
            break
        data["parts"]["records"] = records[len(records) // 2 + 1 :]
        data["logs"]["ends"] = dict(list(ends.items())[: len(ends) // 2])
        if not ends:  # the newest faults come last, so they are kept
            data["logs"]["around"] = dict(list(around.items())[len(around) // 2 + 1 :])
    return text.decode()


def _logs(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the output files: the ends of as many as fit, and the output around faults."""
    folder = parts["now"]["output"]
    if not folder:
        return {"folder": None, "files": [], "ends": {}, "around": {}}
    logs, room = Logs(Path(folder)), LOG_BYTES
    around, ends = {}, {}
    faults = [(str(who), float(t)) for row in parts["timeline"]["rows"] for who, t in row["who"]]
    for who, t in faults[-100:]:
        name = f"rank.{who}/stderr"
        part = _or_none(lambda name=name, t=t: logs.around(name, t))
        if part is not None:
            around[f"{name}@{t}"] = {"text": part.text[-AROUND:], "file": part.file}
            room -= len(part.text[-AROUND:])
    failed = {who for who, _ in faults}
    listed = logs.files()
    for entry in sorted(listed, key=lambda entry: (entry["who"] not in failed, entry["stream"] != "stderr")):
        name, most = entry["file"], FAILED_END if entry["who"] in failed else END
        part = _or_none(lambda name=name, most=most: logs.read(name, length=most))
        if part is not None and part.text and len(part.text) <= room:
            ends[name] = part.text
            room -= len(part.text)
    return {"folder": folder, "files": listed, "ends": ends, "around": around}


def _or_none(read: Any) -> Any:
    try:
        return read()
    except (UsageError, OSError):
        return None

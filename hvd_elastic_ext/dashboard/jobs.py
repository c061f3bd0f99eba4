"""Which jobs there are: folders of jobs, and journals."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import FILE, FOLDERS, parse_line
from hvd_elastic_ext.io.job_folders import find_journal
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.report.timeline import text, whole

TAIL: Final = 64 << 10
"""Bytes at the end of a journal in which its newest state is looked for."""
MOST: Final = 500


class Job(NamedTuple):
    """``folder``: the job's own, None if only its journal is known."""

    name: str
    journal: Path
    folder: Path | None


class Jobs:
    """The jobs that were named; without a name all below ``folders``, also those that come later."""

    def __init__(
        self,
        named: Sequence[str],
        folders: Path = Path(FOLDERS),
        *,
        folder: Path | None = None,
        may_be_none: bool = False,
    ) -> None:
        """``folder``: of the one job that is named, where its journal lies elsewhere."""
        if folder is not None and len(named) != 1:
            raise UsageError("--state-dir is the folder of one job; name that job's journal, too")
        self._folders = folders
        self._named = [job_of(find_journal(word, folders), folder) for word in named]
        if not (named or may_be_none or self._found()):
            raise UsageError(f"no job has a journal in ./{folders}; name a job, its folder or its journal")

    def all(self) -> list[Job]:
        """The one that wrote last comes first."""
        return sorted(self._named or self._found(), key=lambda job: -_written(job.journal))[:MOST]

    def get(self, name: str) -> Job:
        """A job by its name; the first one if that is empty. Raises :class:`UsageError`."""
        for job in self.all():
            if name in ("", job.name):
                return job
        raise UsageError(f"there is no job {name!r} on this page" if name else "no job has a journal here")

    def _found(self) -> list[Job]:
        return [job_of(path) for path in self._folders.glob(f"*/{FILE}")]


def job_of(journal: Path, folder: Path | None = None) -> Job:
    """A job by its journal; its folder is where that lies, unless it is given."""
    named = folder or (journal.parent if journal.name == FILE else None)
    held = named if named is not None and (folder is not None or (named / state_folder.LOCK).exists()) else None
    return Job(journal.stem if named is None else named.resolve().name, journal, held)


def summary(job: Job) -> dict[str, Any]:
    """One line of the list: from the end of the journal, and from who holds the folder."""
    found: dict[str, Any] = {"name": job.name, "t": _written(job.journal), "runs": False, "code": None, "step": None}
    found |= {"reason": "", "size": None}
    runs = job.folder is not None and state_folder.holder(job.folder) is not None
    for line in reversed(_tail(job.journal)):
        record = parse_line(line)
        if record is None:
            continue
        if record.event == "finished" and found["step"] is None and found["size"] is None:
            found["code"], found["reason"] = whole(record.get("code")), text(record.get("reason"))
        if record.event in ("stepped", "committed", "sealed") and found["step"] is None:
            found["step"] = whole(record.get("step"))
        if record.event in ("resized", "stepped") and found["size"] is None:
            found["size"] = whole(record.get("size"))
        if found["step"] is not None and found["size"] is not None:
            break
    return {**found, "runs": runs}


def _written(journal: Path) -> float:
    try:
        return journal.stat().st_mtime
    except OSError:
        return 0.0


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            return file.read(TAIL).decode("utf-8", errors="replace").split("\n")
    except OSError:
        return []

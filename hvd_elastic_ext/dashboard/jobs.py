"""Finds jobs: folders of jobs, and journals.

A row of the list is made from the end of the journal and the lock of the folder, so a list of many long journals is
quick. A job without a lock and without an end in its journal is *lost*: nobody ended it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.events import DONE, FAILED, SLEEPS, STOPPED, end_of
from hvd_elastic_ext.core.journal import FILE, FOLDERS, Record, parse_line
from hvd_elastic_ext.dashboard.content.sentences import LATE_S
from hvd_elastic_ext.io.job_folders import find_journal, journals
from hvd_elastic_ext.io.user_files import open_regular
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.report.timeline import text, whole

TAIL: Final = 64 << 10
"""Bytes at the end of a journal that are searched for its newest state."""
MAX_JOBS: Final = 500
TRAINS, STARTS, LOST = "trains", "starts", "lost"
STATES: Final[Mapping[str, str]] = {
    **{state: state for state in (TRAINS, STARTS, SLEEPS, DONE, STOPPED, FAILED)},
    LOST: "no launcher, and no end",
}
"""States of a job, with their texts. The page has a mark for each."""
_TELLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("started", "woke"), STARTS),
    **dict.fromkeys(("resized", "stepped"), TRAINS),
    "slept": SLEEPS,
    "finished": "",
}
"""Events of which the newest determines the state of a job; at its end, the exit code does."""


class Job(NamedTuple):
    """A job whose journal is on this machine."""

    name: str
    journal: Path
    folder: Path | None
    """The job's own; None if only its journal is known."""


class Jobs:
    """The named jobs; without names all jobs below ``folders``, also later ones."""

    def __init__(
        self,
        named: Sequence[str],
        folders: Path = Path(FOLDERS),
        *,
        folder: Path | None = None,
        may_be_none: bool = False,
    ) -> None:
        """``folder``: the folder of the one named job, if its journal is in another place."""
        if folder is not None and len(named) != 1:
            raise UsageError("--state-dir is the folder of one job; name that job's journal, too")
        self._folders = folders
        self._named = [job_of(find_journal(word, folders), folder) for word in named]
        if not (named or may_be_none or self._found()):
            raise UsageError(f"no job has a journal in ./{folders}; name a job, its folder or its journal")

    def all(self) -> list[Job]:
        """Return all jobs; the one whose journal changed last comes first."""
        return sorted(self._named or self._found(), key=lambda job: -_written(job.journal))[:MAX_JOBS]

    def get(self, name: str) -> Job:
        """Return a job by its name, or the first one for "". Raises :class:`UsageError`."""
        for job in self.all():
            if name in ("", job.name):
                return job
        raise UsageError(f"there is no job {name!r} on this page" if name else "no job has a journal here")

    def _found(self) -> list[Job]:
        return [job_of(path) for path in journals(self._folders)]


def job_of(journal: Path, folder: Path | None = None) -> Job:
    """Return the job of a journal. Its folder is the journal's, unless it is given."""
    named = folder or (journal.parent if journal.name == FILE else None)
    held = named if named is not None and (folder is not None or (named / state_folder.LOCK).exists()) else None
    return Job(journal.stem if named is None else named.resolve().name, journal, held)


def summary(job: Job) -> dict[str, Any]:
    """Return a row of the list, from the end of the journal and the lock of the folder.

    ``state``: one of :data:`STATES`; ``told``: the same in words.
    """
    row: dict[str, Any] = {"name": job.name, "t": _written(job.journal), "step": None, "size": None}
    newest: Record | None = None
    for line in reversed(_tail(job.journal)):
        record = parse_line(line)
        if record is None:
            continue
        if record.event in _TELLS and newest is None:
            newest = record
        if record.event in ("stepped", "committed", "sealed") and row["step"] is None:
            row["step"] = whole(record.get("step"))
        if record.event in ("resized", "stepped") and row["size"] is None:
            row["size"] = whole(record.get("size"))
        if record.event == "started" or None not in (newest, row["step"], row["size"]):
            break  # earlier lines are of another launcher, or add nothing
    runs = job.folder is not None and state_folder.holder(job.folder) is not None
    grows = runs or (job.folder is None and time.time() - row["t"] < LATE_S)
    ended = newest is not None and newest.event == "finished"
    code = whole(newest.get("code")) if newest is not None and ended else None
    reason = text(newest.get("reason")) if newest is not None else ""
    state = end_of(code) if ended else _TELLS.get(newest.event if newest else "started", "") if grows else LOST
    return {
        **row,
        "runs": runs,
        "code": code,
        "reason": reason,
        "state": state,
        "told": state_text(state, code, reason),
    }


def state_text(state: str, code: int | None, reason: str) -> str:
    """Return the text for a state. Pure."""
    words = STATES[state]
    if state == FAILED and code is not None:
        words = f"{words} with {code}"
    if state == STOPPED and reason.startswith(words):
        return reason
    return f"{words}: {reason}" if reason and state in (SLEEPS, STOPPED, FAILED) else words


def _written(journal: Path) -> float:
    try:
        return journal.stat().st_mtime
    except OSError:
        return 0.0


def _tail(path: Path) -> list[str]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            return file.read(TAIL).decode("utf-8", errors="replace").split("\n")
    except OSError:
        return []

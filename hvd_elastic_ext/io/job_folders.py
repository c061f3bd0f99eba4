"""Finds a job on this machine by what its user calls it."""

from __future__ import annotations

from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import FILE, FOLDERS


def find_journal(what: str | None, folders: Path = Path(FOLDERS)) -> Path:
    """The journal of a job: by name, folder or file; of the one that wrote last if None. Raises :class:`UsageError`."""
    if what is None:
        found = sorted(folders.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise UsageError(f"no job has a journal in ./{folders}; name the job, its folder or its journal")
        return found[-1]
    path = Path(what)
    named = folders / what / FILE
    if path.is_dir():
        return path / FILE
    return named if not path.exists() and named.exists() else path

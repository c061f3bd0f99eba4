"""Finds a job on this machine by name, folder or journal."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import FILE, FOLDERS, Record, parse_line
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.io.user_files import open_regular

STARTED: Final = "started"
"""The first event of each launcher."""
_HEAD: Final = 400
"""Bytes at the beginning of a line that contain its event."""
_PIECE: Final = 1 << 20
_LONGEST: Final = 8 << 20
"""Bytes of the longest line that counts."""


def find_journal(what: str | None, folders: Path = Path(FOLDERS)) -> Path:
    """Return the journal of a job by name, folder or file; with None, the journal changed last. Raises
    :class:`UsageError`."""
    if what is None:
        found = journals(folders)
        if not found:
            raise UsageError(f"no job has a journal in ./{folders}; name the job, its folder or its journal")
        return found[-1]
    path = Path(what)
    named = folders / what / FILE
    if path.is_dir():
        return path / FILE
    if path.exists() or not (named.exists() or _is_name(what)):
        return path
    if named.exists():
        return named
    known = [path.parent.name for path in journals(folders)]
    raise UsageError(no_job(what, known, where=f"./{folders}, and no file or folder of that name here"))


def journals(folders: Path = Path(FOLDERS)) -> list[Path]:
    """Return the journals of all jobs, the one that was written last at the end. Only regular files: another user may
    have put anything else in their place."""
    found = [(written, path) for path in folders.glob(f"*/{FILE}") if (written := _written(path)) is not None]
    return [path for _, path in sorted(found)]


def _written(path: Path) -> float | None:
    """Return when a regular file was written last; None if it is not a regular file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def one_job(word: str | None, option: str | None) -> str | None:
    """Return the job given as an argument or by ``--job``; None without both. Raises :class:`UsageError` for both.
    Pure."""
    if None not in (word, option) and word != option:
        raise UsageError(f"{word!r} and --job {option!r} are two jobs; name one")
    return word if option is None else option


def no_job(name: str, there: Iterable[str], *, where: str = f"./{FOLDERS}") -> str:
    """Return the error line for an unknown job, with the nearest one or all of the names in ``there``. Pure."""
    known = sorted(there)
    return f"there is no job {name} in {where}; {nearest(name, known) if known else 'no job was started here'}"


def _is_name(what: str) -> bool:
    """Whether a word can only be the name of a job."""
    return os.sep not in what and not what.endswith(".jsonl")


def last_records(journal: Path, *events: str) -> dict[str, Record]:
    """Return the newest record of each of these events in a journal, of its newest launcher; none of a file that cannot
    be read.

    The file is read from its end, and only as far as needed.
    """
    found: dict[str, Record] = {}
    try:
        with open_regular(journal) as file:
            for line in _backwards(file):
                record = parse_line(line.decode("utf-8", errors="replace")) if _may_be(line, events) else None
                if record is None:
                    continue
                if record.event in events:
                    found.setdefault(record.event, record)
                if record.event == STARTED or len(found) == len(set(events)):
                    break
    except OSError:
        return found
    return found


def _may_be(line: bytes, events: Iterable[str]) -> bool:
    """Whether a line may be of one of these events, or the beginning of a launcher: most lines are steps."""
    return any(b'"%b"' % event.encode() in line[:_HEAD] for event in (*events, STARTED))


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, the last one first."""
    at, rest = file.seek(0, os.SEEK_END), b""
    while at:
        size = min(_PIECE, at)
        at -= size
        file.seek(at)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
        if len(rest) > _LONGEST:
            rest = b""
    yield rest

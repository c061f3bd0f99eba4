"""Files with the output of a job's processes, and an index of which process wrote which part, and when.

Every process that is rank N appends to ``FOLDER/rank.N/stdout`` and ``stderr``. A line of the index
(``FOLDER/index.jsonl``) names a byte of a file, the process that has written the file from there on, its world, and
the time.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from hvd_elastic_ext.core.json_text import to_text

INDEX: Final = "index.jsonl"
STREAMS: Final = ("stdout", "stderr")
EVERY_S: Final = 5.0
"""Seconds between two index lines of one process."""
_SEAT: Final = re.compile(r"(.+)\[(\d+)\]", re.ASCII)
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Mark(NamedTuple):
    """From byte ``at`` on, ``file`` (``rank.0/stderr``) is by this process. ``t``: Unix seconds."""

    file: str
    at: int
    t: float
    generation: int
    host: str
    slot: int


def file_of(who: str, stream: str) -> str:
    """Return the file of a rank, or of a process without a rank, within the folder."""
    return f"rank.{who}/{stream}"


def label(who: str, stream: str) -> str:
    """Return what stands before a line on a terminal. ``who``: a rank; of a process without a rank, its slot, such as
    ``h3[0]``; for a line of an agent, its host. It has one form for all: ``[0]<stdout>:``, ``[h3 slot 0]<stderr>:``,
    ``[h3]<stderr>:``.
    """
    seat = _SEAT.fullmatch(who)
    return f"[{who if seat is None else f'{seat[1]} slot {seat[2]}'}]<{stream}>:"


def parse_mark(line: str) -> Mark | None:
    """Read a line of the index; None if it is invalid."""
    try:
        entry = json.loads(line)
        mark = Mark(**entry)
        if not 0 <= mark.at < 1 << 63:  # no valid position in a file
            return None
        return Mark(str(mark.file), int(mark.at), float(mark.t), int(mark.generation), str(mark.host), int(mark.slot))
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None


class Indexer:
    """Makes the lines of the index. ``wall``: Unix seconds."""

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        self._folder, self._wall = folder, wall
        self._last: dict[str, Mark] = {}

    def line(self, file: str, *, host: str, slot: int, generation: int) -> str | None:
        """Return the line of the index for text that goes to the end of ``file`` now, if one is due.

        All text before must have been written: the position is the size of the file. May wait for the disk.
        """
        last, t = self._last.get(file), self._wall()
        same = last is not None and (last.generation, last.host, last.slot) == (generation, host, slot)
        if same and last is not None and 0 <= t - last.t < EVERY_S:
            return None
        mark = self._last[file] = Mark(file, self._size(file), round(t, 3), generation, host, slot)
        return to_text(mark._asdict()) + "\n"

    def _size(self, file: str) -> int:
        try:
            return (self._folder / file).stat().st_size
        except OSError:
            return 0


def by_rank(name: str) -> tuple[int, str]:
    """Sort key for names of folders such as ``rank.3``; those of processes without a rank come last."""
    number = name.removeprefix("rank.")
    return (int(number), "") if number.isdecimal() and len(number) < 10 else (1 << 40, number)


def open_file(folder: Path, name: str) -> BinaryIO:
    """Open a file of a rank within the folder to read, or the index. Raises ``OSError`` for a link and for anything but
    a regular file: others may have made it. The folder itself may be a link: it is as the user named it.
    """
    below, _, last = name.rpartition("/")
    flags = _FLAGS if below else _FLAGS & ~os.O_NOFOLLOW
    holder = os.open(folder / below, flags | os.O_DIRECTORY)
    try:
        descriptor = os.open(last, _FLAGS, dir_fd=holder)
    finally:
        os.close(holder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(folder / name))
    return os.fdopen(descriptor, "rb")

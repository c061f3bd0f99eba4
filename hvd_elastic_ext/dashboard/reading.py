"""Reads a job's journal as it grows, and keeps a bounded number of records of one run.

A journal may have millions of steps. Lines are read once, in pieces, and steps are thinned as they come
(``content/thinning``), so memory and the page stay small.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.journal import Record, parse_line
from hvd_elastic_ext.dashboard.content.host_facts import Hosts
from hvd_elastic_ext.dashboard.content.thinning import Thinned
from hvd_elastic_ext.io.user_files import open_regular
from hvd_elastic_ext.report.timeline import text

PIECE: Final = 4 << 20
"""Bytes that are read at once."""
_HEAD: Final = 200
"""Bytes at the beginning of a line that contain its event."""
LONGEST_LINE: Final = 8 << 20
"""Most bytes of a journal line; longer lines are ignored."""


class Reading:
    """The data read from a journal so far. ``run``: the number of the run to read, from 1; None is the newest."""

    def __init__(self, path: Path, *, run: int | None = None) -> None:
        self.path = path
        self._wanted = run
        self._begin()

    def _begin(self) -> None:
        self._offset = self._inode = 0
        self._rest = b""
        self._counts = False
        """Whether the present lines belong to the run that is read."""
        self.size = 0
        """Bytes of the file when it was looked at last."""
        self.kept, self.hosts = Thinned(), Hosts()
        self.runs: list[str | None] = []
        """Names of all runs so far."""
        self.started: Record | None = None
        """Record of the newest start of a launcher in this run."""
        self.last: Record | None = None
        """The newest record that is not a step."""

    @property
    def offset(self) -> int:
        """Number of bytes read."""
        return self._offset

    def read_on(self) -> Iterator[int]:
        """Read the new lines in pieces, and yield the number of bytes read after each. If the file was replaced, start
        again. Raises ``OSError`` if it cannot be read.
        """
        with open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._begin()
                self._inode = status.st_ino
            self.size = status.st_size
            file.seek(self._offset)
            while piece := file.read(PIECE):
                self._offset += len(piece)
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for line in lines:
                    self._take(line)
                if len(self._rest) > LONGEST_LINE:
                    self._rest = b""
                yield self._offset

    def read_all(self) -> None:
        """Read to the end, including a last line without a line end."""
        for _ in self.read_on():
            pass
        if parse_line(self._rest.decode("utf-8", errors="replace")) is not None:
            self._take(self._rest)
            self._rest = b""

    def _take(self, line: bytes) -> None:
        if self._counts and self.kept.add_step(line):
            return
        if line.find(b'"started"', 0, _HEAD) >= 0:
            record = parse_line(line.decode("utf-8", errors="replace"))
            if record is not None and record.event == "started":
                self._begins_run(text(record.get("run")) or None)
        if not self.runs and line.strip():
            self.runs.append(None)
        self._counts = bool(self.runs) and self._wanted in (None, len(self.runs))
        if not self._counts:
            return
        record = self.kept.add(line)
        if record is None:
            return
        self.hosts.note(record)
        self.last = record
        if record.event == "started":
            self.started = record

    def _begins_run(self, name: str | None) -> None:
        """Begin another run if the name is a new one, as :func:`hvd_elastic_ext.report.runs.runs` does."""
        if self.runs and (name is None or name == self.runs[-1]):
            return
        self.runs.append(name)
        if self._wanted is None or len(self.runs) == self._wanted:
            self.kept, self.hosts, self.started, self.last = Thinned(), Hosts(), None, None

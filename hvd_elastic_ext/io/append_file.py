"""A file to which several processes append whole lines, and one whose lines a thread writes."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.journal import Sink, with_dropped
from hvd_elastic_ext.io.own_files import open_output
from hvd_elastic_ext.io.threads.writer_thread import DISK, Outlet

LOG: Final = logging.getLogger(__name__)

PROMPT_S: Final = 0.05
"""How long a line waits for the thread, once: a process that is killed then has lost nothing that it wrote. A disk that
hangs costs this time once, until it answers again.
"""


class AppendFile:
    """A :class:`hvd_elastic_ext.core.journal.Sink` over a file, which is closed with it.

    One ``write`` is one system call in append mode, so lines of several writers
    on one machine do not mix. Raises ``OSError`` as the system does; the journal
    handles it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._torn = False

    @classmethod
    def existing(cls, path: Path) -> AppendFile:
        """One that another process has made. Raises ``OSError``."""
        return cls(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def write(self, text: str, /) -> int:
        """Append whole lines; return how many bytes were written.

        Raises ``OSError`` if nothing, or only a part, could be written; the next call then begins a new line.
        """
        # A line that a full disk cut short must not run into the next one.
        data = (b"\n" if self._torn else b"") + text.encode()
        written = os.write(self._descriptor, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the cause of a short write
        return written

    def flush(self) -> None:
        """Do nothing, because nothing is buffered here."""

    def close(self) -> None:
        """Close the file. May be repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class QueuedLines:
    """A :class:`hvd_elastic_ext.core.journal.Sink` that never raises, and hardly waits: a thread writes the lines.

    They keep their order. Lines that do not fit while the disk does not answer, or that cannot be written, are counted
    and logged. With ``counts`` the next line of the file says how many are missing before it, as ``dropped``. ``name``
    is for the log.
    """

    def __init__(self, file: Sink, name: str, *, counts: bool, room: int | None = None) -> None:
        self._lines = _Lines(file, name, counts=counts)
        self._outlet = Outlet(name, says=DISK) if room is None else Outlet(name, says=DISK, room=room)
        self._behind = False
        """Whether the last line waited in vain."""

    @classmethod
    def opened(cls, path: Path, name: str, *, option: str, counts: bool, mode: int = 0o644) -> QueuedLines:
        """Open a file for appending. Raises as :func:`open_output` does."""
        return cls(AppendFile(open_output(path, option=option, mode=mode)), f"{name} {path}", counts=counts)

    def write(self, text: str, /) -> int:
        """Queue a line, and wait a moment until it is written, unless those before it are not."""
        self._outlet.put(self._lines, text)
        self._behind = not self._outlet.is_empty(within_s=0.0 if self._behind else PROMPT_S)
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def close(self) -> None:
        """Wait until all is written, as long as writing makes progress. May be repeated."""
        if lost := self._outlet.close():
            LOG.warning("%s: the last %d lines are not written: the disk does not answer", self._outlet.name, lost)


class _Lines:
    """The lines of one file, as a sink of an :class:`Outlet`."""

    joins = False
    retries = True

    def __init__(self, file: Sink, name: str, *, counts: bool) -> None:
        self.name = name
        self._file, self._counts = file, counts
        self._missing = 0

    def write(self, text: str) -> None:
        """Write a line, with the number of those missing before it."""
        self._file.write(with_dropped(text, self._missing) if self._counts and self._missing else text)
        self._missing = 0

    def missed(self, lines: int, characters: int) -> None:
        self._missing += lines

    def close(self) -> None:
        if isinstance(self._file, AppendFile):
            self._file.close()
